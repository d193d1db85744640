// Several ranks that write one checkpoint: all of them have it, or none does, or they say that they don't know.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "group/local_group.h"
#include "support/held_group.h"
#include "support/small_run.h"
#include "support/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int kRanks = 3;
constexpr std::chrono::hours kNever{1};  // A group's deadline that a test alone makes pass.
using Statuses = std::vector<Status>;

MATCHER_P(HasCode, code, "") { return arg.code() == code; }

/// Three checkpointers on one root; rank r's queues follow plans_[r], its group is behind groups_[r].
class Ranks : public testing::Test {
 protected:
  void OpenAll(Options options) {
    const auto local = MakeLocalGroup(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      plans_.push_back(FaultPlan::Make());
      groups_.push_back(std::make_shared<HeldGroup>(local[static_cast<std::size_t>(rank)]));
      ranks_.push_back(OpenOrFail(options, Through(plans_.back(), groups_.back())));
      ASSERT_NE(ranks_.back(), nullptr);
    }
  }
  void OpenAll() { OpenAll(SmallOptions(root())); }
  void OpenAll(std::chrono::nanoseconds group_deadline) {
    Options options = SmallOptions(root());
    options.group_deadline = group_deadline;
    OpenAll(options);
  }

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] Checkpointer& rank(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] FaultPlan& plan(int rank) { return *plans_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] HeldGroup& group(int rank) { return *groups_[static_cast<std::size_t>(rank)]; }

  SaveHandle Start(int of, std::uint64_t step, const SaveOptions& options = {}) {
    states_.push_back(SmallState(step, of));
    auto save = rank(of).Save(step, states_.back()->state(), options);
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }
  std::vector<SaveHandle> StartAll(std::uint64_t step) {
    std::vector<SaveHandle> saves;
    for (int of = 0; of < kRanks; ++of) saves.push_back(Start(of, step));
    return saves;
  }
  static Statuses WaitAll(const std::vector<SaveHandle>& saves) {
    Statuses statuses;
    for (const SaveHandle& save : saves) statuses.push_back(save.WaitDurable(Soon()));
    return statuses;
  }
  /// Where the coordinator's word is lost: the others hear nothing, and their deadline passes once it has ended.
  Statuses WaitAllWithoutTheOutcome(const std::vector<SaveHandle>& saves) {
    static_cast<void>(saves[0].WaitDurable(Soon()));
    for (int of = 1; of < kRanks; ++of) group(of).Expire("outcome/");
    return WaitAll(saves);
  }
  Statuses SaveAll(std::uint64_t step) { return WaitAll(StartAll(step)); }

  void ExpectWorksFrom(std::uint64_t step) {
    for (const auto& one : plans_) one->Clear();
    EXPECT_THAT(SaveAll(step), Each(Status::Ok()));
    EXPECT_THAT(ListedSteps(rank(0)), testing::Contains(step));
  }

  const TempDir dir_;
  std::vector<std::unique_ptr<Tensors>> states_;  // Until every save is over.
  std::vector<std::shared_ptr<FaultPlan>> plans_;
  std::vector<std::shared_ptr<HeldGroup>> groups_;
  std::vector<std::unique_ptr<Checkpointer>> ranks_;
};

TEST_F(Ranks, SaveAndRestoreOneCheckpoint) {
  OpenAll();

  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  ASSERT_THAT(SaveAll(2), Each(Status::Ok()));

  const auto list = rank(1).List();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 2U);
  EXPECT_EQ(list->back().world, 3U);
  for (int of = 0; of < kRanks; ++of) {
    const auto fresh = SmallState(0, of);
    const auto restored = rank(of).Restore(Latest(), fresh->state());
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->step, 2U);
    EXPECT_TRUE(Holds(*fresh, 2, of));
  }
  ranks_.clear();
  ExpectNothingLost(root(), 2, kRanks);
}

TEST_F(Ranks, ThatRestoredDifferentCheckpointsCommitNoMixture) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));
  for (int of = 0; of < kRanks; ++of) {
    ASSERT_TRUE(rank(of).Restore(Step(of == 1 ? 1 : 2), SmallState(0, of)->state()).ok());
  }

  const Statuses statuses = SaveAll(3);

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kFailedPrecondition)));
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1"));
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1, 2));
  for (int of = 0; of < kRanks; ++of) {
    ASSERT_TRUE(rank(of).Restore(Step(2), SmallState(0, of)->state()).ok());
  }
  ranks_.clear();
  ExpectNothingLost(root(), 2, kRanks);
}

