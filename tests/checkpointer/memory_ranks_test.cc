// The root in memory of several ranks of one node: all keep a save or none, the disk gets what rank 0 says, and a
// restore takes the newest of both places for all.

#include "api/memory_ranks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cairn/cairn.h"
#include "checkpointer/memory_root_fixture.h"
#include "store/names.h"
#include "support/all_ranks.h"
#include "support/forked.h"
#include "support/held_group.h"
#include "support/points.h"
#include "support/small_run.h"
#include "support/three_ranks.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

/// Three ranks with a root in memory; rank r's queues, of both places, follow plan(r).
class MemoryRanks : public MemoryRootTest {
 protected:
  struct Rank {
    std::shared_ptr<FaultPlan> plan = FaultPlan::Make();
    std::shared_ptr<HeldGroup> group;
    Messages messages;
    Status opened;
    std::unique_ptr<Checkpointer> checkpointer;
    std::vector<std::unique_ptr<Tensors>> states;
  };

  [[nodiscard]] Rank& rank(int of) { return *ranks_[static_cast<std::size_t>(of)]; }
  [[nodiscard]] Checkpointer& checkpointer(int of) { return *rank(of).checkpointer; }

  /// Makes the ranks' groups, as often as they are opened.
  void MakeRanks(int ranks = kRanks) {
    ranks_.clear();
    for (const auto& group : MakeLocalGroup(ranks)) {
      ranks_.push_back(std::make_unique<Rank>());
      ranks_.back()->group = std::make_shared<HeldGroup>(group);
    }
  }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  void Open(const std::function<void(int, Options&)>& change = {}) {
    OnAllRanks(size(), [&](int of) {
      Rank& one = rank(of);
      Options options = WithMemory();
      options.group = one.group;
      options.on_event = one.messages.callback();
      if (change) change(of, options);
      Result<std::unique_ptr<Checkpointer>> opened = Checkpointer::Open(options, Through(one.plan));
      one.opened = opened.status();
      if (opened.ok()) one.checkpointer = *std::move(opened);
    });
  }
  [[nodiscard]] bool OpenAll(int ranks = kRanks, const std::function<void(int, Options&)>& change = {}) {
    MakeRanks(ranks);
    Open(change);
    for (int of = 0; of < ranks; ++of) EXPECT_EQ(rank(of).opened, Status::Ok()) << "rank " << of;
    return std::ranges::all_of(ranks_, [](const auto& one) { return one->opened.ok(); });
  }
  /// The calls are made at once: the first one waits for the other ranks.
  std::vector<SaveHandle> SaveAll(std::uint64_t step, const SaveOptions& options = {}, std::uint64_t variant = 0) {
    return SaveAll(
        step, [&options](int /*of*/) { return options; }, variant);
  }
  std::vector<SaveHandle> SaveAll(std::uint64_t step, const std::function<SaveOptions(int of)>& options,
                                  std::uint64_t variant = 0) {
    std::vector<std::optional<SaveHandle>> made(ranks_.size());
    OnAllRanks(size(), [&](int of) {
      rank(of).states.push_back(SmallState(step, of, variant));
      Result<SaveHandle> save = checkpointer(of).Save(step, rank(of).states.back()->state(), options(of));
      EXPECT_TRUE(save.ok()) << save.status() << " on rank " << of;
      if (save.ok()) made[static_cast<std::size_t>(of)] = *save;
    });
    std::vector<SaveHandle> saves;
    for (const auto& one : made) {
      if (one) saves.push_back(*one);
    }
    return saves;
  }
  /// The same, but of rank 1 with kLarger more, and with the statuses of calls that fail.
  std::vector<Result<SaveHandle>> SaveLarger(std::uint64_t step) {
    std::vector<std::optional<Result<SaveHandle>>> made(ranks_.size());
    OnAllRanks(size(), [&](int of) {
      rank(of).states.push_back(SmallState(step, of));
      Tensors& state = *rank(of).states.back();
      if (of == 1) state.Add("rank1.more", kLarger / sizeof(float));
      made[static_cast<std::size_t>(of)] = checkpointer(of).Save(step, state.state());
    });
    std::vector<Result<SaveHandle>> saves;
    for (const auto& one : made) saves.push_back(*one);
    return saves;
  }
  static constexpr std::uint64_t kLarger = 8U << 20;
  static Statuses Kept(const std::vector<Result<SaveHandle>>& saves) {
    Statuses statuses;
    for (const auto& save : saves) statuses.push_back(save.ok() ? save->WaitKept(Soon()) : save.status());
    return statuses;
  }
  static Statuses Kept(const std::vector<SaveHandle>& saves) {
    Statuses statuses;
    for (const SaveHandle& save : saves) statuses.push_back(save.WaitKept(Soon()));
    return statuses;
  }
  static Statuses Durable(const std::vector<SaveHandle>& saves) {
    Statuses statuses;
    for (const SaveHandle& save : saves) statuses.push_back(save.WaitDurable(Soon()));
    return statuses;
  }
  void ExpectAllRestore(std::uint64_t step, std::uint64_t variant = 0) {
    OnAllRanks(size(), [&](int of) {
      const auto state = SmallState(0, of);
      const Result<Restored> restored = checkpointer(of).Restore(Latest(), state->state());
      ASSERT_TRUE(restored.ok()) << restored.status() << " on rank " << of;
      EXPECT_EQ(restored->step, step);
      EXPECT_TRUE(Holds(*state, step, of, variant)) << "rank " << of;
    });
  }
  [[nodiscard]] FaultGate HoldDisk(int of = 0) {
    return rank(of).plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  }
  void DrainAll() {
    OnAllRanks(size(), [&](int of) { EXPECT_EQ(checkpointer(of).Drain(Soon()), Status::Ok()) << "rank " << of; });
  }
  void CloseAll() {
    OnAllRanks(size(), [&](int of) { rank(of).checkpointer.reset(); });
  }
  /// Ranks in a process of their own: the last step is only kept, in a folder without it on the disk.
  void KeepInAllAndDie(const std::vector<std::uint64_t>& steps, bool holds) {
    Forked child([&](const Say&) {
      if (!OpenAll()) return 2;
      FaultGate gate = HoldDisk();
      if (!holds) gate.Release();
      for (const std::uint64_t step : steps) {
        for (const Status& kept : Kept(SaveAll(step))) {
          if (!kept.ok()) return 3;
        }
        if (!holds) DrainAll();
      }
      ::kill(::getpid(), SIGKILL);
      return 4;
    });
    const Forked::End end = child.Wait(Soon());
    ASSERT_EQ(end.how, Forked::How::kKilled) << end.value;
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(MemoryRanks, KeepEachSaveWhileTheDiskDoesNotAnswer) {
  ASSERT_TRUE(OpenAll());
  const FaultGate gate = HoldDisk();
  std::vector<std::vector<SaveHandle>> saves;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    saves.push_back(SaveAll(step));
    ASSERT_THAT(Kept(saves.back()), Each(Status::Ok()));
  }

  // The first is on its way, the last one waits, and those between are left out, of which all ranks hear.
  for (const std::size_t left_out : {1, 2, 3}) {
    for (const Status& status : Durable(saves[left_out])) {
      EXPECT_EQ(status.code(), StatusCode::kCancelled);
      EXPECT_THAT(status.message(), HasSubstr("left out of the disk"));
    }
  }
  gate.Release();
  EXPECT_THAT(Durable(saves[0]), Each(Status::Ok()));
  EXPECT_THAT(Durable(saves[4]), Each(Status::Ok()));
  DrainAll();
  for (int of = 0; of < kRanks; ++of) {
    EXPECT_EQ(checkpointer(of).stats().saves_kept, 5U);
    EXPECT_EQ(checkpointer(of).stats().saves_durable, 2U);
    EXPECT_EQ(checkpointer(of).stats().not_recycled_reason, "");
  }
  CloseAll();
  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
  ExpectNothingLost(root_, 5, kRanks);
}

TEST_F(MemoryRanks, WhatIsKeptSurvivesAKillOfAll) {
  KeepInAllAndDie({1}, /*holds=*/false);
  KeepInAllAndDie({2, 3}, /*holds=*/true);
  EXPECT_TRUE(fs::exists(InFolder(3) + "/" + ShardName(2)));

  MakeRanks();
  FaultGate gate = HoldDisk();  // Which gets step 3, too.
  Open();
  for (int of = 0; of < kRanks; ++of) ASSERT_EQ(rank(of).opened, Status::Ok());
  EXPECT_THAT(ListedSteps(checkpointer(1)), Contains(3));
  ExpectAllRestore(3);
  gate.Release();

  // And they go on from there.
  const auto saves = SaveAll(4);
  EXPECT_THAT(Kept(saves), Each(Status::Ok()));
  EXPECT_THAT(Durable(saves), Each(Status::Ok()));
  DrainAll();
  CloseAll();
  ExpectNothingLost(root_, 4, kRanks);
}

TEST_F(MemoryRanks, WhatAnEarlierRunHasKeptGoesToTheDisk) {
  KeepInAllAndDie({1}, /*holds=*/false);
  KeepInAllAndDie({2}, /*holds=*/true);

  ASSERT_TRUE(OpenAll());
  DrainAll();

  EXPECT_TRUE(fs::exists(root_ + "/" + StepName(2)));
  CloseAll();
  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
  ExpectNothingLost(root_, 2, kRanks);
}

TEST_F(MemoryRanks, WhatIsDamagedOfOneRankDoesNotGoToTheDisk) {
  KeepInAllAndDie({1}, /*holds=*/false);
  KeepInAllAndDie({2}, /*holds=*/true);
  for (const bool header : {false, true}) {
    header ? fs::resize_file(InFolder(2) + "/" + ShardName(1), 100) : FlipBit(InFolder(2), 1);

    ASSERT_TRUE(OpenAll());
    DrainAll();
    EXPECT_FALSE(fs::exists(root_ + "/" + StepName(2)));
    CloseAll();
    EXPECT_TRUE(fs::exists(InFolder(2))) << "it is all that tells that step 1 is not the newest";
  }
}

TEST_F(MemoryRanks, AnotherWorldReadsWhatWasKept) {
  KeepInAllAndDie({1}, /*holds=*/false);
  KeepInAllAndDie({2}, /*holds=*/true);

  ASSERT_TRUE(OpenAll(2));
  OnAllRanks(2, [&](int of) {
    for (const int part : {of, kRanks - 1}) {
      const auto state = SmallState(0, part);
      const Result<Restored> restored = checkpointer(of).Restore(Latest(), state->state());
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_EQ(restored->step, 2U);
      EXPECT_TRUE(Holds(*state, 2, part));
    }
  });
  ASSERT_THAT(Durable(SaveAll(3)), Each(Status::Ok()));
  DrainAll();
  EXPECT_EQ(ShardsIn(Folder()).first, 10U) << "five slots of each rank, and none of the third";
}

TEST_F(MemoryRanks, ADamagedCopyOfOneRankIsPassedOverForTheDisksByAll) {
  KeepInAllAndDie({1, 2}, /*holds=*/false);
  FlipBit(InFolder(2), 1);

  ASSERT_TRUE(OpenAll());

  ExpectAllRestore(2);
  EXPECT_THAT(rank(2).messages.Seen(), Contains(HasSubstr("passed over: " + memory_.path())));
}

TEST_F(MemoryRanks, ADamagedCopyThatIsTheOnlyOneIsNoReasonForAnOlderStep) {
  KeepInAllAndDie({1}, /*holds=*/false);
  KeepInAllAndDie({2}, /*holds=*/true);
  FlipBit(InFolder(2), 2);

  ASSERT_TRUE(OpenAll());

  OnAllRanks(kRanks, [&](int of) {
    const auto state = SmallState(0, of);
    EXPECT_EQ(checkpointer(of).Restore(Latest(), state->state()).status().code(), StatusCode::kCorrupt);
    const Result<Restored> older = checkpointer(of).Restore(Latest().FallBack(), state->state());
    ASSERT_TRUE(older.ok()) << older.status();
    EXPECT_EQ(older->step, 1U);
    EXPECT_TRUE(Holds(*state, 1, of));
  });
}

TEST_F(MemoryRanks, ADrainCommitsNothingThatHasChangedInMemoryOfOneRank) {
  ASSERT_TRUE(OpenAll());
  const FaultGate gate = HoldDisk();
  ASSERT_THAT(Kept(SaveAll(1)), Each(Status::Ok()));
  const auto second = SaveAll(2);
  ASSERT_THAT(Kept(second), Each(Status::Ok()));
  FlipBit(InFolder(2), 1);
  gate.Release();

  for (const Status& status : Durable(second)) EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status;

  const auto third = SaveAll(3);
  EXPECT_THAT(Durable(third), Each(Status::Ok()));
  DrainAll();
  EXPECT_THAT(ListedSteps(checkpointer(0)), ElementsAre(1, 3));
}

TEST_F(MemoryRanks, AStepMayBeSavedAnewBeforeTheDiskHasIt) {
  ASSERT_TRUE(OpenAll());
  const FaultGate gate = HoldDisk();
  constexpr std::uint64_t kAnother = 1;
  std::vector<std::vector<SaveHandle>> given_up;
  std::vector<SaveHandle> newest;
  for (const std::uint64_t step : {1, 2}) {
    for (const std::uint64_t variant : {std::uint64_t{0}, kAnother}) {
      newest = SaveAll(step, {.if_exists = IfExists::kReplace}, variant);
      ASSERT_THAT(Kept(newest), Each(Status::Ok()));
      if (variant == 0) given_up.push_back(newest);
    }
  }

  gate.Release();

  EXPECT_THAT(Durable(newest), Each(Status::Ok()));
  for (const auto& saves : given_up) {
    for (const Status& status : Durable(saves)) EXPECT_THAT(status.message(), HasSubstr("saved anew"));
  }
  ExpectAllRestore(2, kAnother);
}

TEST_F(MemoryRanks, PinnedSavesGoToTheDiskAloneOnAll) {
  ASSERT_TRUE(OpenAll(kRanks, [](int, Options& options) { options.keep_every = 10; }));
  ASSERT_THAT(Durable(SaveAll(8, {.pin = true})), Each(Status::Ok()));
  const auto kept = SaveAll(9);
  ASSERT_THAT(Kept(kept), Each(Status::Ok()));
  ASSERT_THAT(Durable(SaveAll(10)), Each(Status::Ok()));
  ASSERT_THAT(Durable(kept), Each(Status::Ok()));
  ASSERT_THAT(Durable(SaveAll(11)), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) EXPECT_EQ(checkpointer(of).stats().saves_kept, 2U);
}

TEST_F(MemoryRanks, Rank0SaysWhatGoesToTheDiskAlone) {
  ASSERT_TRUE(OpenAll(kRanks, [](int of, Options& options) { options.keep_every = of == 1 ? 3 : of == 0 ? 2 : 0; }));
  std::uint64_t kept = 0;
  const auto save = [&](std::uint64_t step, int pins) {
    SCOPED_TRACE(testing::Message() << "step " << step << ", pinned on rank " << pins);
    ASSERT_THAT(Durable(SaveAll(step, [pins](int of) { return SaveOptions{.pin = of == pins}; })), Each(Status::Ok()));
    kept += pins == 0 || step % 2 == 0 ? 0 : 1;
    for (int of = 0; of < kRanks; ++of) EXPECT_EQ(checkpointer(of).stats().saves_kept, kept) << "rank " << of;
  };
  for (std::uint64_t step = 1; step <= 6; ++step) save(step, /*pins=*/-1);
  for (const int pins : {0, 1}) save(7 + 2 * static_cast<std::uint64_t>(pins), pins);
  EXPECT_THAT(ListedSteps(checkpointer(0)), ElementsAre(1, 2, 3, 4, 5, 6, 7, 9));
  ExpectAllRestore(9);
}

TEST_F(MemoryRanks, GivingUpWhatGoesToTheDiskAloneNotifiesTheOthers) {
  ASSERT_TRUE(OpenAll());
  ASSERT_THAT(Durable(SaveAll(1)), Each(Status::Ok()));
  for (const bool first : {true, false}) {
    const std::uint64_t step = first ? 2 : 3;
    const auto give_up = [&] {
      ASSERT_TRUE(checkpointer(2).GiveUp(step, Status(StatusCode::kInvalidArgument, "no such thing")).ok());
    };
    if (first) give_up();
    std::vector<SaveHandle> saves;
    for (const int of : {0, 1}) {
      rank(of).states.push_back(SmallState(step, of));
      saves.push_back(checkpointer(of).Save(step, rank(of).states.back()->state(), {.pin = true}).value());
    }
    if (!first) give_up();
    for (const Status& status : Durable(saves)) EXPECT_THAT(status.message(), HasSubstr("no such thing"));
  }
  EXPECT_THAT(Durable(SaveAll(4)), Each(Status::Ok()));
  EXPECT_THAT(Durable(SaveAll(5, {.pin = true})), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) EXPECT_EQ(checkpointer(of).stats().saves_kept, 2U);
}

TEST_F(MemoryRanks, ManySavesTakeNoMoreMemoryThanTheFirst) {
  ASSERT_TRUE(OpenAll());
  std::uint64_t step = 0;
  const auto save = [&](int times) {
    for (int i = 0; i < times; ++i) ASSERT_THAT(Kept(SaveAll(++step)), Each(Status::Ok()));
    DrainAll();
    // What the last one let go may be on its way to become a spare.
    const Deadline soon = Soon();
    while (ShardsIn(Folder()).first != 15U && !soon.passed()) std::this_thread::yield();
  };
  save(5);
  const auto before = ShardsIn(Folder());

  save(SomeRounds(100, 4));

  EXPECT_EQ(before.first, 15U) << "five slots of each rank";
  EXPECT_EQ(ShardsIn(Folder()).first, before.first);
  EXPECT_LE(ShardsIn(Folder()).second, before.second);
}

// Rank 2 has yet to take its slots of the folders from which the others have taken theirs.
TEST_F(MemoryRanks, ASlotHasAPlaceThoughOneRankIsLate) {
  ASSERT_TRUE(OpenAll());
  FaultGate disk = HoldDisk();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(Kept(SaveAll(step)), Each(Status::Ok()));
  FaultGate late = rank(2).plan->Hold({.op = IoOp::kRename, .path = memory_.path()});
  std::vector<std::vector<SaveHandle>> saves;
  for (const std::uint64_t step : {3, 4}) saves.push_back(SaveAll(step));
  ASSERT_TRUE(late.WaitHeld(Soon()));
  for (const auto& of_step : saves) ASSERT_EQ(of_step.front().WaitCaptured(Soon()), Status::Ok());
  const std::string folder = Folder();
  disk.Release();
  // Until step 1 is removed, and its slots have a place, or none.
  const auto goes = [](const std::string& name) { return name == StepName(1) || name.starts_with(".retired-"); };
  const Deadline soon = Soon();
  while (std::ranges::any_of(NamesIn(folder), goes) && !soon.passed()) std::this_thread::yield();
  EXPECT_FALSE(std::ranges::any_of(NamesIn(folder), goes));

  late.Release();

  for (const auto& of_step : saves) EXPECT_THAT(Kept(of_step), Each(Status::Ok()));
  DrainAll();
  EXPECT_EQ(ShardsIn(Folder()).first, 15U);
}

TEST_F(MemoryRanks, HaveRoomTogetherOrNotAtAll) {
  ASSERT_TRUE(OpenAll());
  // Rank 1 cannot allocate this one.
  fs::create_directories(Folder() + "/" + SpareName(0) + "/" + ShardName(1));

  const auto saves = SaveAll(1);

  EXPECT_THAT(Durable(saves), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) {
    EXPECT_EQ(checkpointer(of).stats().saves_kept, 0U);
    EXPECT_EQ(checkpointer(of).stats().memory_root, "");
    EXPECT_THAT(rank(of).messages.Seen(), ElementsAre(HasSubstr("saves go to the disk alone: rank 1: ")));
  }
  EXPECT_EQ(ShardsIn(Folder()).second, 0U) << "no rank keeps its slots";
  EXPECT_THAT(Durable(SaveAll(2)), Each(Status::Ok()));
}

TEST_F(MemoryRanks, AFirstSaveThatOneRankRefusesFailsOnAllAtOnce) {
  std::uint64_t step = 0;
  for (const int refuses : {0, 1}) {
    ASSERT_TRUE(OpenAll());
    const auto refuse = [&] {
      return checkpointer(refuses).GiveUp(step, Status(StatusCode::kInvalidArgument, "no such thing")).ok();
    };
    for (int save = 0; save < 2; ++save) {
      ++step;
      OnAllRanks(size(), [&](int of) {
        if (of == refuses) {
          EXPECT_TRUE(refuse());
          return;
        }
        rank(of).states.push_back(SmallState(step, of));
        const Result<SaveHandle> made = checkpointer(of).Save(step, rank(of).states.back()->state());
        ASSERT_TRUE(made.ok()) << made.status();
        EXPECT_THAT(made->WaitDurable(Soon()).message(), HasSubstr("no such thing"));
      });
    }
    EXPECT_THAT(Kept(SaveAll(++step)), Each(Status::Ok()));
    for (int of = 0; of < kRanks; ++of) EXPECT_EQ(checkpointer(of).stats().saves_kept, 1U) << "rank " << of;
    CloseAll();
  }
}

TEST_F(MemoryRanks, ALargerStateOfOneRankGetsLargerSlots) {
  ASSERT_TRUE(OpenAll());
  ASSERT_THAT(Kept(SaveAll(1)), Each(Status::Ok()));
  const auto before = ShardsIn(Folder());

  ASSERT_THAT(Kept(SaveLarger(2)), Each(Status::Ok()));
  DrainAll();

  // Of 512 bytes.
  EXPECT_GE(ShardsIn(Folder()).second - before.second, 3 * kLarger / 512);
  for (int of = 0; of < kRanks; ++of) EXPECT_EQ(checkpointer(of).stats().saves_kept, 2U) << "rank " << of;
  ASSERT_THAT(Kept(SaveLarger(3)), Each(Status::Ok()));
  DrainAll();
  EXPECT_EQ(ShardsIn(Folder()).first, before.first);
  EXPECT_THAT(Durable(SaveAll(4)), Each(Status::Ok()));
}

TEST_F(MemoryRanks, ALargerStateWithoutRoomFailsOnAllAtOnceAndLeavesTheDisk) {
  ASSERT_TRUE(OpenAll());
  ASSERT_THAT(Durable(SaveAll(1)), Each(Status::Ok()));
  DrainAll();
  // No file can be made there, nor extended.
  std::string spare;
  for (std::uint64_t number = 0; spare.empty() || !fs::exists(spare); ++number) {
    spare = Folder() + "/" + SpareName(number) + "/" + ShardName(1);
  }
  fs::remove(spare);
  fs::create_directories(spare);

  const Statuses failed = Kept(SaveLarger(2));

  EXPECT_THAT(failed, Each(HasCode(StatusCode::kIoError)));
  EXPECT_THAT(failed[0].message(), HasSubstr("rank 1: "));
  fs::remove(spare);
  std::uint64_t step = 3;
  const auto in_use = [](const auto& one) { return !one->checkpointer->stats().memory_root.empty(); };
  while (std::ranges::any_of(ranks_, in_use)) ASSERT_THAT(Durable(SaveAll(step++)), Each(Status::Ok()));
  ASSERT_THAT(Durable(SaveAll(step)), Each(Status::Ok()));
  DrainAll();
  EXPECT_LE(ShardsIn(Folder()).first, 3U) << "the slots are freed, but for the newest that is kept";
}

TEST_F(MemoryRanks, WhatIsReplacedLosesNoSlot) {
  ASSERT_TRUE(OpenAll());
  for (std::uint64_t variant = 0; variant < 8; ++variant) {
    ASSERT_THAT(Kept(SaveAll(2, {.if_exists = IfExists::kReplace}, variant)), Each(Status::Ok()));
  }
  DrainAll();
  EXPECT_EQ(ShardsIn(Folder()).first, 15U) << "five slots of each rank";
  for (int of = 0; of < kRanks; ++of) EXPECT_EQ(checkpointer(of).stats().not_recycled_reason, "");
  ExpectAllRestore(2, 7);
}

TEST_F(MemoryRanks, AFailureOfTheMemoryOfOneLeavesTheDiskToAll) {
  ASSERT_TRUE(OpenAll());
  ASSERT_THAT(Durable(SaveAll(1)), Each(Status::Ok()));
  DrainAll();
  rank(1).plan->Fail({.op = IoOp::kFsync, .path = memory_.path(), .nth = 1}, EIO);

  const Statuses failed = Kept(SaveAll(2));

  EXPECT_THAT(failed, Each(HasCode(StatusCode::kIoError)));
  EXPECT_THAT(failed[2].message(), HasSubstr("rank 1: "));
  // No later one fails, whoever hears when that the memory is not used any more.
  rank(2).group->Hold("memory/attempt");
  const std::vector<std::vector<SaveHandle>> two = {SaveAll(3), SaveAll(4)};
  rank(2).group->Release();
  for (const auto& saves : two) {
    for (const Status& status : Durable(saves))
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCancelled) << status;
  }
  const auto in_use = [](const auto& one) { return !one->checkpointer->stats().memory_root.empty(); };
  std::uint64_t step = 5;
  while (std::ranges::any_of(ranks_, in_use)) ASSERT_THAT(Durable(SaveAll(step++)), Each(Status::Ok()));
  ASSERT_THAT(Durable(SaveAll(step)), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) {
    EXPECT_THAT(rank(of).messages.Seen(), Contains(HasSubstr("saves go to the disk alone")));
  }
  ExpectAllRestore(step);
}

