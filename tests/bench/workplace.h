#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bench/emulation/gpu.h"
#include "bench/harness/training_state.h"
#include "bench/strategies/strategy.h"
#include "testing/temp_dir.h"

namespace cairn::bench {

/// The environment of strategies in tests: a state of several chunks, a link slow enough that copies take noticeable
/// time, and a directory. Starts its own threads, so a forked child must make its own.
class SmallWorkplace {
 public:
  static constexpr std::uint64_t kBytes = 8U << 20;

  explicit SmallWorkplace(const std::string& directory, std::unique_ptr<Gpu> gpu = EmulateGpu(1e9))
      : gpu_(std::move(gpu)),
        state_(*TrainingState::Make(*gpu_, kBytes, 7)),
        workplace_{.directory = directory,
                   .memory = memory_.path(),
                   .state = *state_,
                   .gpu = *gpu_,
                   .in_flight = 2,
                   .host_memory_bytes = 64U << 20,
                   .disk = nullptr,
                   .durable = [](std::uint64_t) {}} {
    EXPECT_EQ(state_->Initialize(), Status::Ok());
  }

  [[nodiscard]] TrainingState& state() { return *state_; }
  [[nodiscard]] Workplace& operator*() { return workplace_; }
  /// Opens the strategy of this name. On failure, the test fails and the result is null.
  [[nodiscard]] std::unique_ptr<Strategy> Open(const std::string& name) {
    const Result<StrategyKind> kind = FindStrategy(name);
    EXPECT_TRUE(kind.ok()) << kind.status();
    if (!kind.ok()) return nullptr;
    auto opened = kind->open(workplace_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }

 private:
  const TempDir memory_{"/dev/shm"};
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<TrainingState> state_;
  Workplace workplace_;
};

/// The state must match its step and no other.
inline void ExpectOfOneStepAlone(TrainingState& state) {
  ASSERT_TRUE(state.Initialize().ok());
  EXPECT_TRUE(*state.Is(0));
  ASSERT_TRUE(state.Update(7).ok());
  EXPECT_TRUE(*state.Is(7));
  EXPECT_FALSE(*state.Is(0));
  EXPECT_FALSE(*state.Is(8));
}

/// One iteration without compute time: the update as soon as it is allowed, and the save.
inline Status TrainAndSave(Strategy& strategy, TrainingState& state, std::uint64_t step) {
  if (Status status = strategy.BeforeUpdate(); !status.ok()) return status;
  if (Status status = state.Update(step); !status.ok()) return status;
  return strategy.Save(step);
}

}  // namespace cairn::bench
