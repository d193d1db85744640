// The disk does not answer an operation: every wait ends, nothing acknowledged is lost, nothing failed commits later,
// and saves go on once it answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "support/forked.h"
#include "support/points.h"
#include "support/small_run.h"
#include "support/three_ranks.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr milliseconds kStall{200};

/// Events of one checkpointer. Safe from any thread.
class Heard {
 public:
  [[nodiscard]] EventCallback callback() {
    return [this](const Event& event) {
      MutexLock lock(mutex_);
      messages_.push_back(event.message);
      changed_.NotifyAll();
    };
  }
  [[nodiscard]] bool Await(const std::string& part, std::ptrdiff_t times = 1) {
    const Deadline deadline = Soon();
    MutexLock lock(mutex_);
    const auto there = [&]() CAIRN_REQUIRES(mutex_) {
      return std::count_if(messages_.begin(), messages_.end(), [&](const std::string& message) {
               return message.find(part) != std::string::npos;
             }) >= times;
    };
    while (!there() && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
    return there();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> messages_ CAIRN_GUARDED_BY(mutex_);
};

/// Once the disk answers, a save is taken again: with the first step from `step` on that is free.
template <typename SaveAll>
bool SavesAgain(const SaveAll& save) {
  for (const Deadline deadline = Soon(); !deadline.passed();) {
    Status worst;
    for (const Status& status : save()) {
      if (!status.ok()) worst = status;
    }
    if (worst.ok()) return true;
    if (worst.detail() != StatusDetail::kDiskHangs) {
      ADD_FAILURE() << worst;
      return false;
    }
  }
  return false;
}

class DiskHangs : public Ranks, public testing::WithParamInterface<int> {
 protected:
  [[nodiscard]] Options Stalling() const {
    Options options = SmallOptions(root());
    options.stall_timeout = kStall;
    options.group_timeout = seconds(5);
    options.keep_last = 0;
    return options;
  }
};

// On one rank or another, at each operation of a save in turn.
TEST_P(DiskHangs, AtAnyOperationEndsTheSaveOnAllRanks) {
  const int hung = GetParam();
  OpenAll(Stalling());
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  std::uint64_t step = 2;
  const Points points = SomePoints(3);
  for (std::uint64_t k = 1 + points.first;; k += points.stride) {
    for (const auto& one : ranks_) ASSERT_EQ(one->Drain(Soon()), Status::Ok());
    plan(hung).Clear();
    const std::size_t before = plan(hung).Seen().size();
    const FaultGate gate = plan(hung).Hold({.nth = k});

    const std::vector<SaveHandle> saves = StartAll(step);
    for (const auto& one : ranks_) ASSERT_EQ(one->Fence({}, Soon()), Status::Ok());
    const Statuses ends = WaitAll(saves);

    const bool reached = plan(hung).Seen().size() - before >= k;
    SCOPED_TRACE(testing::Message() << "operation " << k << ": " << ends[0] << "; " << ends[1] << "; " << ends[2]);
    gate.Release();
    plan(hung).Clear();
    std::uint64_t next = step + 1;
    ASSERT_TRUE(SavesAgain([&] { return SaveAll(next++); }));
    const std::vector<std::uint64_t> listed = ListedSteps(rank(0));
    const bool committed = std::find(listed.begin(), listed.end(), step) != listed.end();
    for (const Status& end : ends) {
      if (end.code() == StatusCode::kUnknownOutcome) continue;
      EXPECT_EQ(committed, end.ok()) << end;
    }
    step = next;
    if (HasFailure() || !reached) break;
  }
  CloseAll();
  ExpectNothingLost(root(), step - 1, kRanks);
}
INSTANTIATE_TEST_SUITE_P(OfRank, DiskHangs, testing::Values(0, 1));

class DiskHangsAlone : public testing::Test {
 protected:
  void Open(milliseconds stall = kStall) {
    options_ = SmallOptions(dir_ / "run");
    options_.stall_timeout = stall;
    options_.on_event = heard_.callback();
    checkpointer_ = OpenOrFail(options_, Through(plan_));
    ASSERT_NE(checkpointer_, nullptr);
    ASSERT_EQ(SaveDurably(*checkpointer_, 1), Status::Ok());
  }
  SaveHandle Start(std::uint64_t step) {
    states_.push_back(SmallState(step));
    return *checkpointer_->Save(step, states_.back()->state());
  }

  const TempDir dir_{"/dev/shm"};  // A real disk may stall, too.
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  Heard heard_;
  Options options_;
  std::vector<std::unique_ptr<Tensors>> states_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(DiskHangsAlone, IsReportedByNameAfterASecondAndAgainLater) {
  Open(std::chrono::hours(1));
  const FaultGate gate = plan_->Hold({.op = IoOp::kFsync, .path = "shard-"});

  const SaveHandle save = Start(2);

  EXPECT_TRUE(heard_.Await("has waited for the disk for ", 2));
  EXPECT_TRUE(heard_.Await("fsync of " + (dir_ / "run"), 2));
  EXPECT_EQ(save.stats().phase, SavePhase::kCommitting);
  gate.Release();
  EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
}

TEST_F(DiskHangsAlone, OpeningSaysWhatItWaitsFor) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kRename, .path = ".writer"});
  Options options = SmallOptions(dir_ / "run");
  std::string told;
  options.on_event = [&](const Event& event) {
    if (told.empty()) told = event.message;
    gate.Release();
  };

