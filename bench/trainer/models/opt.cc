#include "models/opt.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/GradMode.h>

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>

#include "models/layers.h"
#include "models/published.h"

namespace cairn::trainer {
namespace {

constexpr double kDropout = 0.1;
constexpr std::int64_t kPositionOffset = 2;  // The first rows of the position table are never used.

struct Sizes {
  std::int64_t hidden, layers, heads, ffn, vocabulary, positions, embedding;
  bool pre_norm;
};

Sizes SizesFor(const ModelConfig& config) {
  auto published = PublishedSizes(config.name);
  auto given = config.sizes;
  Sizes sizes{};
  sizes.hidden = TakeSize(given, "hidden", published);
  sizes.layers = TakeSize(given, "layers", published);
  sizes.heads = TakeSize(given, "heads", published);
  sizes.ffn = TakeSize(given, "ffn", published);
  sizes.vocabulary = TakeSize(given, "vocabulary", published);
  sizes.positions = TakeSize(given, "positions", published);
  if (published["embedding"] == published["hidden"]) published["embedding"] = sizes.hidden;  // No projection.
  sizes.embedding = TakeSize(given, "embedding", published);
  sizes.pre_norm = TakeFlag(given, "pre_norm", published);
  RejectUnknownSizes(given, "hidden layers heads ffn vocabulary positions embedding pre_norm");
  CheckHeads(sizes.hidden, sizes.heads);
  CheckPositions(config.data, sizes.positions);
  CheckVocabulary(config.data, sizes.vocabulary);
  return sizes;
}

struct Attention {
  std::int64_t heads;
  Linear k_proj, v_proj, q_proj, out_proj;

  Attention(const Weights& weights, const Sizes& sizes)
      : heads(sizes.heads),
        k_proj(weights.Under("k_proj"), sizes.hidden, sizes.hidden),
        v_proj(weights.Under("v_proj"), sizes.hidden, sizes.hidden),
        q_proj(weights.Under("q_proj"), sizes.hidden, sizes.hidden),
        out_proj(weights.Under("out_proj"), sizes.hidden, sizes.hidden) {}

  at::Tensor operator()(const at::Tensor& x) const {
    const auto split = [&](const Linear& project) { return SplitHeads(project(x), heads); };
    return out_proj(JoinHeads(at::scaled_dot_product_attention(split(q_proj), split(k_proj), split(v_proj),
                                                               /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/true)));
  }
};

struct Layer {
  bool pre_norm;
  Attention self_attn;
  LayerNorm self_attn_layer_norm;
  Linear fc1, fc2;
  LayerNorm final_layer_norm;

  Layer(const Weights& weights, const Sizes& sizes)
      : pre_norm(sizes.pre_norm),
        self_attn(weights.Under("self_attn"), sizes),
        self_attn_layer_norm(weights.Under("self_attn_layer_norm"), sizes.hidden),
        fc1(weights.Under("fc1"), sizes.hidden, sizes.ffn),
        fc2(weights.Under("fc2"), sizes.ffn, sizes.hidden),
        final_layer_norm(weights.Under("final_layer_norm"), sizes.hidden) {}

  at::Tensor operator()(const at::Tensor& x, bool training) const {
    const auto add = [&](const at::Tensor& to, const LayerNorm& norm, const auto& block) {
      const at::Tensor sum = to.add(at::dropout(block(pre_norm ? norm(to) : to), kDropout, training));
      return pre_norm ? sum : norm(sum);
    };
    const auto feed_forward = [&](const at::Tensor& input) { return fc2(at::relu(fc1(input))); };
    return add(add(x, self_attn_layer_norm, self_attn), final_layer_norm, feed_forward);
  }
};

class Opt {
 public:
  Opt(const Sizes& sizes, Weights weights)
      // Unlike in transformers, no row is reserved for padding: samples are not padded, and that number may be a real
      // token of another tokenizer.
      : embed_tokens_(weights.Normal("embed_tokens.weight", {sizes.vocabulary, sizes.embedding})),
        embed_positions_(weights.Normal("embed_positions.weight", {sizes.positions + kPositionOffset, sizes.hidden})) {
    if (sizes.embedding != sizes.hidden) {
      project_out_ = weights.Normal("project_out.weight", {sizes.embedding, sizes.hidden});
      project_in_ = weights.Normal("project_in.weight", {sizes.hidden, sizes.embedding});
    }
    if (sizes.pre_norm) final_layer_norm_.emplace(weights.Under("final_layer_norm"), sizes.hidden);
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      layers_.emplace_back(weights.Under("layers." + std::to_string(i)), sizes);
    }
  }

