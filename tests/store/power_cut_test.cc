// Replays what each operation may leave after a power cut, on a disk that kept exactly what it promised.

#include "support/power_cut.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "store/list.h"
#include "store/names.h"
#include "store/pins.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "support/points.h"
#include "support/recording_queue.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

/// A checkpoint that must exist from one moment until another.
struct Promise {
  std::size_t since;
  TestSave save;
  std::size_t until = ~std::size_t{0};
};

class PowerCutTest : public ::testing::Test {
 protected:
  /// The step is durable from now on.
  void Promised(const TestSave& save) { promises_.push_back({recording_->size(), save}); }
  /// From the next operation on it may be replaced or removed.
  void Released(std::uint64_t step) {
    for (Promise& promise : promises_) {
      if (promise.save.step == step) promise.until = std::min(promise.until, recording_->size());
    }
  }
  void SaveNow(const TestSave& save) {
    saves_.push_back(save);
    ASSERT_EQ(SaveTo(*queue_, root_, save), Status::Ok());
    Promised(save);
  }
  void OpenNow(const SparePolicy& spares = {}) {
    const auto opened = OpenRoot(*queue_, root_, spares);
    ASSERT_TRUE(opened.ok()) << opened.status();
  }

  /// Every listed step is one of the saves, complete, and pinned if that was committed pinned.
  void CheckNothingIsBroken(const std::string& root) const {
    if (!fs::exists(root)) return;
    for (const std::uint64_t step : GoodSteps(root)) {
      const bool whole = std::any_of(saves_.begin(), saves_.end(), [&](const TestSave& save) {
        return save.step == step && CheckContent(root, save).ok() &&
               (!save.pin || FindPin(root + "/" + StepName(step)) == PinOwner::kUser);
      });
      EXPECT_TRUE(whole) << "step " << step;
    }
  }

  [[nodiscard]] std::size_t TakeOvers() const { return plan_->Count({.op = IoOp::kRename, .path = ".spare-0/"}); }

  /// Every state that a power cut after `since` operations or more may leave.
  void CutEach(std::size_t since, const std::function<void(const std::string& root, std::size_t upto)>& check) const {
    const Points points = SomePoints(1);
    for (std::size_t upto = since + points.first; upto <= recording_->size(); upto += points.stride) {
      for (const PowerCut cut :
           {PowerCut{}, PowerCut{.data = true}, PowerCut{.entries = true}, PowerCut{.data = true, .entries = true}}) {
        SCOPED_TRACE(fmt::format("power cut after {} of {} operations, data {}, entries {}", upto, recording_->size(),
                                 cut.data, cut.entries));
        MemoryDir after;
        const std::string tree = after / "tree";
        ASSERT_EQ(MaterializeAfterPowerCut(*recording_, upto, tree, cut), Status::Ok());
        check(tree + root_.substr(base_.path().size()), upto);
        if (HasFailure()) return;
      }
    }
  }

  void CutEverywhere() const {
    CutEach(0, [this](const std::string& root, std::size_t upto) {
      CheckNothingIsBroken(root);
      for (const Promise& promise : promises_) {
        if (promise.since > upto || promise.until < upto) continue;
        EXPECT_EQ(CheckContent(root, promise.save), Status::Ok());
      }
      // The same after the next writer's sweep.
      const auto queue = MakeQueue();
      ASSERT_EQ(OpenRoot(*queue, root).status(), Status::Ok());
      CheckNothingIsBroken(root);
      for (const Promise& promise : kept_) {
        if (promise.since > upto) continue;
        EXPECT_THAT(GoodSteps(root), ::testing::Contains(promise.save.step));
      }
    });
  }

  MemoryDir base_;
  const std::string root_ = base_ / "a/root";
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::shared_ptr<Recording> recording_ = Recording::Make(base_.path());
  std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(recording_->Wrap(PlainFactory())));
  std::vector<TestSave> saves_;
  std::vector<Promise> promises_;
  // Whoever opens the root finds a checkpoint of these steps.
  std::vector<Promise> kept_;
};

TEST_F(PowerCutTest, NoAcknowledgedSaveIsLost) {
  OpenNow();
  SaveNow({.step = 1, .shards = 2});
  SaveNow({.step = 2, .shards = 2});

  CutEverywhere();
}

// A process killed between mkdir and the fsync of the parent leaves a folder that exists but is not durable.
TEST_F(PowerCutTest, NoAcknowledgedSaveIsLostInFoldersOfAKilledProcess) {
  ASSERT_TRUE(RunBlocking(*queue_, {.op = IoOp::kMkdir, .path = base_ / "a", .mode = 0755}).ok());
  OpenNow();
  SaveNow({.step = 1});

  CutEverywhere();
}

