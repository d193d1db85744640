#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/layers.h"

namespace cairn::trainer {

/// A vocabulary in clusters, the frequent words first: token numbers must go by frequency. Words of the i-th cluster
/// have embeddings of hidden / divisor^i.
struct Clusters {
  std::vector<std::int64_t> ends;  ///< The number after each cluster's last; the last is the vocabulary.
  std::int64_t divisor = 1;

  [[nodiscard]] std::size_t count() const { return ends.size(); }
  [[nodiscard]] std::int64_t begin(std::size_t i) const { return i == 0 ? 0 : ends[i - 1]; }
  [[nodiscard]] std::vector<std::int64_t> sizes() const;  ///< Words of each.
  /// Of the i-th cluster's embeddings, for a model of this hidden size.
  [[nodiscard]] std::int64_t width(std::size_t i, std::int64_t hidden) const;
};

/// Adaptive input (Baevski and Auli, 2019), with the names of Hugging Face's AdaptiveEmbedding: one table where the
/// divisor is 1, else for each cluster a table and a projection to the hidden size.
class AdaptiveEmbedding {
 public:
  AdaptiveEmbedding(Weights weights, Clusters clusters, std::int64_t hidden);
  /// [..., hidden] of `ids` [...], times the root of hidden.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& ids) const;

  [[nodiscard]] const Clusters& clusters() const { return clusters_; }
  [[nodiscard]] const std::vector<at::Tensor>& tables() const { return tables_; }
  [[nodiscard]] const std::vector<at::Tensor>& projections() const { return projections_; }

 private:
  Clusters clusters_;
  double scale_;
  std::vector<at::Tensor> tables_;
  std::vector<at::Tensor> projections_;  ///< None where the divisor is 1.
};

/// Adaptive softmax (Grave et al., 2017), with the names of Hugging Face's ProjectedAdaptiveLogSoftmax: the head has
/// the first cluster's words and one entry for each further cluster, whose words share that entry's probability. Tables
/// are the embedding's, and so are the projections but for the first.
class AdaptiveSoftmax {
 public:
  AdaptiveSoftmax(Weights weights, const AdaptiveEmbedding& embedding, std::int64_t hidden);
  /// Of every word: [n, vocabulary] of `hidden` [n, hidden].
  [[nodiscard]] at::Tensor LogProbabilities(const at::Tensor& hidden) const;
  /// The mean, over the n, of -log(probability) of `labels` [n]. Computes only what these labels take.
  [[nodiscard]] at::Tensor Loss(const at::Tensor& hidden, const at::Tensor& labels) const;

 private:
  /// What one cluster's logits are made of; the head's with the clusters' entries behind its words.
  struct Part {
    at::Tensor weight, bias, projection;
    [[nodiscard]] at::Tensor Logits(const at::Tensor& hidden) const;
  };
  [[nodiscard]] std::vector<Part> Parts() const;

  Clusters clusters_;
  std::vector<at::Tensor> tables_;
  std::vector<at::Tensor> biases_;
  std::vector<at::Tensor> projections_;
  at::Tensor cluster_weight_, cluster_bias_;  ///< Undefined where there is one cluster.
};

/// The further names that Hugging Face has for parameters of the embedding at `embedding`, used by the softmax at
/// `softmax`, and theirs here: for Model::tied.
std::map<std::string, std::string> TiedNames(const Clusters& clusters, const std::string& embedding,
                                             const std::string& softmax);

}  // namespace cairn::trainer
