#include "models/bert.h"

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <stdexcept>

#include "models/layers.h"
#include "models/published.h"

namespace cairn::trainer {
namespace {

constexpr double kDropout = 0.1;
constexpr double kEpsilon = 1e-12;

struct Sizes {
  std::int64_t hidden, layers, heads, intermediate, vocabulary, positions, types;
};

Sizes SizesFor(const ModelConfig& config) {
  const auto& published = PublishedSizes(config.name);
  auto given = config.sizes;
  Sizes sizes{};
  sizes.hidden = TakeSize(given, "hidden", published);
  sizes.layers = TakeSize(given, "layers", published);
  sizes.heads = TakeSize(given, "heads", published);
  sizes.intermediate = TakeSize(given, "intermediate", published);
  sizes.vocabulary = TakeSize(given, "vocabulary", published);
  sizes.positions = TakeSize(given, "positions", published);
  sizes.types = TakeSize(given, "types", published);
  RejectUnknownSizes(given, "hidden layers heads intermediate vocabulary positions types");
  CheckHeads(sizes.hidden, sizes.heads);
  CheckPositions(config.data, sizes.positions);
  CheckVocabulary(config.data, sizes.vocabulary);
  if (sizes.types < 2) throw std::runtime_error("size types: expected at least 2, A and B, found 1");
  return sizes;
}

at::Tensor Embedding(Weights& weights, const std::string& name, std::int64_t rows, std::int64_t hidden) {
  return weights.Normal(name + ".weight", {rows, hidden});
}

struct Embeddings {
  at::Tensor word, position, token_type;
  LayerNorm norm;
  /// The padding token, whose embedding gets no gradient; -1 for none.
  std::int64_t padding;

  Embeddings(Weights weights, const Sizes& sizes, std::int64_t padded_with)
      : word(Embedding(weights, "word_embeddings", sizes.vocabulary, sizes.hidden)),
        position(Embedding(weights, "position_embeddings", sizes.positions, sizes.hidden)),
        token_type(Embedding(weights, "token_type_embeddings", sizes.types, sizes.hidden)),
        norm(weights.Under("LayerNorm"), sizes.hidden, kEpsilon),
        padding(padded_with) {
    const c10::NoGradGuard no_grad;
    if (padding >= 0) word.select(0, padding).zero_();
  }

  at::Tensor operator()(const at::Tensor& ids, const at::Tensor& types, bool training) const {
    const at::Tensor sum =
        at::embedding(word, ids, padding).add(at::embedding(token_type, types)).add(position.slice(0, 0, ids.size(1)));
    return at::dropout(norm(sum), kDropout, training);
  }
};

/// The end of each block: projection, dropout, residual and layer norm.
struct Output {
  Linear dense;
  LayerNorm norm;

  Output(const Weights& weights, std::int64_t in, std::int64_t hidden)
      : dense(weights.Under("dense"), in, hidden), norm(weights.Under("LayerNorm"), hidden, kEpsilon) {}
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& input, bool training) const {
    return norm(at::dropout(dense(x), kDropout, training).add(input));
  }
};

struct Attention {
  std::int64_t heads;
  Linear query, key, value;

  Attention(const Weights& weights, const Sizes& sizes)
      : heads(sizes.heads),
        query(weights.Under("query"), sizes.hidden, sizes.hidden),
        key(weights.Under("key"), sizes.hidden, sizes.hidden),
        value(weights.Under("value"), sizes.hidden, sizes.hidden) {}

  at::Tensor operator()(const at::Tensor& x, const std::optional<at::Tensor>& mask, bool training) const {
    const auto split = [&](const Linear& project) { return SplitHeads(project(x), heads); };
    return JoinHeads(
        at::scaled_dot_product_attention(split(query), split(key), split(value), mask, training ? kDropout : 0));
  }
};

struct Layer {
  Attention attention;
  Output attention_output;
  Linear intermediate;
  Output output;

  Layer(const Weights& weights, const Sizes& sizes)
      : attention(weights.Under("attention.self"), sizes),
        attention_output(weights.Under("attention.output"), sizes.hidden, sizes.hidden),
        intermediate(weights.Under("intermediate.dense"), sizes.hidden, sizes.intermediate),
        output(weights.Under("output"), sizes.intermediate, sizes.hidden) {}

