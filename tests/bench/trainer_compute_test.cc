#include "bench/harness/trainer_compute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/harness/flags.h"
#include "bench/harness/products.h"
#include "bench/harness/restore_check.h"
#include "bench/harness/run.h"
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
                         testing::Values("sync", "torch-save", "checkfreq", "gpm", "gemini", "pccheck", "cairn"),
                         [](const auto& test) {
                           return test.param == "torch-save" ? std::string("torch_save") : test.param;
                         });

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

TEST(ProductsTest, TakeAboutTheTimeThatIsAskedFor) {
  const auto products = *OpenProducts(false);
  const auto seconds_of = [&](double asked) {
    const LoopClock clock = RealClock();
    EXPECT_EQ(products->Run(asked), Status::Ok());
    return clock.now();
  };

  // No product is cut: the shortest run has one.
  EXPECT_GT(seconds_of(0), 0);
  // A busy machine takes longer, but never a fraction of the time.
  EXPECT_GT(seconds_of(0.2), 0.02);
}

TEST(ProductsTest, ProductsOnAGpuNeedOne) {
  const Status status = OpenProducts(true).status();

  if (status.ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("--device cuda"));
}

TEST(ProductsTest, ALoopOfProductsSavesAndRestores) {
  const TempDir directory;
  const Result<Flags> flags = Resolve({.strategy = "cairn",
                                       .directory = directory.path(),
                                       .device = "emulated",
                                       .compute = "products",
                                       .state_bytes = 8U << 20,
                                       .tensors = 4,
                                       .iteration_seconds = 0.01,
                                       .every = 2,
                                       .iterations = 4,
                                       .host_memory_bytes = 64U << 20,
                                       .network = "loopback",
                                       .update_seconds = 0.001});
  ASSERT_TRUE(flags.ok()) << flags.status();

  const auto run = cairn::bench::Train(*flags);

  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->restored, 4U);
}

}  // namespace
}  // namespace cairn::bench
