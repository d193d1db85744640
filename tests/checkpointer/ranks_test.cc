// Several ranks write one checkpoint: all of them have it, or none, or the outcome is unknown.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "support/all_ranks.h"
#include "support/small_run.h"
#include "support/three_ranks.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST_F(Ranks, SaveAndRestoreOneCheckpoint) {
  OpenAll();

  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  ASSERT_THAT(SaveAll(2), Each(Status::Ok()));

  const auto list = rank(1).List();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 2U);
  EXPECT_EQ(list->back().world, 3U);
  OnAllRanks(kRanks, [&](int of) {
    const auto fresh = SmallState(0, of);
    const auto restored = rank(of).Restore(Latest(), fresh->state());
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->step, 2U);
    EXPECT_TRUE(Holds(*fresh, 2, of));
  });
  ranks_.clear();
  ExpectNothingLost(root(), 2, kRanks);
}

TEST_F(Ranks, DifferentRestoredCheckpointsAreNotMixed) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) {
    ASSERT_TRUE(ReadAlone(rank(of), Step(of == 1 ? 1 : 2), SmallState(0, of)->state()).ok());
  }

  const Statuses statuses = SaveAll(3);

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kFailedPrecondition)));
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1"));
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1, 2));
  OnAllRanks(kRanks,
             [&](int of) { EXPECT_EQ(rank(of).Restore(Step(2), SmallState(0, of)->state()).status(), Status::Ok()); });
  ranks_.clear();
  ExpectNothingLost(root(), 2, kRanks);
}

TEST_F(Ranks, SaveAStepAgainAfterItsRemoval) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));

  EXPECT_EQ(rank(1).Remove(2).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rank(0).Remove(2), Status::Ok());

  EXPECT_THAT(SaveAll(2), Each(Status::Ok()));
}

TEST_F(Ranks, GivingUpASaveNotifiesTheOthers) {
  OpenAll();

  const std::vector<SaveHandle> saves = {Start(0, 1), Start(1, 1)};
  const auto given_up = rank(2).GiveUp(1, Status(StatusCode::kInvalidArgument, "no such thing"));

  ASSERT_TRUE(given_up.ok()) << given_up.status();
  EXPECT_THAT(given_up->WaitDurable(Soon()).message(), HasSubstr("no such thing"));
  for (const Status& status : WaitAll(saves)) EXPECT_THAT(status.message(), HasSubstr("rank 2: no such thing"));
  ExpectWorksFrom(2);
}

TEST_F(Ranks, WriteReplicatedTensorsOnce) {
  OpenAll();
  const auto names = [&] {
    const auto details = rank(0).Inspect(Step(1));
    EXPECT_TRUE(details.ok()) << details.status();
    std::map<std::string, int> count;
    for (const TensorInfo& tensor : details->tensors) ++count[tensor.name];
    return count;
  };
  std::vector<float> same(1000, 1.5F);
  std::vector<SaveHandle> saves;
  std::vector<State> all(kRanks);
  std::vector<std::vector<float>> own(kRanks, std::vector<float>(10, 0.5F));
  for (int of = 0; of < kRanks; ++of) {
    State& state = all[static_cast<std::size_t>(of)];
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_TRUE(state.Add(name, {.data = &same[static_cast<std::size_t>(name[0] - 'a') * 10], .shape = {10}}).ok());
    }
    ASSERT_TRUE(state.Add("own", {.data = own[static_cast<std::size_t>(of)].data(), .shape = {10}}).ok());
    const auto save =
        rank(of).Save(1, state, {.replicated = {.tensors = {"a", "b", "c"}, .identical_values = {{"lr", "1"}}}});
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }

  ASSERT_THAT(WaitAll(saves), Each(Status::Ok()));

  EXPECT_THAT(names(), ElementsAre(Pair("a", 1), Pair("b", 1), Pair("c", 1), Pair("own", kRanks)));
  std::fill(same.begin(), same.end(), 0.0F);
  for (int of = 0; of < kRanks; ++of) {
    const auto restored = ReadAlone(rank(of), Step(1), all[static_cast<std::size_t>(of)]);
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(same[29], 1.5F);
  }
}

TEST_F(Ranks, DifferentReplicatedValuesFailTheSave) {
  OpenAll();
  std::vector<SaveHandle> saves;
  for (int of = 0; of < kRanks; ++of) {
    saves.push_back(
        Start(of, 1, {.replicated = {.identical_values = {{"lr", of == 2 ? "0.2" : "0.1"}, {"epoch", "3"}}}}));
  }

  for (const Status& status : WaitAll(saves)) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("\"lr\": rank 0 has 0.1, rank 2 has 0.2"));
  }
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  ExpectWorksFrom(2);
}