  at::Tensor operator()(const at::Tensor& x, const std::optional<at::Tensor>& mask, bool training) const {
    const at::Tensor attended = attention_output(attention(x, mask, training), x, training);
    return output(at::gelu(intermediate(attended)), attended, training);
  }
};

class Encoder {
 public:
  Encoder(const Weights& weights, const Sizes& sizes, const DataShape& data)
      : embeddings_(weights.Under("embeddings"), sizes, PaddingOf(data)) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) {
      layers_.emplace_back(weights.Under("encoder.layer." + std::to_string(i)), sizes);
    }
  }

  /// Hidden states [n, length, hidden] for `ids` instead of the batch's tokens.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& ids, const Batch& batch, bool training) const {
    at::Tensor x = embeddings_(ids, batch.at("token_type_ids"), training);
    std::optional<at::Tensor> mask;  // The same for every head and query.
    if (const auto at = batch.find("attention_mask"); at != batch.end()) mask = at->second.unsqueeze(1).unsqueeze(1);
    for (const Layer& layer : layers_) x = layer(x, mask, training);
    return x;
  }
  [[nodiscard]] const at::Tensor& word_embeddings() const { return embeddings_.word; }

 private:
  static std::int64_t PaddingOf(const DataShape& data) {
    const auto at = data.special.find("[PAD]");
    return at == data.special.end() ? -1 : at->second;
  }

  Embeddings embeddings_;
  std::vector<Layer> layers_;
};

/// Chooses the tokens to predict, and what replaces them.
class Masking {
 public:
  Masking(const DataShape& data, at::Device device) : vocabulary_(data.classes), mask_(data.special.at("[MASK]")) {
    std::vector<std::int64_t> special;
    for (const auto& [name, number] : data.special) special.push_back(number);
    special_ = at::tensor(special, at::kLong).to(device);
  }

  struct Drawn {
    /// True for the tokens to predict.
    at::Tensor chosen;
    at::Tensor ids;
  };
  /// Draws like transformers' DataCollatorForLanguageModeling, in the same order.
  [[nodiscard]] Drawn Draw(const at::Tensor& ids) const {
    constexpr double kChosen = 0.15;
    constexpr double kMasked = 0.8;
    constexpr double kRandomOfTheRest = 0.5;
    const auto probability = [&](double of) { return at::full_like(ids, of, ids.options().dtype(at::kFloat)); };
    const auto draw = [](const at::Tensor& of) { return at::bernoulli(of).to(at::kBool); };
    const at::Tensor chosen = draw(probability(kChosen).masked_fill(at::isin(ids, special_), 0));
    const at::Tensor masked = draw(probability(kMasked)).logical_and(chosen);
    const at::Tensor random = draw(probability(kRandomOfTheRest)).logical_and(chosen).logical_and(~masked);
    const at::Tensor words = at::randint_like(ids, vocabulary_);
    return {chosen, at::where(random, words, ids.masked_fill(masked, mask_))};
  }

 private:
  std::int64_t vocabulary_;
  std::int64_t mask_;
  at::Tensor special_;
};

class PreTraining {
 public:
  PreTraining(const Weights& weights, const Sizes& sizes, const ModelConfig& config)
      : bert_(weights.Under("bert"), sizes, config.data),
        pooler_(weights.Under("bert.pooler.dense"), sizes.hidden, sizes.hidden),
        bias_(weights.Under("cls.predictions").Constant("bias", sizes.vocabulary, 0)),
        transform_(weights.Under("cls.predictions.transform.dense"), sizes.hidden, sizes.hidden),
        norm_(weights.Under("cls.predictions.transform.LayerNorm"), sizes.hidden, kEpsilon),
        seq_relationship_(weights.Under("cls.seq_relationship"), sizes.hidden, 2),
        masking_(config.data, config.device) {}

  [[nodiscard]] at::Tensor Loss(const Batch& batch) const {
    const at::Tensor& ids = batch.at("input_ids");
    const auto [chosen, masked] = masking_.Draw(ids);
    const at::Tensor x = bert_(masked, batch, /*training=*/true);
    // Most of the work is proportional to the vocabulary, so only the chosen tokens are computed.
    const at::Tensor guessed = at::nonzero(chosen.flatten()).squeeze(1);
    const at::Tensor words = Predictions(x.flatten(0, 1).index_select(0, guessed));
    const at::Tensor lost =
        at::cross_entropy_loss(words.to(at::kFloat), ids.flatten().index_select(0, guessed), {}, at::Reduction::Sum);
    // A short batch may have no chosen token.
    const auto count = static_cast<double>(std::max<std::int64_t>(guessed.size(0), 1));
    return lost.div(count).add(at::cross_entropy_loss(Relationship(x).to(at::kFloat), batch.at("next_sentence_label")));
  }

