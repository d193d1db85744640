// A storm on the driver's double: saves of one GPU or both, fences, restores beside them, CPUs that are late,
// and the loss of a GPU, in an order that a seed chooses. Whatever happens: every checkpoint is of one step, what one
// GPU does not need goes on without it, and nothing of the driver's is left.
//
// CUDA_STORM_SEEDS=FIRST:COUNT in the environment runs others than the committed seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
constexpr std::uint32_t kActions = 24;

// What is saved: all tensors, or those of one GPU.
using Part = std::optional<std::size_t>;

class Storm {
 public:
  explicit Storm(std::uint64_t seed) : random_(seed), kernels_(seed % 2 == 0), gpu_checksums_(seed % 3 != 0) {}

  void Run() {
    fake_cuda::SetDriverVersion(Choose({13000, 12040, 12080}));
    if (kernels_) fake_cuda::DefineCairnsKernels();
    {
      model_.emplace(2, kernels_);
      targets_.emplace(2, kernels_);
      auto opened = Checkpointer::Open(MakeOptions());
      ASSERT_TRUE(opened.ok()) << opened.status();
      checkpointer_ = *std::move(opened);
      std::atomic<bool> over = false;
      std::thread late([&] { HoldWaits(over); });
      std::thread restoring([&] { Restore(over); });
      for (std::uint32_t action = 1; action <= kActions && !testing::Test::HasFailure(); ++action) Act(action);
      over = true;
      late.join();
      restoring.join();
      const Status drained = checkpointer_->Drain(Soon());
      EXPECT_TRUE(drained.ok() || MayFail(drained)) << drained;
      for (const auto& [step, save] : saves_) ExpectEnded(step, save);
      checkpointer_.reset();
      targets_.reset();
      model_.reset();
    }
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
    EXPECT_EQ(fake_cuda::BlockedLaunches(), 0);
    EXPECT_EQ(fake_cuda::LiveObjects(), 0) << fake_cuda::DescribeLiveObjects();
  }

  // With GPUs that work again.
  void ExpectOneStepEach() {
    CudaModel model(2, kernels_);
    auto opened = Checkpointer::Open({.root = directory_ / "run",
                                      .read_only = true,
                                      .host_memory_bytes = 4 * kMiB,
                                      .chunk_bytes = kMiB,
                                      .queue_depth = 2});
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto listed = (*opened)->List();
    ASSERT_TRUE(listed.ok()) << listed.status();
    for (const CheckpointInfo& info : *listed) {
      const auto step = static_cast<std::uint32_t>(info.step);
      const Part part = saves_.at(step).part;
      const auto restored = (*opened)->Restore(Step(step), StateOf(model, part), {.streams = Streams(model, part)});
      ASSERT_TRUE(restored.ok()) << restored.status();
      model.Expect(step, part);
    }
  }

 private:
  struct Saved {
    SaveHandle handle;
    Part part;
  };