// One rank expects another to write "c", and that one expects the opposite: nobody would write it.
TEST_F(Ranks, DifferentWritersFailTheSave) {
  OpenAll();
  std::vector<float> same(30, 1.5F);
  State state;
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(state.Add(name, {.data = &same[static_cast<std::size_t>(name[0] - 'a') * 10], .shape = {10}}).ok());
  }
  std::vector<SaveHandle> saves;
  for (int of = 0; of < kRanks; ++of) {
    Replicated replicated{.tensors = {"a", "b", "c"}};
    if (of == 2) replicated.rank0_tensors = {"c"};
    const auto save = rank(of).Save(1, state, {.replicated = replicated});
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }

  for (const Status& status : WaitAll(saves)) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("\"c\": rank 0 has rank 1 as its writer, rank 2 has rank 0 as its writer"));
  }
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  ExpectWorksFrom(2);
}

// In any order: only the coordinator makes the root.
TEST_F(Ranks, OpenAMissingRootInAnyOrder) {
  const auto local = MakeLocalGroup(kRanks);
  ranks_.resize(kRanks);
  std::vector<std::thread> others;
  for (int of = kRanks - 1; of >= 0; --of) {
    const auto open = [this, of, group = local[static_cast<std::size_t>(of)]] {
      Options options = SmallOptions(root());
      options.group = group;
      ranks_[static_cast<std::size_t>(of)] = OpenOrFail(options);
    };
    // The others wait for the coordinator, which comes last.
    of == 0 ? open() : static_cast<void>(others.emplace_back(open));
  }
  for (std::thread& other : others) other.join();

  EXPECT_THAT(SaveAll(1), Each(Status::Ok()));
}

TEST_F(Ranks, OpenFailsIfOneHasAnotherRoot) {
  const auto local = MakeLocalGroup(2);
  Options options = SmallOptions(root());
  options.group = local[0];
  const auto coordinator = OpenOrFail(options);
  ASSERT_NE(coordinator, nullptr);
  const std::string mount_point = root() + "-without-its-mount";
  std::filesystem::create_directory(mount_point);
  options.group = local[1];
  options.group_timeout = std::chrono::milliseconds(100);
  options.root = mount_point;

  const Status status = Checkpointer::Open(options).status();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(),
              HasSubstr(mount_point + "/.writer, which rank 0 has written, is not visible on rank 1 ("));
  EXPECT_THAT(status.message(),
              HasSubstr("(it has no writer): either the filesystem shows new names late there, or it is "
                        "another directory there: is a mount missing"));
}

TEST_F(Ranks, OpenFailsAtOnceIfTheCoordinatorFails) {
  const auto local = MakeLocalGroup(2);
  const auto writer = OpenOrFail(SmallOptions(root()));
  ASSERT_NE(writer, nullptr);
  Options options = SmallOptions(root());
  options.group_timeout = std::chrono::hours(1);
  options.group = local[0];
  EXPECT_EQ(Checkpointer::Open(options).status().code(), StatusCode::kFailedPrecondition);
  options.group = local[1];

  const Status status = Checkpointer::Open(options).status();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 0: " + root()));
  EXPECT_THAT(status.message(), HasSubstr("in this process"));
}

TEST_F(Ranks, AllFailIfOneDiskFails) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::uint64_t step = 2;
  for (int broken = 0; broken < kRanks; ++broken) {
    for (const IoOp op : {IoOp::kMkdir, IoOp::kOpen, IoOp::kFallocate, IoOp::kWrite, IoOp::kFtruncate, IoOp::kFsync}) {
      if (op == IoOp::kMkdir && broken != 0) continue;  // Rank 0 makes the folder.
      SCOPED_TRACE(testing::Message() << IoOpName(op) << " of rank " << broken);
      // Opening a spare may fail without failing the save.
      plan(broken).Fail({.op = op, .path = ".attempt-", .nth = 1}, EIO);

      const Statuses statuses = SaveAll(step);

      for (int of = 0; of < kRanks; ++of) {
        const Status& status = statuses[static_cast<std::size_t>(of)];
        EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
        EXPECT_EQ(rank(of).LastFailure(), status);
        if (of != broken) {
          EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(broken)));
        }
      }
      EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
      plan(broken).Clear();
      ++step;
      if (HasFailure()) return;
    }
  }
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  ExpectWorksFrom(step);
}

TEST_F(Ranks, AllFailIfTheCoordinatorCannotCommit) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  plan(0).Fail({.op = IoOp::kRename, .nth = 1}, EIO);

  const Statuses statuses = SaveAll(2);

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kIoError)));
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  ExpectWorksFrom(3);
}

TEST_F(Ranks, AllGetUnknownIfTheRootsFsyncFails) {
  OpenAll();
  plan(0).CallAfter({.op = IoOp::kRename, .nth = 1},
                    [this](const SeenOperation&) { plan(0).Fail({.op = IoOp::kFsync, .nth = 1}, EIO); });

  EXPECT_THAT(SaveAll(1), Each(HasCode(StatusCode::kUnknownOutcome)));

  ExpectWorksFrom(2);
}

TEST_F(Ranks, AllFailIfTheySaveDifferentSteps) {
  OpenAll();
  const std::vector<SaveHandle> saves = {Start(0, 5), Start(1, 5), Start(2, 6)};

  const Statuses statuses = WaitAll(saves);

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kFailedPrecondition)));
  for (const Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("rank 0 saves 5, rank 2 saves 6"));
  }
  EXPECT_EQ(plan(2).Count({.op = IoOp::kWrite, .path = "shard-"}), 0U) << "it failed before it began";
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  ExpectWorksFrom(7);
}