TEST_F(MemoryRanks, ARankThatSavesAnotherStepFailsThatSaveAlone) {
  ASSERT_TRUE(OpenAll());
  ASSERT_THAT(Kept(SaveAll(1)), Each(Status::Ok()));
  const auto save = [&](int of, std::uint64_t step) {
    rank(of).states.push_back(SmallState(step, of));
    return checkpointer(of).Save(step, rank(of).states.back()->state()).value();
  };

  std::vector<SaveHandle> lone;
  for (const int of : {0, 1}) lone.push_back(save(of, 2));
  lone.push_back(save(2, 3));

  EXPECT_THAT(Kept(lone), Each(HasCode(StatusCode::kFailedPrecondition)));
  EXPECT_THAT(Kept(SaveAll(4)), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) EXPECT_EQ(checkpointer(of).stats().saves_kept, 2U);
}

TEST_F(MemoryRanks, GivingUpASaveNotifiesTheOthers) {
  ASSERT_TRUE(OpenAll());
  ASSERT_THAT(Kept(SaveAll(1)), Each(Status::Ok()));
  std::vector<SaveHandle> saves;
  for (const int of : {0, 1}) {
    rank(of).states.push_back(SmallState(2, of));
    saves.push_back(checkpointer(of).Save(2, rank(of).states.back()->state()).value());
  }

  ASSERT_TRUE(checkpointer(2).GiveUp(2, Status(StatusCode::kInvalidArgument, "no such thing")).ok());

  for (const Status& status : Kept(saves)) EXPECT_THAT(status.message(), HasSubstr("rank 2: no such thing"));
  EXPECT_THAT(Kept(SaveAll(3)), Each(Status::Ok()));
}