TEST_F(Ranks, SaveAStepAgainThatTheCoordinatorRemoved) {
  OpenAll();
  for (const std::uint64_t step : {1, 2}) ASSERT_THAT(SaveAll(step), Each(Status::Ok()));

  EXPECT_EQ(rank(1).Remove(2).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rank(0).Remove(2), Status::Ok());

  EXPECT_THAT(SaveAll(2), Each(Status::Ok()));
}

TEST_F(Ranks, ThatGiveASaveUpTellTheOthers) {
  OpenAll();

  const std::vector<SaveHandle> saves = {Start(0, 1), Start(1, 1)};
  const auto given_up = rank(2).GiveUp(1, Status(StatusCode::kInvalidArgument, "no such thing"));

  ASSERT_TRUE(given_up.ok()) << given_up.status();
  EXPECT_THAT(given_up->WaitDurable(Soon()).message(), HasSubstr("no such thing"));
  for (const Status& status : WaitAll(saves)) EXPECT_THAT(status.message(), HasSubstr("rank 2: no such thing"));
  ExpectWorksFrom(2);
}

TEST_F(Ranks, WriteWhatTheyHoldAlikeOnce) {
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
    const auto save = rank(of).Save(1, state, {.replicated = {.tensors = {"a", "b", "c"}, .alike = {{"lr", "1"}}}});
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }

  ASSERT_THAT(WaitAll(saves), Each(Status::Ok()));

  EXPECT_THAT(names(), ElementsAre(Pair("a", 1), Pair("b", 1), Pair("c", 1), Pair("own", kRanks)));
  std::fill(same.begin(), same.end(), 0.0F);
  for (int of = 0; of < kRanks; ++of) {
    const auto restored = rank(of).Restore(Step(1), all[static_cast<std::size_t>(of)]);
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(same[29], 1.5F);
  }
}

TEST_F(Ranks, ThatHoldSomethingElseFailTheSaveByName) {
  OpenAll();
  std::vector<SaveHandle> saves;
  for (int of = 0; of < kRanks; ++of) {
    saves.push_back(Start(of, 1, {.replicated = {.alike = {{"lr", of == 2 ? "0.2" : "0.1"}, {"epoch", "3"}}}}));
  }

  for (const Status& status : WaitAll(saves)) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("\"lr\": rank 0 has 0.1, rank 2 has 0.2"));
  }
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  ExpectWorksFrom(2);
}

// Whichever rank comes first: the coordinator alone makes the root.
TEST_F(Ranks, OpenInAnyOrderOnARootThatIsMissing) {
  const auto local = MakeLocalGroup(kRanks);
  for (int of = kRanks - 1; of >= 0; --of) {
    Wiring wiring;
    wiring.group = local[static_cast<std::size_t>(of)];
    ranks_.insert(ranks_.begin(), OpenOrFail(SmallOptions(root()), wiring));
    ASSERT_NE(ranks_.front(), nullptr);
  }

  EXPECT_THAT(SaveAll(1), Each(Status::Ok()));
}

TEST_F(Ranks, AllFailWhereTheDiskOfOneFails) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::uint64_t step = 2;
  for (int broken = 0; broken < kRanks; ++broken) {
    for (const IoOp op : {IoOp::kMkdir, IoOp::kOpen, IoOp::kFallocate, IoOp::kWrite, IoOp::kFtruncate, IoOp::kFsync}) {
      SCOPED_TRACE(testing::Message() << IoOpName(op) << " of rank " << broken);
      // Whether a spare can be opened is nobody's failure.
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

TEST_F(Ranks, AllFailWhereTheCoordinatorCannotCommit) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  plan(0).Fail({.op = IoOp::kRename, .nth = 1}, EIO);

  const Statuses statuses = SaveAll(2);

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kIoError)));
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  ExpectWorksFrom(3);
}

TEST_F(Ranks, AllAreToldUnknownWhereTheRootsFsyncFails) {
  OpenAll();
  plan(0).CallAfter({.op = IoOp::kRename, .nth = 1},
                    [this](const SeenOperation&) { plan(0).Fail({.op = IoOp::kFsync, .nth = 1}, EIO); });

  EXPECT_THAT(SaveAll(1), Each(HasCode(StatusCode::kUnknownOutcome)));

  ExpectWorksFrom(2);
}