TEST_F(PowerCutTest, NoAcknowledgedSaveIsLostInARootOfAKilledProcess) {
  fs::create_directory(base_ / "a");
  recording_ = Recording::Make(base_.path());  // What exists now is durable.
  queue_ = MakeQueue(plan_->Wrap(recording_->Wrap(PlainFactory())));
  ASSERT_TRUE(RunBlocking(*queue_, {.op = IoOp::kMkdir, .path = root_, .mode = 0755}).ok());
  OpenNow();
  SaveNow({.step = 1});

  CutEverywhere();
}

TEST_F(PowerCutTest, ReplacedStepIsOldOrNew) {
  OpenNow();
  SaveNow({.step = 1, .seed = 1});
  SaveNow({.step = 2});
  Released(1);
  SaveNow({.step = 1, .seed = 2, .replace = true});

  CutEverywhere();
}

TEST_F(PowerCutTest, StepReplacedInTwoRenamesIsOldOrNewAtTheNextOpen) {
  plan_->RefuseRenameFlags();
  OpenNow();
  SaveNow({.step = 1, .seed = 1});
  kept_ = promises_;
  Released(1);
  SaveNow({.step = 1, .seed = 2, .shards = 2, .replace = true});

  CutEverywhere();
}

TEST_F(PowerCutTest, StepThatReplacedAnotherStaysRemoved) {
  plan_->RefuseRenameFlags();
  OpenNow();
  SaveNow({.step = 1, .seed = 1});
  SaveNow({.step = 2});
  Released(1);
  SaveNow({.step = 1, .seed = 2, .replace = true});
  Released(1);
  ASSERT_EQ(Remove(*queue_, root_, 1), Status::Ok());
  const std::size_t gone = recording_->size();
  SaveNow({.step = 3});

  CutEverywhere();
  for (std::size_t upto = gone; upto <= recording_->size(); ++upto) {
    MemoryDir after;
    const std::string tree = after / "tree";
    ASSERT_EQ(MaterializeAfterPowerCut(*recording_, upto, tree, {.entries = true}), Status::Ok());
    const std::string root = tree + root_.substr(base_.path().size());
    const auto queue = MakeQueue();
    ASSERT_EQ(OpenRoot(*queue, root).status(), Status::Ok());
    EXPECT_THAT(GoodSteps(root), ::testing::Not(::testing::Contains(1))) << upto;
  }
}

TEST_F(PowerCutTest, RemovedStepIsWholeOrAbsent) {
  OpenNow();
  SaveNow({.step = 1, .shards = 2});
  SaveNow({.step = 2});
  Released(1);
  ASSERT_EQ(Remove(*queue_, root_, 1), Status::Ok());
  SaveNow({.step = 3});

  CutEverywhere();
}

TEST_F(PowerCutTest, SavesIntoRecycledFilesLoseNothing) {
  OpenNow();
  SaveNow({.step = 1, .shards = 2});
  SaveNow({.step = 2, .shards = 2});
  Released(1);
  ASSERT_EQ(Retire(*queue_, root_, 1, 2), Status::Ok());
  SaveNow({.step = 3, .shards = 2, .recycle = true, .more = 2});
  Released(2);
  ASSERT_EQ(Retire(*queue_, root_, 2, 2), Status::Ok());
  Released(3);
  SaveNow({.step = 3, .seed = 1, .shards = 2, .replace = true, .recycle = true});
  ASSERT_EQ(TakeOvers(), 4U) << "two ranks, two saves";

  CutEverywhere();
}

TEST_F(PowerCutTest, SavesOfOneRankIntoRecycledFilesLoseNothing) {
  OpenNow();
  SaveNow({.step = 1});
  SaveNow({.step = 2});
  Released(1);
  ASSERT_EQ(Retire(*queue_, root_, 1), Status::Ok());
  SaveNow({.step = 3, .recycle = true, .more = 2});
  ASSERT_EQ(TakeOvers(), 1U);

  CutEverywhere();
}

TEST_F(PowerCutTest, RetirementOfUnknownOutcomeMakesNoSpare) {
  OpenNow();
  SaveNow({.step = 1});
  SaveNow({.step = 2});
  plan_->CallBefore({.op = IoOp::kRename}, [this](const SeenOperation&) { plan_->Fail({.op = IoOp::kFsync}, EIO); });
  Released(1);
  ASSERT_EQ(Retire(*queue_, root_, 1).code(), StatusCode::kUnknownOutcome);
  plan_->Clear();
  SaveNow({.step = 3, .recycle = true});
  ASSERT_EQ(TakeOvers(), 0U);

  CutEverywhere();
}

