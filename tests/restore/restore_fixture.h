#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "api/shared_restore.h"
#include "group/solo_group.h"
#include "restore/reader.h"
#include "support/checkpoint_writer.h"
#include "testing/temp_dir.h"

namespace cairn {

/// The restore of a process alone that is rank `rank`.
[[nodiscard]] inline Result<Restored> RestoreSelected(const RestoreParts& parts, const std::string& root,
                                                      const Selector& selector, int rank, const State& state,
                                                      const RestoreOptions& options) {
  const RestoreCall call{.plan = [&](const CheckpointInfo&) {
    return ReadPlan{.state = state, .options = options, .own_shard = parts.own_shard};
  }};
  SoloGroup solo;
  std::atomic<std::uint64_t> round = 0;
  return RestoreTogether({.parts = parts,
                          .root = root,
                          .selector = selector,
                          .call = call,
                          .group = solo,
                          .rank = rank,
                          .next_round = round,
                          .readable = {}});
}

/// Memory for restored tensors, filled with a pattern that no restore produces.
class Targets {
 public:
  static constexpr char kUntouched = '\x5a';

  /// Adds a target of the saved tensor's dtype and shape.
  void Add(const SavedTensor& saved, DeviceId device = {}) { Add(saved.name, saved, device); }
  void Add(const std::string& name, const SavedTensor& saved, DeviceId device = {}) {
    std::string& memory = memory_[name];
    memory.assign(saved.bytes.size(), kUntouched);
    const Status added = state.Add(
        name,
        {.data = memory.data(), .dtype = saved.dtype, .shape = saved.shape, .device = device, .part = saved.part});
    EXPECT_TRUE(added.ok()) << added;
  }
  [[nodiscard]] const std::string& operator[](const std::string& name) const { return memory_.at(name); }
  [[nodiscard]] bool untouched() const {
    for (const auto& [name, memory] : memory_) {
      if (memory != std::string(memory.size(), kUntouched)) return false;
    }
    return true;
  }

  State state;

 private:
  std::map<std::string, std::string> memory_;
};

class RestoreTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kChunk = kChecksumBlock;
  static constexpr int kDepth = 4;

  RestoreTest() { MakePool(kDepth); }

  void MakePool(int chunks) {
    auto pool = BufferPool::Make(static_cast<std::uint64_t>(chunks) * kChunk, kChunk, 1);
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
  }
  [[nodiscard]] RestoreParts Parts(int depth = kDepth) {
    auto choice = ChooseIoQueue(IoQueueKind::kAuto, depth);
    EXPECT_TRUE(choice.ok()) << choice.status();
    return {.queue = choice->factory, .pool = pool_.get(), .workers = &workers_, .queue_depth = depth};
  }
  [[nodiscard]] const std::string& root() const { return directory_.path(); }
  [[nodiscard]] static StoredCheckpoint Read(const std::string& folder) {
    auto checkpoint = ReadCheckpointFolder(folder);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? *checkpoint : StoredCheckpoint{};
  }
  /// Restores the checkpoint in `folder` as rank 0.
  [[nodiscard]] Result<Restored> Restore(const std::string& folder, const Targets& targets,
                                         const RestoreOptions& options = {}) {
    return RestoreSelected(Parts(), {}, Folder(folder), 0, targets.state, options);
  }

  TempDir directory_;
  WorkerPool workers_{"restore-test", 2};
  std::unique_ptr<BufferPool> pool_;
};

}  // namespace cairn
