#include "models/transformer_xl.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "models/adaptive.h"
#include "models/layers.h"
#include "models/published.h"

namespace cairn::trainer {
namespace {

struct Sizes {
  std::int64_t hidden, layers, heads, head_size, ffn, memory, vocabulary;
  std::array<std::int64_t, 3> cutoffs;
  std::int64_t div_val;
  bool untie_r;
  double dropout, attention_dropout;
};

Sizes SizesFor(const ModelConfig& config) {
  const auto& published = PublishedSizes(config.name);
  const bool large = config.name == "transformer-xl-large";
  Sizes sizes{.dropout = large ? 0.2 : 0.1, .attention_dropout = large ? 0.2 : 0};
  auto given = config.sizes;
  for (const auto& [name, size] : {std::pair{"hidden", &sizes.hidden},
                                   {"layers", &sizes.layers},
                                   {"heads", &sizes.heads},
                                   {"head_size", &sizes.head_size},
                                   {"ffn", &sizes.ffn},
                                   {"memory", &sizes.memory},
                                   {"vocabulary", &sizes.vocabulary},
                                   {"cutoff1", &sizes.cutoffs[0]},
                                   {"cutoff2", &sizes.cutoffs[1]},
                                   {"cutoff3", &sizes.cutoffs[2]},
                                   {"div_val", &sizes.div_val}}) {
    *size = TakeSize(given, name, published);
  }
  sizes.untie_r = TakeFlag(given, "untie_r", published);
  RejectUnknownSizes(given,
                     "hidden layers heads head_size ffn memory vocabulary cutoff1 cutoff2 cutoff3 div_val untie_r");
  if (sizes.hidden % 2 != 0) {
    throw std::runtime_error("size hidden: expected an even number, found " + std::to_string(sizes.hidden));
  }
  CheckVocabulary(config.data, sizes.vocabulary);
  return sizes;
}

Clusters ClustersOf(const Sizes& sizes) {
  Clusters clusters{.ends = {}, .divisor = sizes.div_val};
  for (const std::int64_t cutoff : sizes.cutoffs) {
    if (cutoff >= sizes.vocabulary) break;
    if (!clusters.ends.empty() && cutoff <= clusters.ends.back()) {
      throw std::runtime_error("size cutoff" + std::to_string(clusters.count() + 1) + ": expected more than " +
                               std::to_string(clusters.ends.back()) + ", the previous one, found " +
                               std::to_string(cutoff));
    }
    clusters.ends.push_back(cutoff);
  }
  clusters.ends.push_back(sizes.vocabulary);
  if (clusters.width(clusters.count() - 1, sizes.hidden) == 0) {
    throw std::runtime_error("size div_val: expected the last cluster's embeddings to keep some of hidden, " +
                             std::to_string(sizes.hidden) + ", found " + std::to_string(sizes.div_val));
  }
  return clusters;
}

/// Biases added to queries for content (w) and distance (r) scores: [heads, 1, head_size].
struct AttentionBiases {
  at::Tensor w, r;

  AttentionBiases(Weights weights, const Sizes& sizes)
      : w(weights.Normal("r_w_bias", {sizes.heads, sizes.head_size})),
        r(weights.Normal("r_r_bias", {sizes.heads, sizes.head_size})) {}
};

/// Weights are drawn around 1; in the other models they are 1.
LayerNorm DrawnNorm(const Weights& weights, std::int64_t size) {
  LayerNorm norm(weights, size);
  const c10::NoGradGuard no_grad;
  norm.weight.copy_(at::empty({size}, at::kFloat).normal_(1, Weights::kDeviation));
  return norm;
}

/// Converts [..., queries, keys] with columns by distance, the farthest first, to columns by key. Values for keys after
/// their query are meaningless.
at::Tensor ByKey(const at::Tensor& by_distance) {
  const std::int64_t queries = by_distance.size(-2);
  const std::int64_t keys = by_distance.size(-1);
  // With one more column, a view with rows longer by one shifts each row by one place relative to the previous one.
  const at::Tensor padded = at::constant_pad_nd(by_distance, {1, 0}).flatten(-2);
  return padded.slice(-1, queries).unflatten(-1, {queries, keys});
}

struct Attention {
  std::int64_t heads;
  double dropout, attention_dropout, scale;
  at::Tensor qkv_net, o_net, r_net;
  LayerNorm layer_norm;
  AttentionBiases biases;