TEST_F(PowerCutTest, SweepAfterAnInterruptedRemovalBreaksNothing) {
  // Given a removal that was interrupted between its rename and the fsync of the root.
  OpenNow();
  SaveNow({.step = 1, .shards = 2});
  SaveNow({.step = 2});
  Released(1);
  plan_->CallBefore({.op = IoOp::kRename}, [this](const SeenOperation&) { plan_->Fail({.op = IoOp::kFsync}, EIO); });
  ASSERT_EQ(Remove(*queue_, root_, 1).code(), StatusCode::kUnknownOutcome);
  plan_->Clear();

  OpenNow();

  CutEverywhere();
}

TEST_F(PowerCutTest, SweepAfterAnInterruptedReplacementBreaksNothing) {
  OpenNow();
  SaveNow({.step = 1, .seed = 1});
  Released(1);
  plan_->CallBefore({.op = IoOp::kRename}, [this](const SeenOperation&) { plan_->Fail({.op = IoOp::kFsync}, EIO); });
  const TestSave fresh{.step = 1, .seed = 2, .replace = true};
  saves_.push_back(fresh);
  ASSERT_EQ(SaveTo(*queue_, root_, fresh).code(), StatusCode::kUnknownOutcome);
  plan_->Clear();

  OpenNow();
  Promised(fresh);

  CutEverywhere();
}

TEST_F(PowerCutTest, SavesIntoFilesOfASweptAttemptLoseNothing) {
  OpenNow();
  SaveNow({.step = 1, .shards = 2});
  {
    const TestSave half{.step = 2, .shards = 2};
    TestRanks killed(*queue_, root_, half);
    ASSERT_EQ(killed.Begin(), Status::Ok());
    ASSERT_EQ(killed.Write(), Status::Ok());
  }
  OpenNow({.folders = 1, .shards = 2});
  if (!fs::exists(root_ + "/" + SpareName(0))) GTEST_SKIP() << "no file can be recycled here";
  SaveNow({.step = 3, .shards = 2, .recycle = true});
  ASSERT_EQ(TakeOvers(), 2U);

  CutEverywhere();
}

// A pin is the one before a change or the one after it, whole, and the latter once the change has returned.
TEST_F(PowerCutTest, APinIsTheOldOneOrTheNewOne) {
  OpenNow();
  SaveNow({.step = 1});
  struct Set {
    std::size_t begun;
    std::size_t done;
    std::optional<PinOwner> owner;
  };
  std::vector<Set> sets{{.begun = 0, .done = recording_->size(), .owner = std::nullopt}};
  using Owner = std::optional<PinOwner>;
  for (const Owner owner : {Owner(PinOwner::kBest), Owner(PinOwner::kUser), Owner(PinOwner::kBest), Owner()}) {
    const std::size_t begun = recording_->size();
    ASSERT_EQ(SetPin(*queue_, root_, 1, owner, 0644), Status::Ok());
    sets.push_back({.begun = begun, .done = recording_->size(), .owner = owner});
  }

  CutEach(sets.front().done, [&](const std::string& root, std::size_t upto) {
    std::vector<Owner> possible;
    for (const Set& set : sets) {
      if (set.done <= upto) possible = {set.owner};
      if (set.done > upto && set.begun < upto) possible.push_back(set.owner);
    }
    EXPECT_THAT(possible, ::testing::Contains(FindPin(root + "/" + StepName(1))));
    const auto queue = MakeQueue();
    ASSERT_EQ(OpenRoot(*queue, root).status(), Status::Ok());
    EXPECT_THAT(Names(root), ::testing::UnorderedElementsAre(kLockName, kWriterName, StepName(1)));
  });
}

TEST_F(PowerCutTest, ASaveThatPinsIsNeverThereWithoutItsPin) {
  OpenNow();
  SaveNow({.step = 1, .shards = 2, .pin = true});
  SaveNow({.step = 2, .seed = 1});
  ASSERT_EQ(SetPin(*queue_, root_, 2, PinOwner::kBest, 0644), Status::Ok());
  Released(2);
  SaveNow({.step = 2, .seed = 2, .replace = true, .pin = true});

  CutEverywhere();
}

TEST_F(PowerCutTest, AReplacedStepsPinStaysWithItsText) {
  for (const bool refuses : {false, true}) {
    if (refuses) plan_->RefuseRenameFlags();
    const TestSave first{.step = refuses ? 2U : 1U, .seed = 1};
    OpenNow();
    SaveNow(first);
    ASSERT_EQ(SetPin(*queue_, root_, first.step, PinOwner::kBest, 0644), Status::Ok());
    const std::size_t pinned = recording_->size();
    Released(first.step);
    SaveNow({.step = first.step, .seed = 2, .replace = true});

    CutEach(pinned, [&](const std::string& root, std::size_t) {
      const auto queue = MakeQueue();
      ASSERT_EQ(OpenRoot(*queue, root).status(), Status::Ok());
      EXPECT_EQ(FindPin(root + "/" + StepName(first.step)), PinOwner::kBest);
    });
  }
}

}  // namespace
}  // namespace cairn
