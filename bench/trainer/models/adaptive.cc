#include "models/adaptive.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <utility>

namespace cairn::trainer {
namespace {

constexpr double kProjectionDeviation = 0.01;

std::string Numbered(const std::string& list, std::size_t i) { return list + "." + std::to_string(i); }

}  // namespace

std::vector<std::int64_t> Clusters::sizes() const {
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < count(); ++i) all.push_back(ends[i] - begin(i));
  return all;
}

std::int64_t Clusters::width(std::size_t i, std::int64_t hidden) const {
  for (; i > 0; --i) hidden /= divisor;
  return hidden;
}

AdaptiveEmbedding::AdaptiveEmbedding(Weights weights, Clusters clusters, std::int64_t hidden)
    : clusters_(std::move(clusters)), scale_(std::sqrt(static_cast<double>(hidden))) {
  if (clusters_.divisor == 1) {
    tables_.push_back(weights.Normal("emb_layers.0.weight", {clusters_.ends.back(), hidden}));
    return;
  }
  for (std::size_t i = 0; i < clusters_.count(); ++i) {
    const std::int64_t width = clusters_.width(i, hidden);
    tables_.push_back(weights.Normal(Numbered("emb_layers", i) + ".weight", {clusters_.sizes()[i], width}));
    projections_.push_back(weights.Normal(Numbered("emb_projs", i), {hidden, width}, kProjectionDeviation));
  }
}

at::Tensor AdaptiveEmbedding::operator()(const at::Tensor& ids) const {
  if (projections_.empty()) return at::embedding(tables_[0], ids).mul(scale_);
  at::Tensor embedded;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    // Computes every token, although one is needed: to select tokens, the host would have to wait for the GPU.
    const at::Tensor rows = ids.sub(clusters_.begin(i)).clamp(0, tables_[i].size(0) - 1);
    const at::Tensor mine = at::linear(at::embedding(tables_[i], rows), projections_[i]);
    embedded = i == 0 ? mine : at::where(ids.ge(clusters_.begin(i)).unsqueeze(-1), mine, embedded);
  }
  return embedded.mul(scale_);
}

AdaptiveSoftmax::AdaptiveSoftmax(Weights weights, const AdaptiveEmbedding& embedding, std::int64_t hidden)
    : clusters_(embedding.clusters()), tables_(embedding.tables()), projections_(embedding.projections()) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    biases_.push_back(weights.Constant(Numbered("out_layers", i) + ".bias", tables_[i].size(0), 0));
  }
  if (!projections_.empty()) projections_[0] = weights.Normal("out_projs.0", {hidden, hidden}, kProjectionDeviation);
  if (clusters_.count() == 1) return;
  const auto further = static_cast<std::int64_t>(clusters_.count()) - 1;
  cluster_weight_ = weights.Normal("cluster_weight", {further, hidden});
  cluster_bias_ = weights.Constant("cluster_bias", further, 0);
}

at::Tensor AdaptiveSoftmax::Part::Logits(const at::Tensor& hidden) const {
  const at::Tensor x = projection.defined() ? at::linear(hidden, projection.t()) : hidden;
  return at::linear(x, weight, bias).to(at::kFloat);
}

std::vector<AdaptiveSoftmax::Part> AdaptiveSoftmax::Parts() const {
  const bool one_table = clusters_.divisor == 1;
  const auto weights = one_table ? at::split_with_sizes(tables_[0], clusters_.sizes()) : tables_;
  const auto biases = one_table ? at::split_with_sizes(biases_[0], clusters_.sizes()) : biases_;
  std::vector<Part> parts;
  for (std::size_t i = 0; i < clusters_.count(); ++i) {
    parts.push_back({weights[i], biases[i], one_table ? at::Tensor() : projections_[i]});
  }
  if (cluster_weight_.defined()) {
    parts[0].weight = at::cat({parts[0].weight, cluster_weight_});
    parts[0].bias = at::cat({parts[0].bias, cluster_bias_});
  }
  return parts;
}

at::Tensor AdaptiveSoftmax::LogProbabilities(const at::Tensor& hidden) const {
  const std::vector<Part> parts = Parts();
  const at::Tensor head = at::log_softmax(parts[0].Logits(hidden), -1);
  std::vector<at::Tensor> all = {head.slice(-1, 0, clusters_.ends[0])};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::int64_t entry = clusters_.ends[0] + static_cast<std::int64_t>(i) - 1;
    all.push_back(head.slice(-1, entry, entry + 1).add(at::log_softmax(parts[i].Logits(hidden), -1)));
  }
  return at::cat(all, -1);
}

at::Tensor AdaptiveSoftmax::Loss(const at::Tensor& hidden, const at::Tensor& labels) const {
  const auto summed = [](const at::Tensor& logits, const at::Tensor& targets) {
    return at::cross_entropy_loss(logits, targets, /*weight=*/{}, at::Reduction::Sum);
  };
  const std::vector<Part> parts = Parts();
  at::Tensor entries = labels;  // Entries of the head: the word's or its cluster's.
  at::Tensor sum;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor inside = labels.ge(clusters_.begin(i)).logical_and(labels.lt(clusters_.ends[i]));
    entries = entries.masked_fill(inside, clusters_.ends[0] + static_cast<std::int64_t>(i) - 1);
    // Even if the cluster is empty, so that every parameter has a gradient.
    const at::Tensor which = at::nonzero(inside).squeeze(1);
    const at::Tensor part =
        summed(parts[i].Logits(hidden.index_select(0, which)), labels.index_select(0, which).sub(clusters_.begin(i)));
    sum = sum.defined() ? sum.add(part) : part;
  }
  const at::Tensor head = summed(parts[0].Logits(hidden), entries);
  return (sum.defined() ? head.add(sum) : head).div(labels.size(0));
}

std::map<std::string, std::string> TiedNames(const Clusters& clusters, const std::string& embedding,
                                             const std::string& softmax) {
  std::map<std::string, std::string> tied;
  const std::size_t tables = clusters.divisor == 1 ? 1 : clusters.count();
  for (std::size_t i = 0; i < tables; ++i) {
    tied[softmax + Numbered(".out_layers", i) + ".weight"] = embedding + Numbered(".emb_layers", i) + ".weight";
    if (i > 0) tied[softmax + Numbered(".out_projs", i)] = embedding + Numbered(".emb_projs", i);
  }
  return tied;
}

}  // namespace cairn::trainer
