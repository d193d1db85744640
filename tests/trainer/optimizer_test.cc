#include "optimizer.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

namespace cairn::trainer {
namespace {

NamedTensor Parameter(const std::string& name, double value) {
  at::Tensor tensor = at::full({2}, value, at::kFloat);
  tensor.requires_grad_(true);
  return {name, tensor};
}

// Gives every element the gradient `slope`.
void Backward(const NamedTensor& parameter, double slope) { parameter.tensor.mul(slope).sum().backward(); }

double ValueOf(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble).view(-1)[0].item<double>(); }

class OptimizerTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(OptimizerTest, StepUsesTheAccumulatedSum) {
  const NamedTensor parameter = Parameter("p", 1);
  Optimizer optimizer({.weight_decay = 0, .weights = GetParam()}, {parameter});

  for (const double slope : {0.25, 0.5}) {
    Backward(parameter, slope);
    optimizer.Accumulate();
  }
  optimizer.Step(1);

  EXPECT_EQ(ValueOf(parameter.tensor), 0.25);
  EXPECT_FALSE(parameter.tensor.grad().defined());
}

TEST_P(OptimizerTest, AccumulatesBeyondBf16Precision) {
  const NamedTensor parameter = Parameter("p", 0);
  Optimizer optimizer({.weight_decay = 0, .weights = GetParam()}, {parameter});

  for (int i = 0; i < 300; ++i) {
    Backward(parameter, 1);
    optimizer.Accumulate();
  }
  optimizer.Step(1);

  EXPECT_EQ(ValueOf(parameter.tensor), -300);  // Summed in bf16, 256 and 1 are 256.
}

TEST_P(OptimizerTest, ClipsTheGlobalNormOnlyAboveTheLimit) {
  for (const auto& [limit, scale] : {std::pair{1.0, 0.2}, std::pair{10.0, 1.0}}) {
    const NamedTensor a = Parameter("a", 0);
    const NamedTensor b = Parameter("b", 0);
    Optimizer optimizer({.weight_decay = 0, .clip_norm = limit, .weights = GetParam()}, {a, b});

    Backward(a, 3 / std::sqrt(2));  // Two elements each: norms of 3 and 4, a global norm of 5.
    Backward(b, 4 / std::sqrt(2));
    optimizer.Accumulate();
    optimizer.Step(1);

    const double within = GetParam() == at::kFloat ? 1e-5 : 1e-2;
    EXPECT_NEAR(ValueOf(a.tensor) * std::sqrt(2), -3 * scale, 3 * within) << limit;
    EXPECT_NEAR(ValueOf(b.tensor) * std::sqrt(2), -4 * scale, 4 * within) << limit;
  }
}

TEST_P(OptimizerTest, TakesTheMemoryOfBytesFor) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    const NamedTensor parameter = Parameter("p", 0);
    const OptimizerConfig config{.kind = kind, .weights = GetParam()};
    const std::uint64_t said = Optimizer::BytesFor(config, {parameter});
    const std::uint64_t there = parameter.tensor.nbytes();
    const Optimizer optimizer(config, {parameter});
    std::uint64_t bytes = 2 * parameter.tensor.nbytes();                              // Parameter and gradient.
    if (GetParam() != at::kFloat) bytes += parameter.tensor.numel() * sizeof(float);  // The accumulated gradient.
    for (const NamedTensor& item : optimizer.state()) {
      if (item.name != "optimizer.step") bytes += item.tensor.nbytes();
    }

    EXPECT_EQ(said, bytes - there);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, OptimizerTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

TEST(Optimizer, MastersKeepFp32Precision) {
  const NamedTensor parameter = Parameter("p", 1);
  parameter.tensor.detach().add_(1.0 / 4096);

  const Optimizer optimizer({.weights = at::kBFloat16}, {parameter});

  EXPECT_EQ(ValueOf(optimizer.state().front().tensor), 1 + 1.0 / 4096);
  EXPECT_EQ(parameter.tensor.scalar_type(), at::kBFloat16);
  EXPECT_EQ(ValueOf(parameter.tensor), 1);
}

TEST(Optimizer, StepsTooSmallForBf16AddUpInTheMasters) {
  const NamedTensor parameter = Parameter("p", 1);
  Optimizer optimizer({.weight_decay = 0, .weights = at::kBFloat16}, {parameter});
  const at::Tensor master = optimizer.state().front().tensor;
  ASSERT_EQ(optimizer.state().front().name, "optimizer.master.p");
  const auto step = [&] {
    Backward(parameter, 1);
    optimizer.Accumulate();
    optimizer.Step(1.0 / 1024);  // A quarter of bf16's resolution below 1.
  };

  step();
  EXPECT_EQ(ValueOf(master), 1 - 1.0 / 1024);
  EXPECT_EQ(ValueOf(parameter.tensor), 1);

  step();
  step();
  EXPECT_NEAR(ValueOf(master), 1 - (1 + 1.9 + 2.71) / 1024, 1e-6);
  EXPECT_EQ(ValueOf(parameter.tensor), 1 - 4.0 / 1024);
}

TEST(Optimizer, Fp32HasNoMasters) {
  const NamedTensor parameter = Parameter("p", 1);
  const Optimizer optimizer({}, {parameter});

  ASSERT_EQ(optimizer.state().size(), 1U);
  EXPECT_EQ(optimizer.state().front().name, "optimizer.momentum.p");
}

}  // namespace
}  // namespace cairn::trainer
