#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/names.h"
#include "store/publish.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "testing/recording_queue.h"

namespace cairn {

/// A folder with paths, and the root of those who write them in it.
class PublishCase : public ::testing::Test {
 protected:
  PublishCase() {
    std::filesystem::create_directories(root_);
    StartRecording();
    Open();
  }

  /// With what is there now on the disk.
  void StartRecording() {
    recording_ = Recording::Make(base_.path());
    queue_ = MakeQueue(plan_->Wrap(recording_->Wrap(PlainFactory())));
  }
  void Stage(const TestSave& save) { ASSERT_EQ(SaveTo(*queue_, root_, save), Status::Ok()); }
  Status PublishNow(std::uint64_t step, Deadline deadline = Deadline::Infinite()) {
    return Publish(*queue_, root_, step, path_, {.deadline = deadline}, left_);
  }
  Status RemoveNow(Deadline deadline = Deadline::Infinite()) {
    return RemovePublished(*queue_, root_, path_, {.deadline = deadline}, left_);
  }
  void StageAndPublish(const TestSave& save) {
    Stage(save);
    ASSERT_EQ(PublishNow(save.step), Status::Ok());
  }

  /// Opens the root as the next writer, who publishes every step: what is left of them in the root is nobody's.
  void Open() { OpenFolder(*queue_, root_); }
  static void OpenFolder(IoQueue& queue, const std::string& root) {
    ASSERT_EQ(OpenRoot(queue, root).status(), Status::Ok());
    for (const std::string& name : Names(root)) {
      const std::optional<std::uint64_t> step = ParseStepName(name);
      if (step) {
        ASSERT_EQ(Remove(queue, root, *step), Status::Ok());
      }
    }
  }

  /// The step of the save that a path holds, whole; 0 where it has nothing.
  [[nodiscard]] static std::uint64_t StepAt(const std::string& path, const std::vector<TestSave>& saves) {
    if (!std::filesystem::exists(path)) return 0;
    // Most often it is one of the newest.
    const auto found = std::find_if(saves.rbegin(), saves.rend(),
                                    [&path](const TestSave& save) { return CheckFolder(path, save).ok(); });
    if (found != saves.rend()) return found->step;
    ADD_FAILURE() << path << " holds none of the saves whole";
    return 0;
  }
  /// What the root holds but for its writer's files.
  [[nodiscard]] std::vector<std::string> Staged() const {
    std::vector<std::string> names = Names(root_);
    std::erase_if(names, [](const std::string& name) { return name == kLockName || name == kWriterName; });
    return names;
  }

  MemoryDir base_;
  const std::string folder_ = base_ / "run";
  const std::string root_ = folder_ + "/.cairn";
  const std::string path_ = folder_ + "/last.ckpt";
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::shared_ptr<Recording> recording_;
  std::unique_ptr<IoQueue> queue_;
  Leftovers left_;
};

}  // namespace cairn
