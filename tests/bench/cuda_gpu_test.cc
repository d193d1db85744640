// The loop and the strategies on a CUDA GPU: in test_bench on a real one (skipped if there is none), in
// test_bench_fake_cuda on the driver's test double.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "bench/harness/restore_check.h"
#include "bench/workplace.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

class CudaGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Gpu>> opened = OpenCudaGpu();
    if (opened.status().code() == StatusCode::kUnsupported) GTEST_SKIP() << opened.status();
    ASSERT_TRUE(opened.ok()) << opened.status();
    gpu_ = *std::move(opened);
  }

  const TempDir directory_;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(CudaGpuTest, AStateMatchesOnlyItsStep) {
  ASSERT_FALSE(gpu_->emulated());
  const auto state = *TrainingState::Make(*gpu_, (20U << 20) + 4096, 3);
  ExpectOfOneStepAlone(*state);
  ASSERT_TRUE(state->Clear().ok());
  EXPECT_FALSE(*state->Is(7));
}

class CudaStrategyTest : public CudaGpuTest, public testing::WithParamInterface<std::string> {};

TEST_P(CudaStrategyTest, RestoresTheLastStepAfterTheStateIsOverwritten) {
  SmallWorkplace at(directory_.path(), std::move(gpu_));
  auto strategy = at.Open(GetParam());
  ASSERT_NE(strategy, nullptr);
  for (std::uint64_t step = 1; step <= 5; ++step) ASSERT_EQ(TrainAndSave(*strategy, at.state(), step), Status::Ok());
  ASSERT_EQ(strategy->BeforeUpdate(), Status::Ok());
  ASSERT_EQ(at.state().Update(6), Status::Ok());

  ASSERT_EQ(strategy->Drain(), Status::Ok());
  strategy.reset();

  EXPECT_EQ(CheckRestored(*FindStrategy(GetParam()), *at, 5), Status::Ok());
}

INSTANTIATE_TEST_SUITE_P(Writing, CudaStrategyTest, testing::Values("sync", "checkfreq", "gpm", "pccheck", "cairn"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace cairn::bench
