#include "models/bloom.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>

#include "models/layers.h"
#include "models/published.h"

namespace cairn::trainer {
namespace {

struct Sizes {
  std::int64_t hidden, layers, heads, vocabulary;
};

Sizes SizesFor(const ModelConfig& config) {
  const auto& published = PublishedSizes(config.name);
  auto given = config.sizes;
  Sizes sizes{};
  sizes.hidden = TakeSize(given, "hidden", published);
  sizes.layers = TakeSize(given, "layers", published);
  sizes.heads = TakeSize(given, "heads", published);
  sizes.vocabulary = TakeSize(given, "vocabulary", published);
  RejectUnknownSizes(given, "hidden layers heads vocabulary");
  CheckHeads(sizes.hidden, sizes.heads);
  CheckVocabulary(config.data, sizes.vocabulary);
  return sizes;
}

/// Each head's attention penalty per token of distance: [heads] (Press et al., 2021). With n the largest power of two
/// up to heads, the first n are 2^(-8/n), 2^(-16/n), ...; the others are every second one of the series for 2n.
at::Tensor Slopes(std::int64_t heads) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<float> slopes;
  for (std::int64_t i = 0; i < heads; ++i) {
    const double exponent = i < power ? static_cast<double>(i + 1) : static_cast<double>(i - power) + 0.5;
    slopes.push_back(static_cast<float>(std::exp2(-8 * exponent / static_cast<double>(power))));
  }
  return at::tensor(slopes);
}

struct Attention {
  std::int64_t heads;
  Linear query_key_value, dense;

  Attention(const Weights& weights, const Sizes& sizes)
      : heads(sizes.heads),
        query_key_value(weights.Under("query_key_value"), sizes.hidden, 3 * sizes.hidden),
        dense(weights.Under("dense"), sizes.hidden, sizes.hidden) {}

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias) const {
    // Query, key and value are interleaved by head: [n, heads, length, 3, d].
    const at::Tensor fused = SplitHeads(query_key_value(x), heads).unflatten(-1, {3, -1});
    return dense(JoinHeads(at::scaled_dot_product_attention(fused.select(3, 0), fused.select(3, 1), fused.select(3, 2),
                                                            /*attn_mask=*/bias)));
  }
};

struct Layer {
  LayerNorm input_layernorm;
  Attention self_attention;
  LayerNorm post_attention_layernorm;
  Linear dense_h_to_4h, dense_4h_to_h;

  Layer(const Weights& weights, const Sizes& sizes)
      : input_layernorm(weights.Under("input_layernorm"), sizes.hidden),
        self_attention(weights.Under("self_attention"), sizes),
        post_attention_layernorm(weights.Under("post_attention_layernorm"), sizes.hidden),
        dense_h_to_4h(weights.Under("mlp.dense_h_to_4h"), sizes.hidden, 4 * sizes.hidden),
        dense_4h_to_h(weights.Under("mlp.dense_4h_to_h"), 4 * sizes.hidden, sizes.hidden) {}

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias) const {
    const at::Tensor attended = x.add(self_attention(input_layernorm(x), bias));
    return attended.add(dense_4h_to_h(at::gelu(dense_h_to_4h(post_attention_layernorm(attended)), "tanh")));
  }
};

class Bloom {
 public:
  Bloom(const Sizes& sizes, Weights weights, at::Device device)
      : slopes_(Slopes(sizes.heads).to(device)),
        word_embeddings_(weights.Normal("word_embeddings.weight", {sizes.vocabulary, sizes.hidden})),
        word_embeddings_layernorm_(weights.Under("word_embeddings_layernorm"), sizes.hidden),
        ln_f_(weights.Under("ln_f"), sizes.hidden) {
    for (std::int64_t i = 0; i < sizes.layers; ++i)
      layers_.emplace_back(weights.Under("h." + std::to_string(i)), sizes);
  }

  /// The logits of the token after each of `ids` [n, length]: [n, length, vocabulary].
  [[nodiscard]] at::Tensor Logits(const at::Tensor& ids) const {
    at::Tensor x = word_embeddings_layernorm_(at::embedding(word_embeddings_, ids));
    const at::Tensor bias = Bias(ids.size(1)).to(x.scalar_type()).expand({ids.size(0), -1, -1, -1});
    for (const Layer& layer : layers_) x = layer(x, bias);
    return at::linear(ln_f_(x), word_embeddings_);
  }

 private:
  /// The attention bias: [heads, length, length]. Uses distances instead of transformers' positions, because bf16
  /// represents small distances exactly. The softmax is the same.
  [[nodiscard]] at::Tensor Bias(std::int64_t length) const {
    const at::Tensor places = at::arange(length, slopes_.options());
    const at::Tensor ahead = places.unsqueeze(0).sub(places.unsqueeze(1));
    return slopes_.view({-1, 1, 1}).mul(ahead).masked_fill_(ahead.gt(0), -std::numeric_limits<float>::infinity());
  }

  const at::Tensor slopes_;
  at::Tensor word_embeddings_;
  LayerNorm word_embeddings_layernorm_;
  std::vector<Layer> layers_;
  LayerNorm ln_f_;
};

using Kind = ConfigField::Kind;
constexpr std::array kFields = {
    ConfigField{Kind::kSize, "hidden_size", "hidden", "n_embed"},
    ConfigField{Kind::kSize, "n_layer", "layers", "num_hidden_layers"},
    ConfigField{Kind::kSize, "n_head", "heads", "num_attention_heads"},
    ConfigField{Kind::kSize, "vocab_size", "vocabulary"},
    ConfigField{Kind::kFixed, "layer_norm_epsilon", "1e-05"},
    ConfigField{Kind::kFixed, "hidden_dropout", "0.0"},
    ConfigField{Kind::kFixed, "attention_dropout", "0.0"},
    ConfigField{Kind::kFixed, "apply_residual_connection_post_layernorm", "false"},
    ConfigField{Kind::kFixed, "tie_word_embeddings", "true"},
};

}  // namespace

const ConfigLayout kBloomConfig{.model_type = "bloom", .fields = kFields};

Model MakeBloom(const ModelConfig& config) {
  Model model;
  const auto bloom = std::make_shared<const Bloom>(
      SizesFor(config), Weights(config.device, model.parameters).Under("transformer"), config.device);
  model.stem = "transformer.";
  model.tied = {{"lm_head.weight", "transformer.word_embeddings.weight"}};
  model.loss = [bloom](const Batch& batch) {
    const at::Tensor& ids = batch.at("input_ids");
    return NextTokenLoss(bloom->Logits(AllButLast(ids)), ids);
  };
  model.logits = [bloom](const Batch& batch) {
    const c10::NoGradGuard no_grad;
    return bloom->Logits(batch.at("input_ids"));
  };
  return model;
}

}  // namespace cairn::trainer