// What waits is not due, so that no drain tells the others.
TEST_F(MemoryRanks, AllHearThatTheDiskOfOneAnswers) {
  ASSERT_TRUE(OpenAll(kRanks, [](int of, Options& options) {
    options.disk_every = 1000;
    if (of == 1) options.stall_timeout = std::chrono::seconds(6);
  }));
  ASSERT_THAT(Durable(SaveAll(1)), Each(Status::Ok()));
  FaultGate gate = rank(1).plan->Hold({.op = IoOp::kWrite, .path = root_ + "/.attempt"});
  for (const Status& status : Durable(SaveAll(2))) EXPECT_EQ(status.detail(), StatusDetail::kDiskHangs) << status;
  ASSERT_THAT(Kept(SaveAll(3)), Each(Status::Ok()));

  rank(1).plan->Clear();
  gate.Release();

  const Deadline soon = Soon();
  for (const int of : {1, 2}) {
    Status idle;
    do {
      idle = checkpointer(of).Drain(Deadline::In(std::chrono::milliseconds(20)));
    } while (idle.detail() == StatusDetail::kDiskHangs && !soon.passed());
    EXPECT_EQ(idle.detail(), StatusDetail::kNone) << idle << " on rank " << of;
  }
  DrainAll();
  ExpectAllRestore(3);
}

