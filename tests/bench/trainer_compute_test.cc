#include "bench/harness/trainer_compute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/harness/restore_check.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using testing::HasSubstr;

const TrainerSettings kSmall{.model = "opt-125m",
                             .sizes = {{"hidden", 64}, {"layers", 2}, {"heads", 2}, {"ffn", 128}, {"positions", 64}},
                             .batch = 1,
                             .sequence = 16};

Status Train(TrainerCompute& trainer, std::uint64_t step) {
  if (Status status = trainer.Forward(0); !status.ok()) return status;
  return trainer.Update(step);
}

class TrainerStrategyTest : public testing::TestWithParam<std::string> {};

// A real state during training: odd sizes, tensors of 4 bytes among large ones, scattered memory.
TEST_P(TrainerStrategyTest, RestoresARealModelAndItsOptimizer) {
  const TempDir directory;
  const auto trainer = *OpenTrainer(kSmall);
  const auto gpu = EmulateGpu(1e9);
  const Workplace at{.directory = directory.path(),
                     .state = trainer->state(),
                     .gpu = *gpu,
                     .host_memory_bytes = 64U << 20,
                     .chunk_bytes = 1U << 20,
                     .disk = nullptr,
                     .durable = [](std::uint64_t) {}};
  const StrategyKind kind = *FindStrategy(GetParam());
  {
    const auto strategy = *kind.open(at);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(trainer->Forward(0).ok());
      ASSERT_TRUE(strategy->BeforeUpdate().ok());
      ASSERT_TRUE(trainer->Update(step).ok());
      ASSERT_TRUE(strategy->Save(step).ok());
    }
    ASSERT_TRUE(trainer->Keep(3).ok());
    ASSERT_TRUE(trainer->Forward(0).ok());
    ASSERT_TRUE(strategy->BeforeUpdate().ok());
    ASSERT_TRUE(trainer->Update(4).ok());
    ASSERT_TRUE(strategy->Drain().ok());
  }

  ASSERT_FALSE(*trainer->state().Is(3));
  EXPECT_EQ(CheckRestored(kind, at, 3), Status::Ok());
}

INSTANTIATE_TEST_SUITE_P(Every, TrainerStrategyTest,
                         testing::Values("sync", "checkfreq", "gpm", "gemini", "pccheck", "cairn"),
                         [](const auto& test) { return test.param; });

TEST(TrainerComputeTest, MatchesChecksEveryByteOfTheStep) {
  const auto trainer = *OpenTrainer(kSmall);
  ASSERT_TRUE(Train(*trainer, 1).ok());

  ASSERT_TRUE(trainer->Keep(1).ok());

  EXPECT_TRUE(*trainer->state().Is(1));
  EXPECT_FALSE(*trainer->state().Is(2));
  for (const DeviceState::Tensor& tensor : trainer->state().tensors()) {
    tensor.memory().back() ^= std::byte{1};
    EXPECT_FALSE(*trainer->state().Is(1)) << tensor.name;
    tensor.memory().back() ^= std::byte{1};
  }
  EXPECT_TRUE(*trainer->state().Is(1));
}

TEST(TrainerComputeTest, NamesUnknownModelsAndSizes) {
  const Status model = OpenTrainer({.model = "gpt"}).status();
  const Status size = OpenTrainer({.model = "opt-125m", .sizes = {{"width", 3}}}).status();

  EXPECT_EQ(model.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(model.message(), HasSubstr("gpt"));
  EXPECT_EQ(size.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(size.message(), HasSubstr("width"));
}

}  // namespace
}  // namespace cairn::bench
