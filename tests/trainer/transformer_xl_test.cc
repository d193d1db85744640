#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "models/adaptive.h"
#include "models/model.h"

namespace cairn::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kLength = 4;
constexpr std::int64_t kVocabulary = 50;

ModelConfig Small(const std::map<std::string, std::int64_t>& sizes = {}) {
  ModelConfig config{.name = "transformer-xl-base",
                     .data = {.kind = DataKind::kTextStreams, .classes = kVocabulary, .rows = kRows},
                     .sizes = sizes};
  config.sizes.insert({{"hidden", 8},
                       {"layers", 2},
                       {"heads", 2},
                       {"head_size", 4},
                       {"ffn", 16},
                       {"memory", 6},
                       {"vocabulary", kVocabulary}});
  return config;
}

Batch Segment(bool begins = false) {
  return {{"input_ids", at::randint(kVocabulary, {kRows, kLength}, at::kLong)},
          {"labels", at::randint(kVocabulary, {kRows, kLength}, at::kLong)},
          {"begins", at::full({kRows}, begins, at::kBool)}};
}

class TransformerXlMemory : public ::testing::Test {
 protected:
  TransformerXlMemory() {
    model_.logits(Segment());
    model_.advance();
  }

  const Model model_ = MakeModel(Small());
  const at::Tensor memory_ = model_.buffers.at(0).tensor;
};

TEST_F(TransformerXlMemory, IsWrittenOnlyByAdvance) {
  const at::Tensor before = memory_.clone();

  model_.loss(Segment()).backward();
  model_.logits(Segment());

  EXPECT_TRUE(memory_.equal(before)) << "a save may still be reading it";
  model_.advance();
  EXPECT_FALSE(memory_.equal(before));
  const at::Tensor after = memory_.clone();
  model_.advance();
  EXPECT_TRUE(memory_.equal(after)) << "there was nothing to write";
}

TEST_F(TransformerXlMemory, HoldsTheLastTokensAcrossBatches) {
  const at::Tensor before = memory_.clone();
  const Batch first = Segment();
  const Batch second = Segment();

  model_.logits(first);
  const at::Tensor accumulated = model_.logits(second);
  model_.advance();

  const at::Tensor at_once = memory_.clone();
  memory_.copy_(before);
  model_.logits(first);
  model_.advance();
  EXPECT_TRUE(memory_.slice(2, 0, 2).equal(before.slice(2, kLength))) << "of 6 tokens, 4 are new";
  EXPECT_TRUE(model_.logits(second).equal(accumulated));
  model_.advance();
  EXPECT_TRUE(memory_.equal(at_once));
}

TEST_F(TransformerXlMemory, IsZeroForRowsThatBegin) {
  Batch segment = Segment();
  segment["begins"][1] = true;

  const at::Tensor remembered = model_.logits(segment);
  model_.advance();

  EXPECT_EQ(memory_.select(1, 1).slice(1, 0, 2).abs().max().item<float>(), 0) << "nothing from before the row began";
  EXPECT_GT(memory_.select(1, 0).slice(1, 0, 2).abs().max().item<float>(), 0);
  memory_.zero_();
  const at::Tensor fresh = model_.logits(segment);
  EXPECT_TRUE(fresh[1].equal(remembered[1]));
  EXPECT_FALSE(fresh[0].equal(remembered[0]));
}

TEST(TransformerXl, EveryParameterHasAGradientForAnyTokens) {
  const Model model = MakeModel(Small({{"cutoff1", 10}, {"cutoff2", 20}, {"cutoff3", 30}, {"div_val", 2}}));
  Batch batch = Segment();
  batch["input_ids"].zero_();
  batch["labels"].zero_();

  model.loss(batch).backward();

  for (const NamedTensor& parameter : model.parameters)
    EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
}

TEST(TransformerXl, RefusesSizesThatDoNotFit) {
  const auto expect_refused = [](const std::map<std::string, std::int64_t>& sizes, const std::string& why) {
    EXPECT_THAT([&] { MakeModel(Small(sizes)); }, ThrowsMessage<std::runtime_error>(HasSubstr(why)));
  };

  expect_refused({{"hidden", 9}}, "size hidden: expected an even number, found 9");
  expect_refused({{"memory", 0}}, "--size memory: expected 1 to 268435456, found 0");
  expect_refused({{"cutoff1", 20}, {"cutoff2", 20}}, "size cutoff2: expected more than 20, the previous one, found 20");
  expect_refused({{"cutoff1", 20}, {"div_val", 9}},
                 "size div_val: expected the last cluster's embeddings to keep some of hidden, 8, found 9");
  expect_refused({{"untie_r", 2}}, "--size untie_r: expected 0 or 1, found 2");
  expect_refused({{"vocabulary", 49}}, "the data's vocabulary has 50 tokens, the model's 49");
  expect_refused({{"positions", 1}}, "--size positions: unknown size; this model has: hidden layers heads head_size");
}

class AdaptiveSoftmaxTest : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(AdaptiveSoftmaxTest, LossMatchesItsProbabilities) {
  std::vector<NamedTensor> parameters;
  const Weights weights(at::kCPU, parameters);
  const AdaptiveEmbedding embedding(weights, {.ends = {10, 20, 40}, .divisor = GetParam()}, 8);
  const AdaptiveSoftmax softmax(weights, embedding, 8);
  for (const NamedTensor& parameter : parameters) parameter.tensor.detach().normal_();
  const at::Tensor hidden = at::randn({100, 8});
  const at::Tensor labels = at::randint(40, {100}, at::kLong);

  const at::Tensor log_probabilities = softmax.LogProbabilities(hidden);

  // Of numbers around -50, an error in the seventh digit is one in the fifth of their exponential.
  EXPECT_TRUE(log_probabilities.exp().sum(-1).allclose(at::ones({100}), 1e-4));
  const at::Tensor of_labels = log_probabilities.gather(1, labels.unsqueeze(1));
  EXPECT_NEAR(softmax.Loss(hidden, labels).item<float>(), -of_labels.mean().item<float>(), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Divisors, AdaptiveSoftmaxTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace cairn::trainer