TEST_F(MemoryRanks, ADiskThatHangsAtOneRankHoldsUpNoKeptSave) {
  // Longer than a full machine keeps a thread of rank 1 from its write in memory.
  ASSERT_TRUE(OpenAll(kRanks, [](int of, Options& options) {
    if (of == 1) options.stall_timeout = std::chrono::seconds(6);
  }));
  std::uint64_t step = 0;
  // What hangs is the drain's, or that of a save that goes to the disk alone.
  for (const bool pinned : {false, true}) {
    SCOPED_TRACE(pinned);
    const std::uint64_t failed = checkpointer(0).stats().saves_failed;
    const FaultGate gate = rank(1).plan->Hold({.op = IoOp::kWrite, .path = root_ + "/.attempt"});
    if (pinned) {
      const auto alone = SaveAll(++step, {.pin = true});
      for (const Status& status : Durable(alone)) EXPECT_EQ(status.detail(), StatusDetail::kDiskHangs) << status;
    }
    const auto first = SaveAll(++step);
    ASSERT_THAT(Kept(first), Each(Status::Ok()));
    for (const Status& status : Durable(first)) EXPECT_EQ(status.detail(), StatusDetail::kDiskHangs) << status;

    std::vector<std::vector<SaveHandle>> saves;
    for (int i = 0; i < 4; ++i) {
      saves.push_back(SaveAll(++step));
      ASSERT_THAT(Kept(saves.back()), Each(Status::Ok()));
    }

    // One has failed, those between are left out, and the newest waits, which whoever waits for it hears on each rank.
    for (const std::size_t left_out : {0, 1, 2}) {
      EXPECT_THAT(Durable(saves[left_out]), Each(HasCode(StatusCode::kCancelled)));
    }
    OnAllRanks(size(), [&](int of) {
      const Status idle = checkpointer(of).Drain();
      EXPECT_EQ(idle.detail(), StatusDetail::kDiskHangs) << idle << " on rank " << of;
      EXPECT_THAT(idle.message(), HasSubstr(fmt::format("step {}, kept in memory, waits for the disk", step)));
    });
    rank(1).plan->Clear();
    gate.Release();
    EXPECT_THAT(Durable(saves.back()), Each(Status::Ok()));
    for (int of = 0; of < kRanks; ++of) {
      EXPECT_EQ(checkpointer(of).stats().saves_failed, failed + (pinned ? 2 : 1)) << "rank " << of;
    }
    DrainAll();
  }
  EXPECT_THAT(Durable(SaveAll(++step)), Each(Status::Ok()));
  ExpectAllRestore(step);
}