  [[nodiscard]] at::Tensor Logits(const Batch& batch) const {
    const at::Tensor x = bert_(batch.at("input_ids"), batch, /*training=*/false);
    return at::cat({Predictions(x).flatten(), Relationship(x).flatten()});
  }

 private:
  [[nodiscard]] at::Tensor Predictions(const at::Tensor& x) const {
    return at::linear(norm_(at::gelu(transform_(x))), bert_.word_embeddings(), bias_);
  }
  [[nodiscard]] at::Tensor Relationship(const at::Tensor& x) const {
    return seq_relationship_(at::tanh(pooler_(x.select(1, 0))));
  }

  Encoder bert_;
  Linear pooler_;
  at::Tensor bias_;
  Linear transform_;
  LayerNorm norm_;
  Linear seq_relationship_;
  Masking masking_;
};

class QuestionAnswering {
 public:
  QuestionAnswering(const Weights& weights, const Sizes& sizes, const ModelConfig& config)
      : bert_(weights.Under("bert"), sizes, config.data), qa_outputs_(weights.Under("qa_outputs"), sizes.hidden, 2) {}

  [[nodiscard]] at::Tensor Loss(const Batch& batch) const {
    const at::Tensor logits = Logits(batch, /*training=*/true).to(at::kFloat);
    const auto lost = [&](std::int64_t which, const char* positions) {
      return at::cross_entropy_loss(logits.select(2, which), batch.at(positions));
    };
    return lost(0, "start_positions").add(lost(1, "end_positions")).div(2);
  }
  [[nodiscard]] at::Tensor Logits(const Batch& batch, bool training = false) const {
    return qa_outputs_(bert_(batch.at("input_ids"), batch, training));
  }

 private:
  Encoder bert_;
  Linear qa_outputs_;
};

template <typename Bert>
Model Make(const ModelConfig& config) {
  Model model;
  const auto bert = std::make_shared<const Bert>(Weights(config.device, model.parameters), SizesFor(config), config);
  model.loss = [bert](const Batch& batch) { return bert->Loss(batch); };
  model.logits = [bert](const Batch& batch) {
    const c10::NoGradGuard no_grad;
    return bert->Logits(batch);
  };
  return model;
}

using Kind = ConfigField::Kind;
constexpr std::array kFields = {
    ConfigField{Kind::kSize, "hidden_size", "hidden"},
    ConfigField{Kind::kSize, "num_hidden_layers", "layers"},
    ConfigField{Kind::kSize, "num_attention_heads", "heads"},
    ConfigField{Kind::kSize, "intermediate_size", "intermediate"},
    ConfigField{Kind::kSize, "vocab_size", "vocabulary"},
    ConfigField{Kind::kSize, "max_position_embeddings", "positions"},
    ConfigField{Kind::kSize, "type_vocab_size", "types"},
    ConfigField{Kind::kFixed, "hidden_dropout_prob", "0.1"},
    ConfigField{Kind::kFixed, "attention_probs_dropout_prob", "0.1"},
    ConfigField{Kind::kFixed, "hidden_act", "\"gelu\""},
    ConfigField{Kind::kFixed, "layer_norm_eps", "1e-12"},
    ConfigField{Kind::kFixed, "position_embedding_type", "\"absolute\""},
    ConfigField{Kind::kFixed, "is_decoder", "false"},
    ConfigField{Kind::kFixed, "add_cross_attention", "false"},
    ConfigField{Kind::kFixed, "tie_word_embeddings", "true"},
};

}  // namespace

const ConfigLayout kBertConfig{.model_type = "bert", .fields = kFields};

Model MakeBert(const ModelConfig& config) {
  const bool answers = config.data.kind == DataKind::kQuestions;
  Model model = answers ? Make<QuestionAnswering>(config) : Make<PreTraining>(config);
  model.stem = "bert.";
  if (answers) {
    model.head = "qa_outputs.";
    model.other_heads = {"bert.pooler.", "cls."};
  } else {
    model.tied = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                  {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  }
  return model;
}

}  // namespace cairn::trainer