  /// The logits of the token after each of `ids` [n, length]: [n, length, vocabulary].
  [[nodiscard]] at::Tensor Logits(const at::Tensor& ids, bool training) const {
    at::Tensor x = at::embedding(embed_tokens_, ids);
    if (project_in_.defined()) x = at::linear(x, project_in_);
    x = x.add(embed_positions_.slice(0, kPositionOffset, kPositionOffset + ids.size(1)));
    for (const Layer& layer : layers_) x = layer(x, training);
    if (final_layer_norm_) x = (*final_layer_norm_)(x);
    if (project_out_.defined()) x = at::linear(x, project_out_);
    return at::linear(x, embed_tokens_);
  }

  [[nodiscard]] at::Tensor Loss(const at::Tensor& ids) const {
    return NextTokenLoss(Logits(AllButLast(ids), /*training=*/true), ids);
  }

 private:
  at::Tensor embed_tokens_, embed_positions_;
  at::Tensor project_out_, project_in_;
  std::optional<LayerNorm> final_layer_norm_;
  std::vector<Layer> layers_;
};

using Kind = ConfigField::Kind;
constexpr std::array kFields = {
    ConfigField{Kind::kSize, "hidden_size", "hidden"},
    ConfigField{Kind::kSize, "num_hidden_layers", "layers"},
    ConfigField{Kind::kSize, "num_attention_heads", "heads"},
    ConfigField{Kind::kSize, "ffn_dim", "ffn"},
    ConfigField{Kind::kSize, "vocab_size", "vocabulary"},
    ConfigField{Kind::kSize, "max_position_embeddings", "positions"},
    ConfigField{Kind::kSize, "word_embed_proj_dim", "embedding"},
    ConfigField{Kind::kFlag, "do_layer_norm_before", "pre_norm"},
    ConfigField{Kind::kFixed, "dropout", "0.1"},
    ConfigField{Kind::kFixed, "attention_dropout", "0.0"},
    ConfigField{Kind::kFixed, "layerdrop", "0.0"},
    ConfigField{Kind::kFixed, "activation_function", "\"relu\""},
    ConfigField{Kind::kFixed, "enable_bias", "true"},
    ConfigField{Kind::kFixed, "layer_norm_elementwise_affine", "true"},
    ConfigField{Kind::kFixed, "_remove_final_layer_norm", "false"},
    ConfigField{Kind::kFixed, "tie_word_embeddings", "true"},
};

}  // namespace

const ConfigLayout kOptConfig{.model_type = "opt", .fields = kFields};

Model MakeOpt(const ModelConfig& config) {
  Model model;
  const auto opt =
      std::make_shared<const Opt>(SizesFor(config), Weights(config.device, model.parameters).Under("model.decoder"));
  model.stem = "model.";
  model.tied = {{"lm_head.weight", "model.decoder.embed_tokens.weight"}};
  model.loss = [opt](const Batch& batch) { return opt->Loss(batch.at("input_ids")); };
  model.logits = [opt](const Batch& batch) {
    const c10::NoGradGuard no_grad;
    return opt->Logits(batch.at("input_ids"), /*training=*/false);
  };
  return model;
}

}  // namespace cairn::trainer
