// Saves, fences and restores of GPU tensors through the CUDA code, on the driver's double, in many of the orders in
// which the streams may run: no save may mix two steps, and nothing may be done that the real driver would punish.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>

#include "cairn/cairn.h"
#include "checkpointer/cuda_model.h"
#include "device/fake_cuda.h"
#include "support/patience.h"
#include "support/sanitizer.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::IsEmpty;

constexpr std::uint64_t kMiB = 1 << 20;

struct Machine {
  std::string name;
  int gpus = 1;
  std::uint64_t pool = 0;
  std::uint64_t staging = 0;

  friend std::ostream& operator<<(std::ostream& out, const Machine& machine) { return out << machine.name; }
};

Options OptionsFor(const std::string& root, const Machine& machine) {
  return {.root = root,
          .keep_last = 0,
          .max_in_flight = 2,
          .host_memory_bytes = machine.pool,
          .chunk_bytes = kMiB,
          .queue_depth = 2,
          .worker_threads = 1,
          .staging_bytes = machine.staging,
          .cuda_devices = {0}};
}

class CudaSchedule : public testing::TestWithParam<Machine> {
 protected:
  void Run(std::uint64_t seed) {
    fake_cuda::Reset();
    fake_cuda::SetSchedule(seed);
    const bool kernels = seed % 2 == 0;
    if (kernels) fake_cuda::DefineCairnsKernels();
    CudaModel model(GetParam().gpus, kernels);
    const TempDir directory;
    auto opened = Checkpointer::Open(OptionsFor(directory / "run", GetParam()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    const std::unique_ptr<Checkpointer> checkpointer = *std::move(opened);
    const auto fence = [&] {
      for (const Stream stream : model.streams()) ASSERT_EQ(checkpointer->Fence(stream, Soon()), Status::Ok());
    };

    for (std::uint32_t step = 1; step <= 2; ++step) {
      fence();
      model.Write(step);
      const auto save = checkpointer->Save(step, model.state(), {.streams = model.streams()});
      ASSERT_TRUE(save.ok()) << save.status();
    }
    fence();
    model.Write(9);
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

    for (std::uint32_t step = 1; step <= 2; ++step) {
      model.Write(10 + step);
      const auto restored = checkpointer->Restore(Step(step), model.state(), {.streams = model.streams()});
      ASSERT_TRUE(restored.ok()) << restored.status();
      model.Expect(step);
    }
  }
};

TEST_P(CudaSchedule, SavesMixNoStepsAndRestoresAreExact) {
  for (std::uint64_t seed = 1; seed <= (kSanitized ? 4 : 20); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Run(seed);
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
    EXPECT_EQ(fake_cuda::BlockedLaunches(), 0);
    EXPECT_EQ(fake_cuda::LiveObjects(), 0);
    if (HasFailure()) break;
  }
  fake_cuda::Reset();
}

// On a busy host the threads that wait for copies may wake seconds late: whoever waits for copies alone must not feel
// it.
TEST(CudaLateCpu, HoldsTheSaveButNeitherTheFenceNorTheTrainersStream) {
  fake_cuda::Reset();
  const Machine machine{"", 2, 16 * kMiB, 0};
  {
    CudaModel model(machine.gpus, false);
    const TempDir directory;
    auto opened = Checkpointer::Open(OptionsFor(directory / "run", machine));
    ASSERT_TRUE(opened.ok()) << opened.status();
    const std::unique_ptr<Checkpointer> checkpointer = *std::move(opened);
    model.Write(1);
    fake_cuda::HoldWaits();

    const auto save = checkpointer->Save(1, model.state(), {.streams = model.streams()});
    ASSERT_TRUE(save.ok()) << save.status();
    for (const Stream stream : model.streams()) ASSERT_EQ(checkpointer->Fence(stream, Soon()), Status::Ok());
    model.Write(2);
    model.Expect(2);
    EXPECT_LT(save->stats().phase, SavePhase::kCaptured);
    fake_cuda::ReleaseWaits();

    EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
    EXPECT_TRUE(checkpointer->Restore(Latest(), model.state(), {.streams = model.streams()}).ok());
    model.Expect(1);
  }
  EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
  fake_cuda::Reset();
}

INSTANTIATE_TEST_SUITE_P(
    Machine, CudaSchedule,
    testing::Values(Machine{"pool_of_the_state", 1, 16 * kMiB, 0}, Machine{"small_pool", 1, 2 * kMiB, 0},
                    Machine{"staged", 1, 2 * kMiB, 8 * kMiB}, Machine{"staged_in_part", 1, 2 * kMiB, 2 * kMiB},
                    Machine{"two_gpus", 2, 16 * kMiB, 0}, Machine{"two_gpus_staged_in_part", 2, 2 * kMiB, 1 * kMiB}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cairn
