#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/layers.h"

namespace cairn::trainer {

/// A vocabulary in clusters. Token numbers must be ordered by frequency, frequent words first. Embeddings of the i-th
/// cluster have size hidden / divisor^i.
struct Clusters {
  /// The end of each cluster's token numbers; the last is the vocabulary size.
  std::vector<std::int64_t> ends;
  std::int64_t divisor = 1;

  [[nodiscard]] std::size_t count() const { return ends.size(); }
  [[nodiscard]] std::int64_t begin(std::size_t i) const { return i == 0 ? 0 : ends[i - 1]; }
  /// The number of words in each cluster.
  [[nodiscard]] std::vector<std::int64_t> sizes() const;
  /// The embedding size of the i-th cluster in a model of this hidden size.
  [[nodiscard]] std::int64_t width(std::size_t i, std::int64_t hidden) const;
};

/// Adaptive input (Baevski and Auli, 2019), with the names of Hugging Face's AdaptiveEmbedding: one table if the
/// divisor is 1, otherwise a table and a projection to the hidden size for each cluster.
class AdaptiveEmbedding {
 public:
  AdaptiveEmbedding(Weights weights, Clusters clusters, std::int64_t hidden);
  /// The embeddings of `ids` [...], times the square root of hidden: [..., hidden].
  [[nodiscard]] at::Tensor operator()(const at::Tensor& ids) const;

  [[nodiscard]] const Clusters& clusters() const { return clusters_; }
  [[nodiscard]] const std::vector<at::Tensor>& tables() const { return tables_; }
  [[nodiscard]] const std::vector<at::Tensor>& projections() const { return projections_; }

 private:
  Clusters clusters_;
  double scale_;
  std::vector<at::Tensor> tables_;
  /// Empty if the divisor is 1.
  std::vector<at::Tensor> projections_;
};

/// Adaptive softmax (Grave et al., 2017), with the names of Hugging Face's ProjectedAdaptiveLogSoftmax: the head has
/// the first cluster's words and one entry for each further cluster, whose words share that entry's probability. Shares
/// the embedding's tables, and its projections except the first.
class AdaptiveSoftmax {
 public:
  AdaptiveSoftmax(Weights weights, const AdaptiveEmbedding& embedding, std::int64_t hidden);
  /// The log-probability of every word, [n, vocabulary], for `hidden` [n, hidden].
  [[nodiscard]] at::Tensor LogProbabilities(const at::Tensor& hidden) const;
  /// The mean of -log(probability) of `labels` [n]. Computes only the clusters that the labels need.
  [[nodiscard]] at::Tensor Loss(const at::Tensor& hidden, const at::Tensor& labels) const;

 private:
  /// The weights behind one cluster's logits. The head's include the entries of the other clusters, after its words.
  struct Part {
    at::Tensor weight, bias, projection;
    [[nodiscard]] at::Tensor Logits(const at::Tensor& hidden) const;
  };
  [[nodiscard]] std::vector<Part> Parts() const;

  Clusters clusters_;
  std::vector<at::Tensor> tables_;
  std::vector<at::Tensor> biases_;
  std::vector<at::Tensor> projections_;
  /// Undefined if there is only one cluster.
  at::Tensor cluster_weight_, cluster_bias_;
};

/// For Model::tied: Hugging Face's additional names for the parameters of `embedding` that `softmax` shares, each with
/// its name in this model.
std::map<std::string, std::string> TiedNames(const Clusters& clusters, const std::string& embedding,
                                             const std::string& softmax);

}  // namespace cairn::trainer