  /// `shared`: the biases shared by all layers, or null if each layer has its own.
  Attention(Weights weights, const Sizes& sizes, const AttentionBiases* shared)
      : heads(sizes.heads),
        dropout(sizes.dropout),
        attention_dropout(sizes.attention_dropout),
        scale(1 / std::sqrt(static_cast<double>(sizes.head_size))),
        qkv_net(weights.Normal("qkv_net.weight", {3 * sizes.heads * sizes.head_size, sizes.hidden})),
        o_net(weights.Normal("o_net.weight", {sizes.hidden, sizes.heads * sizes.head_size})),
        r_net(weights.Normal("r_net.weight", {sizes.heads * sizes.head_size, sizes.hidden})),
        layer_norm(DrawnNorm(weights.Under("layer_norm"), sizes.hidden)),
        biases(shared != nullptr ? *shared : AttentionBiases(weights, sizes)) {}

  /// `positions` [keys, hidden], the farthest distance first; `later` [queries, keys] masks the keys that a query must
  /// not see.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& positions,
                        const at::Tensor& later, bool training) const {
    const auto projected = at::linear(at::cat({memory, x}, 1), qkv_net).chunk(3, -1);
    const at::Tensor query = SplitHeads(projected[0].slice(1, memory.size(1)), heads);
    const at::Tensor key = SplitHeads(projected[1], heads);
    const at::Tensor value = SplitHeads(projected[2], heads);
    const at::Tensor distance = SplitHeads(at::linear(positions, r_net).unsqueeze(0), heads);
    const auto scores = [&](const at::Tensor& bias, const at::Tensor& with) {
      return at::matmul(query.add(bias.unsqueeze(1)), with.transpose(-1, -2));
    };
    const at::Tensor score = scores(biases.w, key).add(ByKey(scores(biases.r, distance))).mul(scale);
    const at::Tensor share =
        at::dropout(at::softmax(score.masked_fill(later, -std::numeric_limits<float>::infinity()), -1),
                    attention_dropout, training);
    const at::Tensor attended = at::linear(JoinHeads(at::matmul(share, value)), o_net);
    return layer_norm(x.add(at::dropout(attended, dropout, training)));
  }
};

struct FeedForward {
  double dropout;
  Linear in, out;
  LayerNorm layer_norm;

  FeedForward(const Weights& weights, const Sizes& sizes)
      : dropout(sizes.dropout),
        in(weights.Under("CoreNet.0"), sizes.hidden, sizes.ffn),
        out(weights.Under("CoreNet.3"), sizes.ffn, sizes.hidden),
        layer_norm(DrawnNorm(weights.Under("layer_norm"), sizes.hidden)) {}

  at::Tensor operator()(const at::Tensor& x, bool training) const {
    const at::Tensor inner = at::dropout(at::relu(in(x)), dropout, training);
    return layer_norm(x.add(at::dropout(out(inner), dropout, training)));
  }
};

struct Layer {
  Attention dec_attn;
  FeedForward pos_ff;

  Layer(const Weights& weights, const Sizes& sizes, const AttentionBiases* shared)
      : dec_attn(weights.Under("dec_attn"), sizes, shared), pos_ff(weights.Under("pos_ff"), sizes) {}
};

class TransformerXl {
 public:
  TransformerXl(const Sizes& sizes, const Weights& weights, at::Tensor memory)
      : dropout_(sizes.dropout),
        memory_(std::move(memory)),
        word_emb_(weights.Under("transformer.word_emb"), ClustersOf(sizes), sizes.hidden),
        crit_(weights.Under("crit"), word_emb_, sizes.hidden) {
    const Weights transformer = weights.Under("transformer");
    if (!sizes.untie_r) shared_.emplace(transformer, sizes);
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      layers_.emplace_back(transformer.Under("layers." + std::to_string(i)), sizes, shared_ ? &*shared_ : nullptr);
    }
  }