  template <typename Value>
  Value Choose(std::initializer_list<Value> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random_() % values.size()));
  }

  Options MakeOptions() {
    return {.root = directory_ / "run",
            .keep_last = 0,
            .max_in_flight = Choose({1, 2, 3}),
            .host_memory_bytes = Choose<std::uint64_t>({2, 4, 16}) * kMiB,
            .chunk_bytes = kMiB,
            .queue_depth = 2,
            .worker_threads = 1,
            .copy_streams = Choose({1, 2, 3}),
            .staging_bytes = Choose<std::uint64_t>({0, 1, 4}) * kMiB,
            .cuda_devices = Choose<std::vector<int>>({{}, {0}, {1}, {0, 1}}),
            .gpu_checksums = gpu_checksums_};
  }

  static const State& StateOf(const CudaModel& model, Part part) {
    return part ? model.state_of(*part) : model.state();
  }
  static std::vector<Stream> Streams(const CudaModel& model, Part part) {
    return part ? std::vector{model.streams()[*part]} : model.streams();
  }
  [[nodiscard]] bool Lost(Part part) const { return lost_ && (!part || *part == *lost_); }
  // Only what a lost GPU had a part in, and only so.
  [[nodiscard]] bool MayFail(const Status& status) const {
    return lost_.has_value() && status.code() == StatusCode::kDeviceError;
  }

  void Act(std::uint32_t action) {
    switch (random_() % 12) {
      case 0:
        return Lose();
      case 1: {
        const std::size_t gpu = random_() % 2;
        const Status fenced = checkpointer_->Fence(model_->streams()[gpu], Soon());
        EXPECT_EQ(fenced.code(), Lost(gpu) ? StatusCode::kDeviceError : StatusCode::kOk) << fenced;
        return;
      }
      case 2: {
        const Status drained = checkpointer_->Drain(Soon());
        EXPECT_TRUE(drained.ok() || MayFail(drained)) << drained;
        return;
      }
      default:
        return Save(action, Choose<Part>({std::nullopt, 0, 1}));
    }
  }

  // At most once.
  void Lose() {
    const std::size_t gpu = random_() % 6;
    if (gpu > 1 || lost_) return;
    const std::unique_lock lock(looking_);
    lost_ = gpu;
    fake_cuda::SetSticky(CUDA_ERROR_ILLEGAL_ADDRESS, static_cast<int>(gpu));
  }

  void Save(std::uint32_t step, Part part) {
    // As an optimizer does: each GPU's tensors change only behind a fence on its stream.
    for (std::size_t gpu = 0; gpu < 2; ++gpu) {
      if ((part && gpu != *part) || Lost(gpu)) continue;
      const Status fenced = checkpointer_->Fence(model_->streams()[gpu], Soon());
      ASSERT_EQ(fenced, Status::Ok());
      model_->Write(step, gpu);
    }
    auto save = checkpointer_->Save(step, StateOf(*model_, part), {.streams = Streams(*model_, part)});
    if (!save.ok()) {
      EXPECT_TRUE(Lost(part) && save.status().code() == StatusCode::kDeviceError) << save.status();
      return;
    }
    const std::scoped_lock lock(mutex_);
    saves_.emplace(step, Saved{*std::move(save), part});
  }

  void ExpectEnded(std::uint32_t step, const Saved& save) const {
    const Status status = save.handle.WaitDurable(Soon());
    EXPECT_TRUE(status.ok() || (Lost(save.part) && MayFail(status))) << "step " << step << ": " << status;
  }

  // Beside the training, into tensors of its own.
  void Restore(const std::atomic<bool>& over) {
    std::size_t next = 0;
    while (!over && !testing::Test::HasFailure()) {
      std::vector<std::pair<std::uint32_t, Part>> durable;
      {
        const std::scoped_lock lock(mutex_);
        for (const auto& [step, save] : saves_) {
          if (save.handle.stats().phase == SavePhase::kDurable) durable.emplace_back(step, save.part);
        }
      }
      if (durable.empty()) {
        std::this_thread::yield();
        continue;
      }
      const auto [step, part] = durable[next++ * 7 % durable.size()];
      const auto restored =
          checkpointer_->Restore(Step(step), StateOf(*targets_, part), {.streams = Streams(*targets_, part)});
      const std::shared_lock lock(looking_);
      if (!restored.ok()) {
        EXPECT_TRUE(Lost(part) && MayFail(restored.status())) << restored.status();
      } else if (!Lost(part)) {
        targets_->Expect(step, part);
      }
    }
  }

  static void HoldWaits(const std::atomic<bool>& over) {
    while (!over) {
      fake_cuda::HoldWaits();
      for (int turn = 0; turn < 200; ++turn) std::this_thread::yield();
      fake_cuda::ReleaseWaits();
      for (int turn = 0; turn < 200; ++turn) std::this_thread::yield();
    }
  }

  const TempDir directory_;
  std::mt19937_64 random_;
  const bool kernels_;
  const bool gpu_checksums_;
  std::optional<CudaModel> model_;
  std::optional<CudaModel> targets_;
  std::unique_ptr<Checkpointer> checkpointer_;
  // Held while a GPU is lost, and shared while a test looks at what is on it.
  std::shared_mutex looking_;
  // Written by the training alone.
  std::optional<std::size_t> lost_;
  std::mutex mutex_;
  std::map<std::uint32_t, Saved> saves_;
};

std::pair<std::uint64_t, std::uint64_t> Seeds() {
  const char* const set = std::getenv("CUDA_STORM_SEEDS");
  unsigned long first = 1;
  unsigned long count = kSanitized ? 3 : 12;
  if (set != nullptr && std::sscanf(set, "%lu:%lu", &first, &count) != 2) ADD_FAILURE() << set;
  return {first, count};
}

TEST(CudaStorm, EveryCheckpointIsOfOneStepAndNothingIsLeft) {
  const auto [first, count] = Seeds();
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(testing::Message() << "CUDA_STORM_SEEDS=" << seed << ":1");
    fake_cuda::Reset();
    fake_cuda::SetSchedule(seed);
    Storm storm(seed);

    storm.Run();
    fake_cuda::Reset();
    if (seed % 2 == 0) fake_cuda::DefineCairnsKernels();
    storm.ExpectOneStepEach();

    if (testing::Test::HasFailure()) break;
  }
  fake_cuda::Reset();
}

}  // namespace
}  // namespace cairn
