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
#include "support/recording_queue.h"

namespace cairn {

/// A folder with published paths, and the writer's root in it.
class PublishCase : public ::testing::Test {
 protected:
  PublishCase() {
    std::filesystem::create_directories(root_);
    StartRecording();
    Open();
  }

  /// What exists now counts as durable.
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

  /// Opens the root as the next writer, which publishes every step and so removes steps left in the root.
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

  /// The step of the save at a path, if complete; 0 if nothing is there.
  [[nodiscard]] static std::uint64_t StepAt(const std::string& path, const std::vector<TestSave>& saves) {
    if (!std::filesystem::exists(path)) return 0;
    // Usually one of the newest.
    const auto found = std::find_if(saves.rbegin(), saves.rend(),
                                    [&path](const TestSave& save) { return CheckFolder(path, save).ok(); });
    if (found != saves.rend()) return found->step;
    ADD_FAILURE() << path << " holds none of the saves completely";
    return 0;
  }
  /// The root's entries except the writer's files.
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