  EXPECT_NE(OpenOrFail(options, Through(plan_)), nullptr);

  EXPECT_THAT(told, AllOf(HasSubstr("rename of "), HasSubstr(".writer"), HasSubstr("has waited for the disk for 1")));
}

TEST_F(DiskHangsAlone, SavesAreRefusedUntilItAnswers) {
  Open();
  const FaultGate gate = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const SaveHandle hung = Start(2);
  const Status failed = hung.WaitDurable(Soon());
  EXPECT_EQ(failed.detail(), StatusDetail::kDiskHangs);
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("step 2: write of "), HasSubstr("shard-"), HasSubstr("stall_timeout")));

  const Status refused = Start(3).WaitDurable(Soon());

  EXPECT_EQ(refused.detail(), StatusDetail::kDiskHangs);
  EXPECT_THAT(refused.message(), HasSubstr("step 3: not begun"));
  EXPECT_EQ(checkpointer_->Fence(), Status::Ok());
  EXPECT_EQ(checkpointer_->LastFailure(), refused);
  EXPECT_THAT(checkpointer_->MetricsText(), ContainsRegex("\ncairn_disk_hangs[^\n]* 1\n"));
  plan_->Clear();
  gate.Release();
  ASSERT_TRUE(heard_.Await("the disk answers again"));
  EXPECT_THAT(checkpointer_->MetricsText(), ContainsRegex("\ncairn_disk_hangs[^\n]* 0\n"));
  EXPECT_EQ(SaveDurably(*checkpointer_, 4), Status::Ok());
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_THAT(Leftovers(dir_ / "run"), testing::IsEmpty());
}

// The pool is smaller than the states in flight, so the fence waits for the disk.
TEST_F(DiskHangsAlone, FenceReturnsAndTheRestIsReadNoMore) {
  Open();
  Tensors large = Tensors::Many(4, 1 << 20);
  const FaultGate gate = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const auto save = checkpointer_->Save(2, large.state());
  ASSERT_TRUE(save.ok()) << save.status();

  EXPECT_EQ(checkpointer_->Fence({}, Soon()), Status::Ok());

  EXPECT_EQ(save->WaitCaptured(Deadline::In({})).detail(), StatusDetail::kDiskHangs);
  gate.Release();
}

TEST_F(DiskHangsAlone, FailureIsToldThoughTheRemovalOfItsAttemptHangs) {
  Open(std::chrono::hours(1));
  const FaultGate gate = plan_->Hold({.op = IoOp::kRename, .path = ".retired-"});
  plan_->Fail({.op = IoOp::kWrite, .path = "shard-", .nth = 1}, EIO);

  EXPECT_EQ(SaveDurably(*checkpointer_, 2).code(), StatusCode::kIoError);

  EXPECT_EQ(checkpointer_->stats().saves_in_flight, 0U);
  EXPECT_EQ(SaveDurably(*checkpointer_, 3), Status::Ok());
  EXPECT_THAT(checkpointer_->Drain(Deadline::In({})).message(), HasSubstr("what 1 ended save left to remove"));
  EXPECT_TRUE(heard_.Await("has waited for the disk"));
  gate.Release();
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_THAT(Leftovers(dir_ / "run"), testing::IsEmpty());
}