TEST_F(MemoryRanks, AllHaveAMemoryRootOrNoneHas) {
  for (const int without : {1, 2}) {
    MakeRanks();
    Open([&](int of, Options& options) {
      if (of == without) options.memory_root.clear();
    });
    for (int of = 0; of < kRanks; ++of) {
      EXPECT_EQ(rank(of).opened.code(), StatusCode::kInvalidArgument) << "rank " << of;
      EXPECT_THAT(rank(of).opened.message(),
                  HasSubstr("memory_root: expected one, as on rank 0, found none on rank " + std::to_string(without)));
    }
  }
  MakeRanks();
  Open([&](int of, Options& options) {
    if (of == 0) options.memory_root.clear();
  });
  EXPECT_THAT(rank(1).opened.message(), HasSubstr("memory_root: expected none, as on rank 0, found one on rank 1"));
  // Which rank 0 hears when it saves.
  ASSERT_EQ(rank(0).opened, Status::Ok());
  const auto state = SmallState(1);
  const auto save = checkpointer(0).Save(1, state->state());
  ASSERT_TRUE(save.ok());
  EXPECT_THAT(save->WaitDurable(Soon()).message(), HasSubstr("memory_root: expected none"));
}

TEST_F(MemoryRanks, AnotherFolderIsRefused) {
  const TempDir other{"/dev/shm"};
  MakeRanks();
  Open([&](int of, Options& options) {
    if (of == 2) options.memory_root = other.path();
  });
  for (int of = 0; of < kRanks; ++of) {
    EXPECT_THAT(rank(of).opened.message(), HasSubstr("memory_root: expected the folder that rank 0 has opened")) << of;
  }
  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
  EXPECT_THAT(NamesIn(other.path()), IsEmpty());
}

