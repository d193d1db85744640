// Lets each operation of a publication, a replacement and a removal fail, and cuts the power after each.

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "publish_case.h"
#include "support/points.h"
#include "support/power_cut.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

/// What a path may hold from a moment on: steps, 0 for nothing.
struct Period {
  std::size_t since;
  std::vector<std::uint64_t> allowed;
};

class PublishFaultTest : public PublishCase {
 protected:
  TestSave Save() {
    saves_.push_back({.step = ++step_, .shards = step_ % 2 + 1});
    return saves_.back();
  }
  /// Records from here on; what exists now is durable.
  void Record() {
    periods_.clear();
    StartRecording();
  }
  /// From now on the path must hold one of these.
  void Allow(std::vector<std::uint64_t> steps) { periods_.push_back({recording_->size(), std::move(steps)}); }
  [[nodiscard]] std::size_t CountOperations(const std::function<void()>& run) const {
    const std::size_t before = plan_->Count({});
    run();
    return plan_->Count({}) - before;
  }

  void Replace() {
    const TestSave save = Save();
    Stage(save);
    std::vector<std::uint64_t> allowed = periods_.back().allowed;
    allowed.push_back(save.step);
    Allow(allowed);
    ASSERT_EQ(PublishNow(save.step), Status::Ok());
    Allow({save.step});
  }

  void CheckAfter(std::size_t upto, PowerCut cut) const {
    const auto period =
        std::find_if(periods_.rbegin(), periods_.rend(), [&](const auto& one) { return one.since <= upto; });
    MemoryDir after;
    const std::string tree = after / "tree";
    ASSERT_EQ(MaterializeAfterPowerCut(*recording_, upto, tree, cut), Status::Ok());
    const std::string root = tree + root_.substr(base_.path().size());
    const std::string path = tree + path_.substr(base_.path().size());
    std::vector<std::uint64_t> allowed = period->allowed;
    const std::uint64_t found = StepAt(path, saves_);
    EXPECT_THAT(allowed, ::testing::Contains(found));

    const auto queue = MakeQueue();
    OpenFolder(*queue, root);

    EXPECT_THAT(allowed, ::testing::Contains(StepAt(path, saves_)));
  }
  void CutEverywhere(std::size_t from = 0) const {
    for (std::size_t upto = std::max(from, periods_.front().since); upto <= recording_->size(); ++upto) {
      for (const PowerCut cut :
           {PowerCut{}, PowerCut{.data = true}, PowerCut{.entries = true}, PowerCut{.data = true, .entries = true}}) {
        SCOPED_TRACE(fmt::format("power cut after {} of {} operations, data {}, entries {}", upto, recording_->size(),
                                 cut.data, cut.entries));
        CheckAfter(upto, cut);
        if (HasFailure()) return;
      }
    }
  }

  std::uint64_t step_ = 0;
  std::vector<TestSave> saves_;
  std::vector<Period> periods_{{0, {0}}};
};

TEST_F(PublishFaultTest, FailedReplacementLeavesTheOldOrTheNewCheckpointWhole) {
  StageAndPublish(Save());
  Stage(Save());
  const std::size_t operations = CountOperations([this] { ASSERT_EQ(PublishNow(step_), Status::Ok()); });
  for (const int error : {EIO, EINTR}) {
    for (const bool after : {false, true}) {
      for (std::size_t k = 1; k <= operations; ++k) {
        SCOPED_TRACE(
            fmt::format("{} {} operation {} of {}", std::strerror(error), after ? "after" : "at", k, operations));
        const std::uint64_t old = step_;
        const TestSave fresh = Save();
        Stage(fresh);
        after ? plan_->FailAfter({.nth = k}, error) : plan_->Fail({.nth = k}, error);

        const Status status = PublishNow(fresh.step);

        plan_->Clear();
        const std::uint64_t found = StepAt(path_, saves_);
        EXPECT_TRUE(found == old || found == fresh.step) << found << ": " << status;
        if (status.ok()) {
          EXPECT_EQ(found, fresh.step);
        } else if (status.code() != StatusCode::kUnknownOutcome) {
          EXPECT_EQ(found, old) << status;
          EXPECT_EQ(CheckContent(root_, fresh), Status::Ok());
        }
        Open();
        EXPECT_EQ(StepAt(path_, saves_), found);
        EXPECT_THAT(Staged(), IsEmpty());
        if (found != fresh.step) StageAndPublish(Save());
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(PublishFaultTest, FailedRemovalLeavesTheCheckpointOrNothing) {
  StageAndPublish(Save());
  const std::size_t operations = CountOperations([this] { ASSERT_EQ(RemoveNow(), Status::Ok()); });
  for (const bool after : {false, true}) {
    for (std::size_t k = 1; k <= operations; ++k) {
      SCOPED_TRACE(fmt::format("{} operation {} of {}", after ? "after" : "at", k, operations));
      StageAndPublish(Save());
      after ? plan_->FailAfter({.nth = k}, EIO) : plan_->Fail({.nth = k}, EIO);

      const Status status = RemoveNow();

      plan_->Clear();
      const std::uint64_t found = StepAt(path_, saves_);
      EXPECT_TRUE(found == 0 || !status.ok());
      EXPECT_TRUE(found == step_ || status.ok() || status.code() == StatusCode::kUnknownOutcome) << status;
      Open();
      EXPECT_EQ(StepAt(path_, saves_), found);
      EXPECT_THAT(Staged(), IsEmpty());
      if (HasFailure()) return;
    }
  }
}

TEST_F(PublishFaultTest, NoPowerCutLosesAPublishedCheckpoint) {
  Replace();
  Replace();
  Replace();
  Allow({step_, 0});
  ASSERT_EQ(RemoveNow(), Status::Ok());
  Allow({0});

  CutEverywhere();
}

// Renames of a killed process may not be on the disk: the next writer must not rely on them.
TEST_F(PublishFaultTest, NoPowerCutLosesTheCheckpointAKilledProcessReplaced) {
  StageAndPublish(Save());
  Stage(Save());
  const std::size_t operations = CountOperations([this] { ASSERT_EQ(PublishNow(step_), Status::Ok()); });
  const Points points = SomePoints(1);
  for (std::size_t k = 1 + points.first; k <= operations; k += points.stride) {
    SCOPED_TRACE(fmt::format("killed after operation {} of {}", k, operations));
    const std::uint64_t old = StepAt(path_, saves_);
    const TestSave fresh = Save();
    Stage(fresh);
    Record();
    Allow({old, fresh.step});
    plan_->CallAfter({.nth = k}, [this](const SeenOperation&) { plan_->Fail({}, EIO); });
    static_cast<void>(PublishNow(fresh.step));
    plan_->Clear();
    const std::size_t killed = recording_->size();
    Open();
    Allow({StepAt(path_, saves_)});

    CutEverywhere(killed);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cairn