TEST_F(Ranks, FailAtTheDeadlineIfOneNeverComes) {
  for (int absent = 0; absent < kRanks; ++absent) {
    SCOPED_TRACE(testing::Message() << "without rank " << absent);
    OpenAll(std::chrono::milliseconds(200));
    std::vector<SaveHandle> saves;
    for (int of = 0; of < kRanks; ++of) {
      if (of != absent) saves.push_back(Start(of, 1));
    }

    const Statuses statuses = WaitAll(saves);

    // group_timeout, not the test's.
    for (const SaveHandle& save : saves) EXPECT_EQ(save.stats().phase, SavePhase::kFailed);
    EXPECT_THAT(statuses, Each(HasCode(StatusCode::kDeadlineExceeded)));
    // On a busy machine another rank may be late too.
    EXPECT_THAT(statuses[0].message(), absent == 0 ? ContainsRegex("rank 1 called save of step 1, and rank 0 did not")
                                                   : ContainsRegex("nothing from rank .*" + std::to_string(absent)));
    EXPECT_EQ(rank((absent + 1) % kRanks).Fence(), Status::Ok());
    EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
    CloseAll();
  }
}

// Only the coordinator decides, and a skipped save does not block others.
TEST_F(Ranks, AllCancelASaveThatTheCoordinatorSkips) {
  Options options = SmallOptions(root());
  options.max_in_flight = 1;
  options.when_full = WhenFull::kSkip;
  options.full_timeout = kNever;
  OpenAll(options);
  const FaultGate commit = plan(0).Hold({.op = IoOp::kRename, .path = "step-"});
  const std::vector<SaveHandle> first = StartAll(1);
  ASSERT_TRUE(commit.WaitHeld(Soon()));

  const Statuses statuses = WaitAll(StartAll(2));
  commit.Release();

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kCancelled)));
  EXPECT_THAT(statuses[1].message(), HasSubstr("rank 0: step 2: skipped"));
  EXPECT_THAT(WaitAll(first), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) {
    EXPECT_EQ(rank(of).Drain(Soon()), Status::Ok());
    EXPECT_EQ(rank(of).LastFailure(), Status::Ok());
  }
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
  ExpectWorksFrom(3);
}

TEST_F(Ranks, AllCancelASaveThatOneCancels) {
  OpenAll();
  const FaultGate gate = plan(1).Hold({.op = IoOp::kWrite, .path = "shard-"});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  EXPECT_TRUE(saves[1].Cancel());
  gate.Release();

  EXPECT_THAT(WaitAll(saves), Each(HasCode(StatusCode::kCancelled)));
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  ExpectWorksFrom(2);
}

// The others do not wait for a save that one rank rejects at once.
TEST_F(Ranks, AllFailASaveThatOneRejects) {
  OpenAll();
  Tensors bad(DeviceId{DeviceKind::kCuda, 63});
  bad.Add("elsewhere", 100'000);
  const SaveHandle first = Start(0, 1);
  const SaveHandle third = Start(2, 1);

  const auto refused = rank(1).Save(1, bad.state());

  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(first.WaitDurable(Soon()).message(), HasSubstr("rank 1"));
  EXPECT_THAT(third.WaitDurable(Soon()).message(), HasSubstr("rank 1"));
  ExpectWorksFrom(2);
}

// A rank whose save has failed may overwrite its tensors at once.
TEST_F(Ranks, FenceReturnsOnTheFailedRankWhileTheOthersStillWrite) {
  OpenAll();
  const FaultGate others = plan(0).Hold({.op = IoOp::kWrite, .path = "shard-"});
  const FaultGate own = plan(1).Hold({.op = IoOp::kWrite, .path = "shard-"});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(others.WaitHeld(Soon()) && own.WaitHeld(Soon()));

  EXPECT_TRUE(saves[1].Cancel());

  EXPECT_EQ(rank(1).Fence(), Status::Ok());
  EXPECT_LT(saves[0].stats().phase, SavePhase::kDurable);
  own.Release();
  others.Release();
  EXPECT_THAT(WaitAll(saves), Each(HasCode(StatusCode::kCancelled)));
}

// A rank's destructor waits for others only until its own deadline.
TEST_F(Ranks, DestructorDoesNotWaitForRanksThatNeverCome) {
  Options options = SmallOptions(root());
  options.group_timeout = std::chrono::hours(1);
  OpenAll(options);
  const SaveHandle alone = Start(0, 1);
  const SaveHandle other = Start(1, 1);

  // If these waited for the group, the test would time out.
  for (const int of : {0, 1}) {
    AbandonAtOnce(rank(of));
    ranks_[static_cast<std::size_t>(of)].reset();
  }

  EXPECT_EQ(alone.stats().phase, SavePhase::kFailed);
  EXPECT_EQ(other.stats().phase, SavePhase::kFailed);
  ranks_.clear();
  ExpectNothingLost(root(), std::nullopt, kRanks);
}

}  // namespace
}  // namespace cairn