TEST_F(MemoryRanks, AFolderOfOneRankThatIsNotInMemoryIsRefusedByAll) {
  MakeRanks();
  Open([&](int of, Options& options) {
    if (of == 1) options.memory_root = "/proc";
  });
  for (const int of : {0, 1}) {
    EXPECT_THAT(rank(of).opened.message(), HasSubstr("memory_root: expected a folder on tmpfs")) << of;
  }
  EXPECT_THAT(rank(0).opened.message(), StartsWith("rank 1: "));
}

TEST_F(MemoryRanks, ReadersOfWhichOneHasNoMemoryRootHearItAtOnce) {
  KeepInAllAndDie({1}, /*holds=*/false);
  KeepInAllAndDie({2}, /*holds=*/true);
  ASSERT_TRUE(OpenAll(kRanks, [](int of, Options& options) {
    options.read_only = true;
    if (of == 1) options.memory_root.clear();
  }));

  OnAllRanks(kRanks, [&](int of) {
    const auto state = SmallState(0, of);
    const Status restored = checkpointer(of).Restore(Latest(), state->state()).status();
    EXPECT_EQ(restored.code(), StatusCode::kInvalidArgument) << restored;
    EXPECT_THAT(restored.message(), HasSubstr("memory_root: expected the one of rank 0"));
    EXPECT_THAT(restored.message(), HasSubstr("found none on rank 1"));
  });
}

