#include "advice/model_shapes.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
namespace {

using Stages = ModelTensor::Stages;
using Shape = std::vector<std::int64_t>;
using Cut = std::optional<std::size_t>;

constexpr Cut kCutRows = 0;
constexpr Cut kCutColumns = 1;

struct Place {
  Stages stages = Stages::kAll;
  std::int64_t layer = 0;
};
constexpr Place kOnFirst{Stages::kFirst};
constexpr Place kOnLast{Stages::kLast};
constexpr Place kOnBoth{Stages::kFirstAndLast};

/// Collects weights, each followed by what the optimizer keeps for it.
class Builder {
 public:
  Builder(std::int64_t layers, std::int64_t heads, const Kept& kept) : kept_(kept) {
    model_.layers = layers;
    model_.heads = heads;
  }

  void Weight(const Place& place, const std::string& name, const Shape& shape, Cut cut = {}, std::int64_t pad = 0) {
    const auto add = [&](std::string as, DType dtype) {
      model_.tensors.push_back({.name = std::move(as),
                                .dtype = dtype,
                                .shape = shape,
                                .stages = place.stages,
                                .layer = place.layer,
                                .cut = cut,
                                .pad = pad});
    };
    const auto add_optimizers = [&](std::string_view kind) {
      add(fmt::format("optimizer.state.{}.{}", name, kind), kept_.optimizer);
    };
    add(name, kept_.weights);
    if (kept_.copy) add_optimizers("param");
    if (kept_.moments == 1) add_optimizers("momentum_buffer");
    if (kept_.moments == 2) {
      add_optimizers("exp_avg");
      add_optimizers("exp_avg_sq");
    }
    model_.parameters += std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  /// What is not trained.
  void Buffer(const Place& place, const std::string& name, DType dtype, const Shape& shape) {
    model_.tensors.push_back(
        {.name = name, .dtype = dtype, .shape = shape, .stages = place.stages, .layer = place.layer});
  }
  /// Ranks that cut the columns each have the whole bias.
  void Linear(const Place& place, const std::string& name, std::int64_t out, std::int64_t in, Cut cut = {}) {
    Weight(place, name + ".weight", {out, in}, cut);
    Weight(place, name + ".bias", {out}, cut == kCutRows ? kCutRows : Cut());
  }
  void Norm(const Place& place, const std::string& name, std::int64_t size) {
    Weight(place, name + ".weight", {size});
    Weight(place, name + ".bias", {size});
  }
  void BatchNorm(const Place& place, const std::string& name, std::int64_t size) {
    Norm(place, name, size);
    Buffer(place, name + ".running_mean", kept_.weights, {size});
    Buffer(place, name + ".running_var", kept_.weights, {size});
    Buffer(place, name + ".num_batches_tracked", DType::kI64, {});
  }

  Model Take() && { return std::move(model_); }

 private:
  const Kept kept_;
  Model model_;
};

constexpr std::int64_t kVocabularyMultiple = 128;  // As Megatron pads embeddings.

Model MakeBert(const ModelSizes& sizes, const Kept& kept) {
  const std::int64_t h = sizes.at("hidden");
  Builder bert(sizes.at("layers"), sizes.at("heads"), kept);
  const std::string embeddings = "bert.embeddings.";
  bert.Weight(kOnBoth, embeddings + "word_embeddings.weight", {sizes.at("vocabulary"), h}, kCutRows,
              kVocabularyMultiple);
  bert.Weight(kOnFirst, embeddings + "position_embeddings.weight", {sizes.at("positions"), h});
  bert.Weight(kOnFirst, embeddings + "token_type_embeddings.weight", {sizes.at("types"), h});
  bert.Norm(kOnFirst, embeddings + "LayerNorm", h);
  for (std::int64_t layer = 0; layer < sizes.at("layers"); ++layer) {
    const Place place{Stages::kOfLayer, layer};
    const std::string name = fmt::format("bert.encoder.layer.{}.", layer);
    for (const char* part : {"query", "key", "value"})
      bert.Linear(place, name + "attention.self." + part, h, h, kCutRows);
    bert.Linear(place, name + "attention.output.dense", h, h, kCutColumns);
    bert.Norm(place, name + "attention.output.LayerNorm", h);
    bert.Linear(place, name + "intermediate.dense", sizes.at("intermediate"), h, kCutRows);
    bert.Linear(place, name + "output.dense", h, sizes.at("intermediate"), kCutColumns);
    bert.Norm(place, name + "output.LayerNorm", h);
  }
  const std::string head = "cls.predictions.";
  bert.Weight(kOnLast, head + "bias", {sizes.at("vocabulary")}, kCutRows, kVocabularyMultiple);
  bert.Linear(kOnLast, head + "transform.dense", h, h);
  bert.Norm(kOnLast, head + "transform.LayerNorm", h);
  return std::move(bert).Take();
}

Model MakeBloom(const ModelSizes& sizes, const Kept& kept) {
  const std::int64_t h = sizes.at("hidden");
  Builder bloom(sizes.at("layers"), sizes.at("heads"), kept);
  bloom.Weight(kOnBoth, "transformer.word_embeddings.weight", {sizes.at("vocabulary"), h}, kCutRows,
               kVocabularyMultiple);
  bloom.Norm(kOnFirst, "transformer.word_embeddings_layernorm", h);
  for (std::int64_t layer = 0; layer < sizes.at("layers"); ++layer) {
    const Place place{Stages::kOfLayer, layer};
    const std::string name = fmt::format("transformer.h.{}.", layer);
    bloom.Norm(place, name + "input_layernorm", h);
    bloom.Linear(place, name + "self_attention.query_key_value", 3 * h, h, kCutRows);
    bloom.Linear(place, name + "self_attention.dense", h, h, kCutColumns);
    bloom.Norm(place, name + "post_attention_layernorm", h);
    bloom.Linear(place, name + "mlp.dense_h_to_4h", 4 * h, h, kCutRows);
    bloom.Linear(place, name + "mlp.dense_4h_to_h", h, 4 * h, kCutColumns);
  }
  bloom.Norm(kOnLast, "transformer.ln_f", h);
  return std::move(bloom).Take();
}

Model MakeOpt(const ModelSizes& sizes, const Kept& kept) {
  constexpr std::int64_t kPositionOffset = 2;  // The first rows of the position table are never used.
  const std::int64_t h = sizes.at("hidden");
  const std::int64_t embedding = sizes.at("embedding");
  Builder opt(sizes.at("layers"), sizes.at("heads"), kept);
  const std::string decoder = "model.decoder.";
  opt.Weight(kOnBoth, decoder + "embed_tokens.weight", {sizes.at("vocabulary"), embedding}, kCutRows,
             kVocabularyMultiple);
  opt.Weight(kOnFirst, decoder + "embed_positions.weight", {sizes.at("positions") + kPositionOffset, h});
  if (embedding != h) {
    opt.Weight(kOnLast, decoder + "project_out.weight", {embedding, h});
    opt.Weight(kOnFirst, decoder + "project_in.weight", {h, embedding});
  }
  for (std::int64_t layer = 0; layer < sizes.at("layers"); ++layer) {
    const Place place{Stages::kOfLayer, layer};
    const std::string name = fmt::format("{}layers.{}.", decoder, layer);
    for (const char* part : {"k_proj", "v_proj", "q_proj"})
      opt.Linear(place, name + "self_attn." + part, h, h, kCutRows);
    opt.Linear(place, name + "self_attn.out_proj", h, h, kCutColumns);
    opt.Norm(place, name + "self_attn_layer_norm", h);
    opt.Linear(place, name + "fc1", sizes.at("ffn"), h, kCutRows);
    opt.Linear(place, name + "fc2", h, sizes.at("ffn"), kCutColumns);
    opt.Norm(place, name + "final_layer_norm", h);
  }
  if (sizes.at("pre_norm") != 0) opt.Norm(kOnLast, decoder + "final_layer_norm", h);
  return std::move(opt).Take();
}

/// One of T5's two stacks. Decoders attend to the encoders' output, too.
void AddT5Stack(Builder& t5, const ModelSizes& sizes, bool decodes) {
  constexpr std::int64_t kBuckets = 32;  // Of distances, for which attention has biases.
  const std::int64_t h = sizes.at("hidden");
  const std::int64_t inner = sizes.at("heads") * sizes.at("head_size");
  const std::string stack = decodes ? "decoder." : "encoder.";
  for (std::int64_t layer = 0; layer < sizes.at("layers"); ++layer) {
    const Place place{Stages::kOfLayer, layer + (decodes ? sizes.at("layers") : 0)};
    int part = 0;
    const auto next = [&] { return fmt::format("{}block.{}.layer.{}.", stack, layer, part++); };
    for (const char* attention : {"SelfAttention", "EncDecAttention"}) {
      const bool self = std::string_view(attention) == "SelfAttention";
      if (!self && !decodes) continue;
      const std::string name = next();
      for (const char* weight : {".q.weight", ".k.weight", ".v.weight"}) {
        t5.Weight(place, name + attention + weight, {inner, h}, kCutRows);
      }
      t5.Weight(place, name + attention + ".o.weight", {h, inner}, kCutColumns);
      if (self && layer == 0) {
        t5.Weight(place, name + attention + ".relative_attention_bias.weight", {kBuckets, sizes.at("heads")},
                  kCutColumns);
      }
      t5.Weight(place, name + "layer_norm.weight", {h});
    }
    const std::string name = next();
    t5.Weight(place, name + "DenseReluDense.wi.weight", {sizes.at("ffn"), h}, kCutRows);
    t5.Weight(place, name + "DenseReluDense.wo.weight", {h, sizes.at("ffn")}, kCutColumns);
    t5.Weight(place, name + "layer_norm.weight", {h});
  }
  const Place end = decodes ? kOnLast : Place{Stages::kOfLayer, sizes.at("layers") - 1};
  t5.Weight(end, stack + "final_layer_norm.weight", {h});
}

Model MakeT5(const ModelSizes& sizes, const Kept& kept) {
  Builder t5(2 * sizes.at("layers"), sizes.at("heads"), kept);
  t5.Weight(kOnBoth, "shared.weight", {sizes.at("vocabulary"), sizes.at("hidden")}, kCutRows, kVocabularyMultiple);
  AddT5Stack(t5, sizes, /*decodes=*/false);
  AddT5Stack(t5, sizes, /*decodes=*/true);
  return std::move(t5).Take();
}

/// The vocabulary's clusters: one table, if their embeddings are equally wide.
void AddTransformerXlWords(Builder& xl, const ModelSizes& sizes) {
  const std::int64_t h = sizes.at("hidden");
  const std::int64_t vocabulary = sizes.at("vocabulary");
  const std::array ends{sizes.at("cutoff1"), sizes.at("cutoff2"), sizes.at("cutoff3"), vocabulary};
  const bool one = sizes.at("div_val") == 1;
  std::int64_t begin = 0;
  std::int64_t width = h;
  for (std::size_t i = 0; i < ends.size(); ++i, width /= sizes.at("div_val")) {
    const std::int64_t words = one ? vocabulary : ends.at(i) - begin;
    begin = ends.at(i);
    xl.Weight(kOnBoth, fmt::format("transformer.word_emb.emb_layers.{}.weight", i), {words, width});
    xl.Weight(kOnLast, fmt::format("crit.out_layers.{}.bias", i), {words});
    if (one) break;
    xl.Weight(kOnBoth, fmt::format("transformer.word_emb.emb_projs.{}", i), {h, width});
  }
  if (!one) xl.Weight(kOnLast, "crit.out_projs.0", {h, h});
  constexpr std::int64_t kFurther = 3;  // Clusters after the first: entries of the head.
  xl.Weight(kOnLast, "crit.cluster_weight", {kFurther, h});
  xl.Weight(kOnLast, "crit.cluster_bias", {kFurther});
}

Model MakeTransformerXl(const ModelSizes& sizes, const Kept& kept) {
  const std::int64_t h = sizes.at("hidden");
  const std::int64_t heads = sizes.at("heads");
  const std::int64_t inner = heads * sizes.at("head_size");
  Builder xl(sizes.at("layers"), heads, kept);
  const auto add_biases = [&](const Place& place, const std::string& name) {
    for (const char* bias : {"r_w_bias", "r_r_bias"}) {
      xl.Weight(place, name + bias, {heads, sizes.at("head_size")}, kCutRows);
    }
  };
  AddTransformerXlWords(xl, sizes);
  if (sizes.at("untie_r") == 0) add_biases({Stages::kAll}, "transformer.");
  for (std::int64_t layer = 0; layer < sizes.at("layers"); ++layer) {
    const Place place{Stages::kOfLayer, layer};
    const std::string name = fmt::format("transformer.layers.{}.", layer);
    xl.Weight(place, name + "dec_attn.qkv_net.weight", {3 * inner, h}, kCutRows);
    xl.Weight(place, name + "dec_attn.o_net.weight", {h, inner}, kCutColumns);
    xl.Weight(place, name + "dec_attn.r_net.weight", {inner, h}, kCutRows);
    xl.Norm(place, name + "dec_attn.layer_norm", h);
    if (sizes.at("untie_r") != 0) add_biases(place, name + "dec_attn.");
    xl.Linear(place, name + "pos_ff.CoreNet.0", sizes.at("ffn"), h, kCutRows);
    xl.Linear(place, name + "pos_ff.CoreNet.3", h, sizes.at("ffn"), kCutColumns);
    xl.Norm(place, name + "pos_ff.layer_norm", h);
  }
  return std::move(xl).Take();
}

/// torchvision's VGG-16: 13 convolutions and three linear layers.
Model MakeVgg(const ModelSizes& sizes, const Kept& kept) {
  // Channels in multiples of the first block's; 0 is a pooling, which has a number but no weights.
  constexpr std::array<std::int64_t, 18> kLayers = {1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0};
  constexpr std::int64_t kPooled = 7 * 7;
  constexpr std::int64_t kWeighted = 16;
  Builder vgg(kWeighted, 0, kept);
  std::int64_t channels = 3;
  std::int64_t number = 0;
  std::int64_t layer = 0;
  for (const std::int64_t width : kLayers) {
    if (width == 0) {
      ++number;
      continue;
    }
    const std::int64_t out = width * sizes.at("width");
    const Place place{Stages::kOfLayer, layer++};
    vgg.Weight(place, fmt::format("features.{}.weight", number), {out, channels, 3, 3});
    vgg.Weight(place, fmt::format("features.{}.bias", number), {out});
    channels = out;
    number += 2;  // A ReLU follows.
  }
  const std::int64_t hidden = 64 * sizes.at("width");
  vgg.Linear({Stages::kOfLayer, layer++}, "classifier.0", hidden, channels * kPooled);
  vgg.Linear({Stages::kOfLayer, layer++}, "classifier.3", hidden, hidden);
  vgg.Linear({Stages::kOfLayer, layer++}, "classifier.6", sizes.at("classes"), hidden);
  return std::move(vgg).Take();
}

/// torchvision's ResNet of bottleneck blocks, which are `width` times as wide inside. A block is a layer.
Model MakeWideResnet(const ModelSizes& sizes, const Kept& kept) {
  constexpr std::int64_t kExpansion = 4;
  const std::int64_t all = (sizes.at("depth") - 2) / 3;
  const std::array<std::int64_t, 4> blocks = {3, 4, all - 10, 3};
  Builder resnet(all, 0, kept);
  const auto convolution = [&](const Place& place, const std::string& name, std::int64_t out, std::int64_t in,
                               std::int64_t side) {
    resnet.Weight(place, name + ".weight", {out, in, side, side});
  };
  convolution(kOnFirst, "conv1", 64, 3, 7);
  resnet.BatchNorm(kOnFirst, "bn1", 64);
  std::int64_t in = 64;
  std::int64_t layer = 0;
  for (std::size_t group = 0; group < blocks.size(); ++group) {
    const std::int64_t planes = std::int64_t{64} << group;
    const std::int64_t inner = planes * sizes.at("width");
    const std::int64_t out = planes * kExpansion;
    for (std::int64_t block = 0; block < blocks.at(group); ++block) {
      const Place place{Stages::kOfLayer, layer++};
      const std::string name = fmt::format("layer{}.{}.", group + 1, block);
      convolution(place, name + "conv1", inner, in, 1);
      resnet.BatchNorm(place, name + "bn1", inner);
      convolution(place, name + "conv2", inner, inner, 3);
      resnet.BatchNorm(place, name + "bn2", inner);
      convolution(place, name + "conv3", out, inner, 1);
      resnet.BatchNorm(place, name + "bn3", out);
      if (block == 0) {
        convolution(place, name + "downsample.0", out, in, 1);
        resnet.BatchNorm(place, name + "downsample.1", out);
      }
      in = out;
    }
  }
  resnet.Linear(kOnLast, "fc", sizes.at("classes"), in);
  return std::move(resnet).Take();
}

Model MakeGptOf(const ModelSizes& sizes, const Kept& kept) {
  return MakeGpt({.layers = sizes.at("layers"),
                  .hidden = sizes.at("hidden"),
                  .heads = sizes.at("heads"),
                  .feed_forward = 4 * sizes.at("hidden"),
                  .positions = sizes.at("positions"),
                  .vocabulary = sizes.at("vocabulary"),
                  .tied = !sizes.contains("untied"),
                  .kept = kept});
}

}  // namespace

Model MakeGpt(const GptSizes& sizes) {
  const std::int64_t h = sizes.hidden;
  const std::int64_t f = sizes.feed_forward;
  Builder gpt(sizes.layers, sizes.heads, sizes.kept);
  gpt.Weight(sizes.tied ? kOnBoth : kOnFirst, "embedding.word_embeddings.weight", {sizes.vocabulary, h}, kCutRows,
             sizes.vocabulary_multiple);
  gpt.Weight(kOnFirst, "embedding.position_embeddings.weight", {sizes.positions, h});
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    const Place place{Stages::kOfLayer, layer};
    const std::string name = fmt::format("encoder.layers.{}.", layer);
    gpt.Norm(place, name + "input_layernorm", h);
    gpt.Linear(place, name + "self_attention.query_key_value", 3 * h, h, kCutRows);
    gpt.Linear(place, name + "self_attention.dense", h, h, kCutColumns);
    gpt.Norm(place, name + "post_attention_layernorm", h);
    gpt.Linear(place, name + "mlp.dense_h_to_4h", f, h, kCutRows);
    gpt.Linear(place, name + "mlp.dense_4h_to_h", h, f, kCutColumns);
  }
  gpt.Norm(kOnLast, "encoder.final_layernorm", h);
  if (!sizes.tied) {
    gpt.Weight(kOnLast, "output_layer.weight", {sizes.vocabulary, h}, kCutRows, sizes.vocabulary_multiple);
  }
  return std::move(gpt).Take();
}

Model MakeModel(std::string_view family, const ModelSizes& sizes, const Kept& kept) {
  static const std::map<std::string_view, Model (*)(const ModelSizes&, const Kept&)> kFamilies = {
      {"bert", MakeBert}, {"bloom", MakeBloom},
      {"gpt", MakeGptOf}, {"opt", MakeOpt},
      {"t5", MakeT5},     {"transformer_xl", MakeTransformerXl},
      {"vgg", MakeVgg},   {"wide_resnet", MakeWideResnet}};
  return kFamilies.at(family)(sizes, kept);
}

}  // namespace cairn