  [[nodiscard]] at::Tensor Loss(const Batch& batch) {
    return crit_.Loss(Hidden(batch, /*training=*/true).flatten(0, 1), batch.at("labels").flatten());
  }
  [[nodiscard]] at::Tensor Logits(const Batch& batch) {
    return crit_.LogProbabilities(Hidden(batch, /*training=*/false));
  }
  void Advance() {
    if (!pending_.defined()) return;
    memory_.copy_(pending_);
    pending_.reset();
  }

 private:
  /// Continues from the memory of the previous batch, and leaves the new memory in `pending_`.
  at::Tensor Hidden(const Batch& batch, bool training) {
    const at::Tensor begins = batch.at("begins").view({1, -1, 1, 1});
    const at::Tensor memory = (pending_.defined() ? pending_ : memory_).masked_fill(begins, 0);
    at::Tensor x = at::dropout(word_emb_(batch.at("input_ids")), dropout_, training);
    const std::int64_t length = x.size(1);
    const std::int64_t keys = memory.size(2) + length;
    const at::Tensor positions = at::dropout(Positions(keys, x), dropout_, training);
    const at::Tensor later = at::ones({length, keys}, x.options().dtype(at::kBool)).triu(1 + memory.size(2));
    std::vector<at::Tensor> left;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const at::Tensor before = memory.select(0, static_cast<std::int64_t>(i));
      left.push_back(at::cat({before, x.detach()}, 1).slice(1, length));
      x = layers_[i].pos_ff(layers_[i].dec_attn(x, before, positions, later, training), training);
    }
    pending_ = at::stack(left);
    return at::dropout(x, dropout_, training);
  }

  /// The embeddings of the distances keys - 1 to 0: [keys, hidden], in the type of `like`.
  static at::Tensor Positions(std::int64_t keys, const at::Tensor& like) {
    const auto options = like.options().dtype(at::kFloat);
    const auto hidden = static_cast<double>(like.size(-1));
    const at::Tensor frequencies = at::arange(0, like.size(-1), 2, options).mul(-std::log(10000) / hidden).exp();
    const at::Tensor angles = at::outer(at::arange(keys - 1, -1, -1, options), frequencies);
    return at::cat({angles.sin(), angles.cos()}, -1).to(like.scalar_type());
  }

  const double dropout_;
  /// The buffer "memory".
  const at::Tensor memory_;
  /// Its next value; undefined if it does not change.
  at::Tensor pending_;
  AdaptiveEmbedding word_emb_;
  AdaptiveSoftmax crit_;
  std::optional<AttentionBiases> shared_;
  std::vector<Layer> layers_;
};

std::map<std::string, std::string> TiedNamesFor(const Sizes& sizes) {
  auto tied = TiedNames(ClustersOf(sizes), "transformer.word_emb", "crit");
  if (sizes.untie_r) return tied;
  for (std::int64_t i = 0; i < sizes.layers; ++i) {
    for (const std::string bias : {"r_w_bias", "r_r_bias"}) {
      tied["transformer.layers." + std::to_string(i) + ".dec_attn." + bias] = "transformer." + bias;
    }
  }
  return tied;
}

}  // namespace

Model MakeTransformerXl(const ModelConfig& config) {
  const Sizes sizes = SizesFor(config);
  Model model;
  model.buffers = {{"memory", at::zeros({sizes.layers, config.data.rows, sizes.memory, sizes.hidden},
                                        at::TensorOptions(config.device).dtype(at::kFloat))}};
  const auto xl =
      std::make_shared<TransformerXl>(sizes, Weights(config.device, model.parameters), model.buffers[0].tensor);
  model.tied = TiedNamesFor(sizes);
  model.loss = [xl](const Batch& batch) { return xl->Loss(batch); };
  model.logits = [xl](const Batch& batch) {
    const c10::NoGradGuard no_grad;
    return xl->Logits(batch);
  };
  model.advance = [xl] { xl->Advance(); };
  return model;
}

}  // namespace cairn::trainer