TEST_F(MemoryRanks, AnotherNodeIsRefused) {
  const MemoryOfRank0 said{.writer_id = "writer", .found_attempt = "attempt"};
  EXPECT_EQ(CheckMemoryOfRank0(WithMemory(), 1, SayMemory(said)).value().found_attempt, "attempt");
  EXPECT_EQ(CheckMemoryOfRank0(WithMemory(), 1, SayMemory({})).value().writer_id, "");

  const Status status = CheckMemoryOfRank0(WithMemory(), 1, "another-node\nwriter\n").status();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("expected all ranks on one node, found rank 1 on another"));
}

/// One rank's training: saves of which some are left out of the disk, and a restore in between.
int TrainOne(Checkpointer& checkpointer, int of) {
  std::vector<std::unique_ptr<Tensors>> states;
  const auto save = [&](std::uint64_t step) {
    states.push_back(SmallState(step, of));
    const auto made = checkpointer.Save(step, states.back()->state());
    return made.ok() && made->WaitKept(Soon()).ok();
  };
  for (std::uint64_t step = 11; step <= 13; ++step) {
    if (!save(step)) return 3;
  }
  if (!checkpointer.Drain(Soon()).ok()) return 4;
  const auto state = SmallState(0, of);
  if (!checkpointer.Restore(Latest(), state->state()).ok() || !Holds(*state, 13, of)) return 5;
  for (std::uint64_t step = 14; step <= 15; ++step) {
    if (!save(step)) return 6;
  }
  return checkpointer.Drain(Soon()).ok() ? 0 : 7;
}

class MemoryRanksCrash : public MemoryRanks {
 protected:
  /// All ranks go on from one step, which is not older than what any of them has said to be kept or durable.
  void ExpectNothingKeptIsLost(const std::vector<std::string>& lines) {
    const std::uint64_t kept = std::max(NewestOf(lines, "kept ").value_or(0), NewestOf(lines, "durable ").value_or(0));
    ASSERT_TRUE(OpenAll());
    std::vector<std::uint64_t> found(kRanks);
    OnAllRanks(kRanks, [&](int of) {
      const auto state = SmallState(0, of);
      const Result<Restored> restored = checkpointer(of).Restore(Latest(), state->state());
      if (!restored.ok()) return;
      found[static_cast<std::size_t>(of)] = restored->step;
      EXPECT_TRUE(Holds(*state, restored->step, of)) << "rank " << of;
    });
    EXPECT_THAT(found, Each(found.front()));
    EXPECT_GE(found.front(), kept);
    ASSERT_THAT(Durable(SaveAll(found.front() + 1)), Each(Status::Ok()));
    for (int of = 0; of < kRanks; ++of) {
      EXPECT_EQ(checkpointer(of).stats().saves_kept, 1U)
          << "rank " << of << testing::PrintToString(rank(of).messages.Seen());
    }
    DrainAll();
    CloseAll();
    ExpectNothingLost(root_, found.front() + 1, kRanks);
    ASSERT_THAT(NamesIn(memory_.path()), IsEmpty());
    fs::remove_all(root_);
    ranks_.clear();  // No thread of theirs is forked.
  }
};