TEST_F(Ranks, AllFailWhereTheySaveDifferentSteps) {
  OpenAll();
  const std::vector<SaveHandle> saves = {Start(0, 5), Start(1, 5), Start(2, 6)};

  const Statuses statuses = WaitAll(saves);

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kFailedPrecondition)));
  EXPECT_THAT(statuses[1].message(), HasSubstr("rank 2 saves 6"));
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  EXPECT_THAT(Leftovers(root()), IsEmpty());
  ExpectWorksFrom(7);
}

TEST_F(Ranks, FailAtTheDeadlineWhereOneNeverComes) {
  for (int absent = 0; absent < kRanks; ++absent) {
    SCOPED_TRACE(testing::Message() << "without rank " << absent);
    OpenAll(std::chrono::milliseconds(200));
    std::vector<SaveHandle> saves;
    for (int of = 0; of < kRanks; ++of) {
      if (of != absent) saves.push_back(Start(of, 1));
    }

    const Statuses statuses = WaitAll(saves);

    // The group's deadline, not the test's.
    for (const SaveHandle& save : saves) EXPECT_EQ(save.stats().phase, SavePhase::kFailed);
    EXPECT_THAT(statuses, Each(HasCode(StatusCode::kDeadlineExceeded)));
    // On a busy machine another one may be late, too.
    EXPECT_THAT(statuses[0].message(), ContainsRegex("nothing from rank .*" + std::to_string(absent)));
    EXPECT_EQ(rank((absent + 1) % kRanks).Fence(), Status::Ok());
    EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
    ranks_.clear();
    groups_.clear();
    plans_.clear();
  }
}

// One rank's disk hangs: its word never comes while the others wait for it.
TEST_F(Ranks, NeverCallItDurableWhereTheDiskOfAnotherHangs) {
  for (int slow = 0; slow < kRanks; ++slow) {
    SCOPED_TRACE(testing::Message() << "rank " << slow);
    OpenAll(kNever);
    const FaultGate gate = plan(slow).Hold({.op = IoOp::kFsync, .path = "shard-"});
    const std::vector<SaveHandle> saves = StartAll(1);
    ASSERT_TRUE(gate.WaitHeld(Soon()));

    for (int of = 0; of < kRanks; ++of) {
      if (of != slow) group(of).Expire("prepared/");
    }
    for (int of = 0; of < kRanks; ++of) {
      if (of == slow) continue;
      const Status status = saves[static_cast<std::size_t>(of)].WaitDurable(Soon());
      EXPECT_EQ(saves[static_cast<std::size_t>(of)].stats().phase, SavePhase::kFailed);
      EXPECT_THAT(status.code(), AnyOf(StatusCode::kDeadlineExceeded, StatusCode::kUnknownOutcome)) << status;
    }
    gate.Release();
    if (slow != 0) group(slow).Expire("outcome/");

    const Status late = saves[static_cast<std::size_t>(slow)].WaitDurable(Soon());
    if (slow == 0) {
      // The coordinator has all words by now and commits; the others have said that they don't know.
      EXPECT_EQ(late, Status::Ok());
      EXPECT_EQ(saves[1].status().code(), StatusCode::kUnknownOutcome);
    } else {
      EXPECT_EQ(saves[static_cast<std::size_t>(slow)].stats().phase, SavePhase::kFailed) << late;
      EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
    }
    ranks_.clear();
    groups_.clear();
    plans_.clear();
    ExpectNothingLost(root(), std::nullopt, kRanks);
    std::filesystem::remove_all(root());
  }
}

// The commit is done, and word of it does not arrive: the disk knows.
TEST_F(Ranks, FindTheCommittedStepWhereTheCoordinatorsWordIsLost) {
  OpenAll(kNever);
  group(0).Lose("outcome/");

  const Statuses statuses = WaitAllWithoutTheOutcome(StartAll(1));

  EXPECT_THAT(statuses, Each(Status::Ok()));
  for (int of = 1; of < kRanks; ++of) {
    // Who has not heard fsyncs the root itself before it says so.
    const std::vector<SeenOperation> seen = plan(of).Seen();
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back().op, IoOp::kFsync);
    EXPECT_EQ(seen.back().path, root());
  }
  groups_.clear();
  ranks_.clear();
  ExpectNothingLost(root(), 1, kRanks);
}

