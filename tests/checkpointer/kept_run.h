#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "support/checkpoint_writer.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {

inline constexpr std::uint64_t kSeed = 77;
inline constexpr std::uint64_t kFrozenBytes = 160'001 * 8;

/// Saves of a frozen tensor beside what changes.
class Kept : public testing::Test {
 protected:
  Kept() { frozen_.Fill(kSeed); }

  void Open(std::uint64_t keep_last = 0, const std::function<void(Options&, Wiring&)>& change = {}) {
    Options options = SmallOptions(root());
    options.keep_last = keep_last;
    options.on_event = [this](const Event& event) {
      MutexLock lock(mutex_);
      if (event.message.find("frozen") != std::string::npos) warnings_.push_back(event.message);
    };
    Wiring wiring = Through(plan_);
    wiring.frozen_every = frozen_every_;
    if (change) change(options, wiring);
    checkpointer_ = OpenOrFail(options, wiring);
    ASSERT_NE(checkpointer_, nullptr);
  }
  [[nodiscard]] std::vector<std::uint64_t> Suspects() {
    std::vector<std::uint64_t> steps;
    const auto list = checkpointer_->List();
    EXPECT_TRUE(list.ok()) << list.status();
    for (const CheckpointInfo& info : list.ok() ? *list : std::vector<CheckpointInfo>()) {
      if (info.suspect) steps.push_back(info.step);
    }
    return steps;
  }
  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] std::string Folder(std::uint64_t step) const { return fmt::format("{}/step-{:020}", root(), step); }
  /// What the folder's manifest says of its kept files.
  [[nodiscard]] std::vector<ManifestShard> KeptOf(std::uint64_t step) const {
    std::vector<ManifestShard> kept;
    for (ManifestShard& shard : ReadManifest(Folder(step)).shards) {
      if (shard.kept) kept.push_back(std::move(shard));
    }
    return kept;
  }
  /// The path of its only kept file.
  [[nodiscard]] std::string KeptPath(std::uint64_t step) const {
    const std::vector<ManifestShard> kept = KeptOf(step);
    EXPECT_THAT(kept, testing::SizeIs(1)) << "step " << step;
    return kept.empty() ? "" : Folder(step) + "/" + kept.front().file;
  }
  [[nodiscard]] bool Linked(std::uint64_t a, std::uint64_t b) const {
    return std::filesystem::equivalent(KeptPath(a), KeptPath(b));
  }

  Status Save(std::uint64_t step, const State& state, const SaveOptions& options = {}) {
    const auto save = checkpointer_->Save(step, state, options);
    if (!save.ok()) return save.status();
    const Status status = save->WaitDurable(Soon());
    written_ = save->stats().bytes_written;
    return status.ok() ? checkpointer_->Drain(Soon()) : status;
  }
  /// The small state of the step beside the frozen tensor.
  Status Save(std::uint64_t step, const SaveOptions& options = {}) {
    const auto small = SmallState(step);
    return Save(step, frozen_.With(small->state()), options);
  }
  /// Every checkpoint verifies, and has the small state of its step and the frozen tensor as it was first.
  void ExpectWhole() {
    for (const std::uint64_t step : ListedSteps(*checkpointer_)) {
      EXPECT_EQ(checkpointer_->Verify(Step(step)), Status::Ok());
      const auto small = SmallState(0);
      const auto restored = ReadAlone(*checkpointer_, Step(step), small->state(), {.resume = false});
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_TRUE(Holds(*small, step)) << "step " << step;
    }
    ExpectFrozen(*checkpointer_, kSeed);
  }
  [[nodiscard]] std::vector<std::string> warnings() {
    MutexLock lock(mutex_);
    return warnings_;
  }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::optional<std::uint64_t> frozen_every_;
  FrozenTensor frozen_;
  std::uint64_t written_ = 0;
  Mutex mutex_;
  std::vector<std::string> warnings_ CAIRN_GUARDED_BY(mutex_);
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace cairn