TEST_F(MemoryRanksCrash, RanksWhoseRank0HasDiedDoNotWaitForIt) {
  std::vector<std::unique_ptr<Forked>> processes;
  for (int of = 0; of < kRanks; ++of) {
    processes.push_back(std::make_unique<Forked>([&, of](const Say& say) {
      Options options = WithMemory();
      options.group_timeout = std::chrono::seconds(of == 0 ? 60 : 2);
      options.group = *MakeFileGroup(dir_ / "group", {.rank = of, .size = kRanks, .name = "dies"});
      const auto plan = FaultPlan::Make();
      const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
      const auto checkpointer = Checkpointer::Open(options, Through(plan));
      if (!checkpointer.ok()) return 2;
      const auto state = SmallState(1, of);
      const auto save = (*checkpointer)->Save(1, state->state());
      if (!save.ok() || !save->WaitKept(Soon()).ok()) return 3;
      if (of == 0) ::kill(::getpid(), SIGKILL);
      say(save->WaitDurable(Soon()).message());
      gate.Release();
      return 0;
    }));
  }
  for (int of = 0; of < kRanks; ++of) {
    const Forked::End end = processes[static_cast<std::size_t>(of)]->Wait(Soon());
    EXPECT_EQ(end.how, of == 0 ? Forked::How::kKilled : Forked::How::kExited) << "rank " << of << ": " << end.value;
    if (of == 0) continue;
    EXPECT_THAT(end.lines, Contains(HasSubstr("rank 0 has ended before the disk had it"))) << "rank " << of;
  }
}

TEST_F(MemoryRanksCrash, LosesNothingKeptWhenAllDieAtAnyOperation) {
  const Points points = SomePoints(7);
  const std::uint64_t stride = 4 * points.stride;
  for (std::uint64_t k = 1 + points.first;; k += stride) {
    SCOPED_TRACE(testing::Message() << "killed before operation " << k);
    Forked child([&](const Say& say) {
      MakeRanks();
      const auto plan = FaultPlan::Make();
      plan->KillBefore({.nth = k});
      for (const auto& one : ranks_) one->plan = plan;
      Open([&](int, Options& options) { options.on_event = SayOutcomes(say); });
      std::vector<int> results(kRanks, 2);
      OnAllRanks(kRanks, [&](int of) {
        if (rank(of).opened.ok()) results[static_cast<std::size_t>(of)] = TrainOne(checkpointer(of), of);
      });
      CloseAll();
      return *std::ranges::max_element(results);
    });
    const Forked::End end = child.Wait(Soon());
    ASSERT_NE(end.how, Forked::How::kTimedOut);
    ASSERT_NO_FATAL_FAILURE(ExpectNothingKeptIsLost(end.lines));
    if (end.how != Forked::How::kExited) continue;
    ASSERT_EQ(end.value, 0);
    ASSERT_GT(k, 300U);
    break;
  }
}

// Of real processes. Those that live on hear it by their deadlines, or from the group, and no save of theirs goes on.
TEST_F(MemoryRanksCrash, LosesNothingKeptWhenOneDiesAtAnyOperation) {
  const Points points = SomePoints(7);
  const std::uint64_t stride = 16 * points.stride;
  for (int victim = 0; victim < kRanks; ++victim) {
    for (std::uint64_t k = 1 + points.first;; k += stride) {
      SCOPED_TRACE(testing::Message() << "rank " << victim << " killed before operation " << k);
      std::vector<std::unique_ptr<Forked>> processes;
      for (int of = 0; of < kRanks; ++of) {
        processes.push_back(std::make_unique<Forked>([&, of](const Say& say) {
          Options options = WithMemory();
          options.group_timeout = std::chrono::seconds(of == victim ? 60 : 2);
          options.on_event = SayOutcomes(say);
          const auto group =
              MakeFileGroup(dir_ / "group", {.rank = of, .size = kRanks, .name = fmt::format("{} of {}", k, victim)});
          options.group = *group;
          const auto plan = FaultPlan::Make();
          if (of == victim) plan->KillBefore({.nth = k});
          const auto checkpointer = Checkpointer::Open(options, Through(plan));
          return checkpointer.ok() ? TrainOne(**checkpointer, of) : 2;
        }));
      }
      std::vector<std::string> lines;
      Forked::End of_victim;
      for (int of = 0; of < kRanks; ++of) {
        Forked::End end = processes[static_cast<std::size_t>(of)]->Wait(Soon());
        ASSERT_NE(end.how, Forked::How::kTimedOut) << "rank " << of;
        lines.insert(lines.end(), end.lines.begin(), end.lines.end());
        if (of == victim) of_victim = std::move(end);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectNothingKeptIsLost(lines));
      if (of_victim.how == Forked::How::kExited) break;
    }
  }
}

}  // namespace
}  // namespace cairn