TEST_F(Ranks, SayUnknownWhereTheWordIsLostAndTheStepIsAnotherAttempts) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  group(0).Lose("outcome/");
  plan(0).Fail({.op = IoOp::kRename, .nth = 1}, EIO);

  std::vector<SaveHandle> saves;
  for (int of = 0; of < kRanks; ++of) saves.push_back(Start(of, 1, {.if_exists = IfExists::kReplace}));
  const Statuses statuses = WaitAllWithoutTheOutcome(saves);

  EXPECT_EQ(statuses[0].code(), StatusCode::kIoError) << statuses[0];
  EXPECT_EQ(statuses[1].code(), StatusCode::kUnknownOutcome) << statuses[1];
  EXPECT_EQ(statuses[2].code(), StatusCode::kUnknownOutcome) << statuses[2];
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
}

TEST_F(Ranks, SayUnknownWhereTheWordIsLostAndTheDiskCannotBeAsked) {
  OpenAll(kNever);
  group(0).Lose("outcome/");
  plan(1).Fail({.op = IoOp::kRead}, EIO);
  plan(2).CallBefore({.op = IoOp::kRead}, [this](const SeenOperation&) { plan(2).Fail({.op = IoOp::kFsync}, EIO); });

  const Statuses statuses = WaitAllWithoutTheOutcome(StartAll(1));

  EXPECT_EQ(statuses[0], Status::Ok());
  EXPECT_EQ(statuses[1].code(), StatusCode::kUnknownOutcome) << statuses[1];
  EXPECT_EQ(statuses[2].code(), StatusCode::kUnknownOutcome) << statuses[2];
}

TEST_F(Ranks, AllGiveUpASaveThatOneSkips) {
  Options options = SmallOptions(root());
  options.max_in_flight = 1;
  options.when_full = WhenFull::kSkip;
  OpenAll(options);
  // Rank 1 alone has a save in flight when the second comes: the others' first is over, as far as they can tell.
  group(1).Hold("outcome/");
  const std::vector<SaveHandle> first = StartAll(1);
  EXPECT_EQ(first[0].WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(first[2].WaitDurable(Soon()), Status::Ok());
  // A place is free once the engine has let go of the save, just after its end.
  EXPECT_EQ(rank(0).Drain(Soon()), Status::Ok());
  EXPECT_EQ(rank(2).Drain(Soon()), Status::Ok());

  const std::vector<SaveHandle> second = StartAll(2);
  const Statuses statuses = WaitAll(second);
  group(1).Release();

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kCancelled)));
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1"));
  EXPECT_EQ(first[1].WaitDurable(Soon()), Status::Ok());
  for (int of = 0; of < kRanks; ++of) {
    EXPECT_EQ(rank(of).Drain(Soon()), Status::Ok());
    EXPECT_EQ(rank(of).LastFailure(), Status::Ok());
  }
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
  ExpectWorksFrom(3);
}

TEST_F(Ranks, AllGiveUpASaveThatOneCancels) {
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

// A save that one rank refuses at once is not waited for by the others.
TEST_F(Ranks, AllFailASaveThatOneRefuses) {
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

// A rank whose save has failed may overwrite its tensors, whatever the others are doing.
TEST_F(Ranks, FenceReturnsOnTheFailedRankWhileTheOthersStillWrite) {
  OpenAll();
  const FaultGate others = plan(0).Hold({.op = IoOp::kFsync, .path = "shard-"});
  plan(1).Fail({.op = IoOp::kFallocate}, EIO);
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(others.WaitHeld(Soon()));

  EXPECT_EQ(rank(1).Fence(), Status::Ok());
  EXPECT_LT(saves[0].stats().phase, SavePhase::kDurable);

  others.Release();
  EXPECT_THAT(WaitAll(saves), Each(HasCode(StatusCode::kIoError)));
}

// The destructor of one rank does not wait for others beyond its own deadline.
TEST_F(Ranks, DestructorDoesNotWaitForRanksThatNeverCome) {
  Options options = SmallOptions(root());
  options.group_deadline = std::chrono::hours(1);
  options.drain_deadline = std::chrono::milliseconds(0);
  OpenAll(options);
  const SaveHandle alone = Start(0, 1);
  const SaveHandle other = Start(1, 1);

  // Waits for no group: were it to, the test's own limit would end it.
  ranks_[0].reset();
  ranks_[1].reset();

  EXPECT_EQ(alone.stats().phase, SavePhase::kFailed);
  EXPECT_EQ(other.stats().phase, SavePhase::kFailed);
  ranks_.clear();
  ExpectNothingLost(root(), std::nullopt, kRanks);
}

}  // namespace
}  // namespace cairn