TEST_F(DiskHangsAlone, DurableSaveDoesNotWaitForTheRemovalOfWhatItReplaced) {
  Open();
  const FaultGate gate = plan_->Hold({.op = IoOp::kUnlink, .path = ".attempt-"});

  EXPECT_EQ(SaveDurably(*checkpointer_, 1, {.if_exists = IfExists::kReplace}), Status::Ok());

  EXPECT_EQ(SaveDurably(*checkpointer_, 2), Status::Ok());
  gate.Release();
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
}

// In a child, because what the disk has not answered remains until the process ends.
TEST_F(DiskHangsAlone, EndsCallsThatBlockTheirCaller) {
  Forked child([&](const Say& say) {
    Options options = SmallOptions(dir_ / "run");
    options.stall_timeout = kStall;
    const auto checkpointer = OpenOrFail(options, Through(plan_));
    if (SaveDurably(*checkpointer, 1) != Status::Ok()) return 1;
    const FaultGate removes = plan_->Hold({.op = IoOp::kRename, .path = ".retired-"});
    say(checkpointer->Remove(1).ToString());
    say(checkpointer->Pin(1).ToString());
    // It goes on behind its caller, and is known then.
    removes.Release();
    for (const Deadline deadline = Soon(); !deadline.passed() && !ListedSteps(*checkpointer).empty();) {
    }
    say(SaveDurably(*checkpointer, 1).ToString());
    return 0;
  });

  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(
        child.NextLine(Soon()).value_or("nothing"),
        AllOf(HasSubstr("DeadlineExceeded: rename of "), HasSubstr("step-"), HasSubstr("beyond stall_timeout")));
  }
  EXPECT_EQ(child.NextLine(Soon()), "Ok");
}

// Such as the removal of a file that was made in vain, which is part of a save.
TEST_F(DiskHangsAlone, UnlinkWithinASaveCountsAsWell) {
  Open();
  plan_->Fail({.op = IoOp::kOpen, .path = "shard-", .nth = 1}, EINVAL);  // O_DIRECT is refused.
  const FaultGate gate = plan_->Hold({.op = IoOp::kUnlink, .path = "shard-"});

  EXPECT_EQ(Start(2).WaitDurable(Soon()).detail(), StatusDetail::kDiskHangs);

  plan_->Clear();
  gate.Release();
  ASSERT_TRUE(heard_.Await("the disk answers again"));
  EXPECT_EQ(SaveDurably(*checkpointer_, 3), Status::Ok());
}

// Two saves whose renames hang. Each counts once the disk has answered it.
TEST_F(DiskHangsAlone, ListsASaveOfUnknownOutcomeOnlyOnceItIsDecided) {
  Open();
  const FaultGate first = plan_->Hold({.op = IoOp::kRename, .path = "step-", .nth = 1});
  const FaultGate second = plan_->Hold({.op = IoOp::kRename, .path = "step-", .nth = 2});
  const SaveHandle two = Start(2);
  const SaveHandle three = Start(3);
  ASSERT_TRUE(first.WaitHeld(Soon()) && second.WaitHeld(Soon()));
  EXPECT_EQ(two.WaitDurable(Soon()).code(), StatusCode::kUnknownOutcome);
  EXPECT_EQ(three.WaitDurable(Soon()).code(), StatusCode::kUnknownOutcome);

  first.Release();
  second.Release();

  ASSERT_TRUE(heard_.Await("the disk answers again"));
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_EQ(SaveDurably(*checkpointer_, 3, {.if_exists = IfExists::kReplace}), Status::Ok());
}

// The same.
TEST_F(DiskHangsAlone, ClosesWithinCloseTimeout) {
  Forked child([&](const Say& say) {
    for (const milliseconds stall : {milliseconds(3'600'000), kStall}) {
      const auto plan = FaultPlan::Make();
      Options options = SmallOptions(dir_ / std::to_string(stall.count()));
      options.stall_timeout = stall;
      options.close_timeout = seconds(1);
      auto checkpointer = OpenOrFail(options, Through(plan));
      const FaultGate gate = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});
      const auto state = SmallState(1);
      const auto save = checkpointer->Save(1, state->state());
      if (!save.ok() || !gate.WaitHeld(Soon())) return 1;
      const auto begun = Deadline::Clock::now();
      checkpointer.reset();
      say(Deadline::Clock::now() - begun < milliseconds(1500) ? "in time" : "late");
      say(std::string(StatusCodeName(save->status().code())));
    }
    return 0;
  });

  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(child.NextLine(Soon()), "in time");
    EXPECT_EQ(child.NextLine(Soon()), "DeadlineExceeded");
  }
}

}  // namespace
}  // namespace cairn
