// Who may use a root, and what a forked child may do: processes, checkpointers, and readers during a write.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cairn/cairn.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Process, CannotOpenARootOfAnotherWriter) {
  const TempDir dir;
  Forked other([&](const Say& say) {
    const auto checkpointer = Checkpointer::Open(SmallOptions(dir / "run"));
    if (!checkpointer.ok() || !SaveDurably(**checkpointer, 1).ok()) return 2;
    say("open");
    while (true) ::pause();
  });
  ASSERT_EQ(other.NextLine(Soon()), "open");

  const auto refused = Checkpointer::Open(SmallOptions(dir / "run"));

  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr(dir / "run"));
  EXPECT_THAT(refused.status().message(), HasSubstr("process " + std::to_string(other.pid())));
  other.Kill();
  EXPECT_EQ(other.Wait(Soon()).how, Forked::How::kKilled);
  ExpectNothingLost(dir / "run", 1);
}

// Like a node that hung and comes back after its job was restarted elsewhere.
TEST(Process, StoppedDuringATakeOverCommitsNothingMore) {
  for (std::uint64_t round = 1; round <= 5; ++round) {
    SCOPED_TRACE(round);
    const TempDir dir;
    Options options = SmallOptions(dir / "run");
    options.keep_last = 0;
    Forked first([&](const Say& say) {
      const auto checkpointer = Checkpointer::Open(options);
      if (!checkpointer.ok()) return 2;
      for (std::uint64_t step = 1;; ++step) {
        const Status status = SaveDurably(**checkpointer, step);
        say(status.ok() ? std::to_string(step) : std::string(StatusCodeName(status.code())));
        if (!status.ok()) return 0;
      }
    });
    std::vector<std::uint64_t> acknowledged;
    while (acknowledged.size() < round) acknowledged.push_back(std::stoull(first.NextLine(Soon()).value()));
    ASSERT_EQ(::kill(first.pid(), SIGSTOP), 0);

    options.take_over = true;
    const auto second = OpenOrFail(options);
    ASSERT_NE(second, nullptr);
    std::vector<std::uint64_t> listed = ListedSteps(*second);
    EXPECT_EQ(SaveDurably(*second, 1000), Status::Ok());
    ASSERT_EQ(::kill(first.pid(), SIGCONT), 0);

    std::optional<std::string> line = first.NextLine(Soon());
    for (; line && line->find_first_not_of("0123456789") == std::string::npos; line = first.NextLine(Soon())) {
      acknowledged.push_back(std::stoull(*line));
    }
    EXPECT_EQ(line, "FailedPrecondition");
    EXPECT_EQ(first.Wait(Soon()).how, Forked::How::kExited);
    EXPECT_THAT(listed, ::testing::IsSupersetOf(acknowledged));
    listed.push_back(1000);
    EXPECT_EQ(ListedSteps(*second), listed) << "nothing may change after the listing";
    EXPECT_EQ(SaveDurably(*second, 1001), Status::Ok());
  }
}

TEST(Process, CannotOpenItsRootTwice) {
  const TempDir dir;
  auto first = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(first, nullptr);
  ASSERT_EQ(SaveDurably(*first, 1), Status::Ok());

  // Also under another name of the same directory.
  std::filesystem::create_directory_symlink(dir / "run", dir / "link");
  for (const std::string& path : {dir / "run", dir / "run/../run/", dir / "link"}) {
    const auto second = Checkpointer::Open(SmallOptions(path));
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(second.status().message(), HasSubstr("this process"));
  }

  // The first is not affected and keeps its lock against other processes.
  EXPECT_EQ(SaveDurably(*first, 2), Status::Ok());
  first.reset();
  ExpectNothingLost(dir / "run", 2);
}

TEST(Process, ReadsWhileAnotherWrites) {
  const TempDir dir;
  auto writer = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(writer, nullptr);
  ASSERT_EQ(SaveDurably(*writer, 1), Status::Ok());
  Options options = SmallOptions(dir / "run");
  options.read_only = true;
  const auto reader = OpenOrFail(options);
  ASSERT_NE(reader, nullptr);

  EXPECT_EQ(RestoreAndCompare(*reader, Latest()), Status::Ok());
  ASSERT_EQ(SaveDurably(*writer, 2), Status::Ok());
  EXPECT_THAT(ListedSteps(*reader), ElementsAre(1, 2));
  EXPECT_EQ(reader->Verify(Step(2)), Status::Ok());

  // It writes nothing.
  const auto state = SmallState(3);
  EXPECT_EQ(reader->Save(3, state->state()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(reader->Remove(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(reader->Pin(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(reader->WaitForPlace().code(), StatusCode::kFailedPrecondition);

  // A loop shared with a writer needs no special case.
  EXPECT_EQ(reader->Fence(), Status::Ok());
  EXPECT_EQ(reader->Drain(), Status::Ok());
  EXPECT_EQ(reader->LastFailure(), Status::Ok());
}

// Retention wants to remove a checkpoint that is being read: it stays until the next time.
TEST(Process, RetentionKeepsACheckpointBeingRead) {
  const TempDir dir;
  Options options = SmallOptions(dir / "run");
  options.keep_last = 1;
  std::atomic<int> said = 0;
  options.on_event = [&said](const Event& event) {
    if (event.message.starts_with("step 1 is kept for now")) ++said;
  };
  auto writer = OpenOrFail(options);
  ASSERT_NE(writer, nullptr);
  ASSERT_EQ(SaveDurably(*writer, 1), Status::Ok());
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kRead, .path = "shard-"});
  Options reading = SmallOptions(dir / "run");
  reading.read_only = true;
  const auto reader = OpenOrFail(reading, Through(plan));
  ASSERT_NE(reader, nullptr);
  Status read;
  std::thread thread([&] { read = RestoreAndCompare(*reader, Step(1)); });
  const bool held = gate.WaitHeld(Soon());

  for (const std::uint64_t step : {2, 3}) {
    EXPECT_EQ(SaveDurably(*writer, step), Status::Ok());
    EXPECT_EQ(writer->Drain(Soon()), Status::Ok());
  }

  EXPECT_TRUE(held);
  EXPECT_THAT(ListedSteps(*writer), ElementsAre(1, 3));
  EXPECT_EQ(said, 1);
  gate.Release();
  thread.join();
  EXPECT_EQ(read, Status::Ok());
  ASSERT_EQ(SaveDurably(*writer, 4), Status::Ok());
  EXPECT_EQ(writer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*writer), ElementsAre(4));
}

/// Reports the status if it is not FailedPrecondition.
void ExpectRefused(const Say& say, const std::string& what, const Status& status) {
  if (status.code() != StatusCode::kFailedPrecondition) say(what + ": " + status.ToString());
}

// A data-loader worker has a copy of everything but none of the threads.
TEST(ForkedChild, EveryCallFailsAndTheDestructorReturns) {
  const TempDir dir;
  const auto plan = FaultPlan::Make();
  auto checkpointer = OpenOrFail(SmallOptions(dir / "run"), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  // One save is writing when the child is forked.
  const FaultGate gate = plan->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const auto state = SmallState(2);
  auto save = checkpointer->Save(2, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  Forked child([&](const Say& say) {
    const auto fresh = SmallState(0);
    ExpectRefused(say, "Save", checkpointer->Save(3, fresh->state()).status());
    ExpectRefused(say, "Fence", checkpointer->Fence());
    ExpectRefused(say, "Drain", checkpointer->Drain());
    ExpectRefused(say, "Restore", checkpointer->Restore(Latest(), fresh->state()).status());
    ExpectRefused(say, "List", checkpointer->List().status());
    ExpectRefused(say, "Inspect", checkpointer->Inspect(Latest()).status());
    ExpectRefused(say, "Verify", checkpointer->Verify(Latest()));
    ExpectRefused(say, "Pin", checkpointer->Pin(1));
    ExpectRefused(say, "Unpin", checkpointer->Unpin(1));
    ExpectRefused(say, "Remove", checkpointer->Remove(1));
    ExpectRefused(say, "LastFailure", checkpointer->LastFailure());
    ExpectRefused(say, "WriteTrace", checkpointer->WriteTrace(dir / "trace.json"));
    ExpectRefused(say, "WaitCaptured", save->WaitCaptured());
    ExpectRefused(say, "WaitDurable", save->WaitDurable());
    ExpectRefused(say, "status", save->status());
    if (save->Cancel()) say("Cancel: true");
    if (checkpointer->stats().pool_bytes != 0) say("stats: of the parent");
    if (save->stats().phase != SavePhase::kQueued) say("the handle's stats: of the parent");
    save = Status(StatusCode::kCancelled, "dropped");
    checkpointer.reset();
    return 7;
  });
  const Forked::End end = child.Wait(Soon());

  EXPECT_EQ(end.how, Forked::How::kExited);
  EXPECT_EQ(end.value, 7);
  EXPECT_THAT(end.lines, ElementsAre());
  gate.Release();
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  checkpointer.reset();
  ExpectNothingLost(dir / "run", 3);
}

TEST(ForkedChild, LeavesTheParentsLockAlone) {
  const TempDir dir;
  std::array<int, 2> go{};
  ASSERT_EQ(::pipe2(go.data(), O_CLOEXEC), 0);
  // Forked while this process has a single thread, because it starts threads.
  Forked other([&](const Say& say) {
    ::close(go[1]);
    char byte = 0;
    if (::read(go[0], &byte, 1) != 1) return 2;
    say(Checkpointer::Open(SmallOptions(dir / "run")).status().ToString());
    return 0;
  });
  auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(checkpointer, nullptr);
  Forked child([&](const Say&) {
    checkpointer.reset();
    return 0;
  });
  ASSERT_EQ(child.Wait(Soon()).value, 0);

  ASSERT_EQ(::write(go[1], "!", 1), 1);
  const std::optional<std::string> said = other.NextLine(Soon());
  ::close(go[0]);
  ::close(go[1]);

  ASSERT_TRUE(said.has_value());
  EXPECT_THAT(*said, HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
}

class Closing : public testing::Test {
 protected:
  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::vector<std::unique_ptr<Tensors>> states_;

  std::vector<SaveHandle> StartThree(Checkpointer& checkpointer) {
    std::vector<SaveHandle> saves;
    for (std::uint64_t step = 2; step <= 4; ++step) {
      states_.push_back(SmallState(step));
      const auto save = checkpointer.Save(step, states_.back()->state());
      EXPECT_TRUE(save.ok()) << save.status();
      saves.push_back(*save);
    }
    return saves;
  }
};

TEST_F(Closing, DrainsSavesInFlightAndHandlesOutliveTheCheckpointer) {
  Options options = SmallOptions(dir_ / "run");
  options.keep_last = 2;
  auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  const std::vector<SaveHandle> saves = StartThree(*checkpointer);

  checkpointer.reset();

  for (const SaveHandle& save : saves) {
    EXPECT_EQ(save.WaitDurable(Deadline::In({})), Status::Ok());
    EXPECT_EQ(save.WaitCaptured(Deadline::In({})), Status::Ok());
    EXPECT_EQ(save.stats().phase, SavePhase::kDurable);
    EXPECT_FALSE(save.Cancel());
  }
  // Retention has finished too.
  EXPECT_TRUE(Leftovers(dir_ / "run").empty());
  EXPECT_FALSE(std::filesystem::exists(dir_ / "run/step-00000000000000000002"));
  ExpectNothingLost(dir_ / "run", 4);
}

TEST_F(Closing, AbandonsSavesAtTheDeadlineAndReportsThem) {
  Mutex mutex;
  std::vector<Event> failed;
  Options options = SmallOptions(dir_ / "run");
  options.on_event = [&](const Event& event) {
    MutexLock lock(mutex);
    if (event.kind == EventKind::kSaveFailed) failed.push_back(event);
  };
  auto checkpointer = OpenOrFail(options, Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  const FaultGate gate = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const std::vector<SaveHandle> saves = StartThree(*checkpointer);
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  AbandonAtOnce(*checkpointer);
  std::thread closer([&] { checkpointer.reset(); });
  // The two younger ones have no write in flight; the oldest waits for its write.
  for (const std::size_t younger : {2U, 1U}) {
    EXPECT_EQ(saves[younger].WaitDurable(Soon()).code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(saves[younger].stats().phase, SavePhase::kFailed);
  }
  gate.Release();
  closer.join();

  EXPECT_EQ(saves[0].stats().phase, SavePhase::kFailed);
  EXPECT_THAT(saves[0].status().message(), HasSubstr("closed"));
  EXPECT_FALSE(saves[0].Cancel());
  EXPECT_EQ(failed.size(), 3U);
  for (const Event& event : failed) EXPECT_EQ(event.severity, Severity::kError);
  EXPECT_TRUE(Leftovers(dir_ / "run").empty());
  ExpectNothingLost(dir_ / "run", 1);
}

// In a child, because unanswered writes remain until the process exits.
TEST_F(Closing, LeavesUnansweredSavesBehindAndNotifiesWaiters) {
  for (const auto& [hangs, expected] :
       {std::pair(FaultMatch{.op = IoOp::kWrite, .path = "shard-"}, "DeadlineExceeded"),
        std::pair(FaultMatch{.op = IoOp::kFsync, .path = "shard-"}, "UnknownOutcome")}) {
    Forked child([&, match = hangs, expected = expected](const Say& say) {
      const FaultGate gate = plan_->Hold(match);
      {
        std::string told;
        Options options = SmallOptions(dir_ / expected);
        options.close_timeout = 100ms;
        options.on_event = [&told](const Event& event) { told = event.message; };
        auto checkpointer = OpenOrFail(options, Through(plan_));
        const auto state = SmallState(1);
        const auto save = checkpointer->Save(1, state->state());
        if (!save.ok() || !gate.WaitHeld(Soon())) return 1;

        checkpointer.reset();

        say(std::string(StatusCodeName(save->WaitDurable(Deadline::In({})).code())));
        say(save->WaitCaptured(Deadline::In({})).ok() ? "captured" : "not captured");
        say(told);
        const auto second = Checkpointer::Open(options);
        say(second.ok() ? "open" : second.status().message());
      }
      // The abandoned engine continues, and calls nobody.
      gate.Release();
      Options options = SmallOptions(dir_ / expected);
      options.open_timeout = 60s;
      return OpenOrFail(options) == nullptr ? 1 : 0;
    });

    EXPECT_EQ(child.NextLine(Soon()), expected);
    EXPECT_TRUE(child.NextLine(Soon()).has_value());
    EXPECT_THAT(*child.NextLine(Soon()), HasSubstr("this goes on behind: 1 save (step 1)"));
    EXPECT_THAT(*child.NextLine(Soon()), HasSubstr("what goes on behind that has not ended"));
    EXPECT_EQ(child.Wait(Soon()).value, 0);
  }
}

TEST_F(Closing, FinishesACommitThatHasBegun) {
  auto checkpointer = OpenOrFail(SmallOptions(dir_ / "run"), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  const FaultGate gate = plan_->Hold({.op = IoOp::kFsync, .path = "manifest.json"});
  const auto state = SmallState(1);
  const auto save = checkpointer->Save(1, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  AbandonAtOnce(*checkpointer);
  std::thread closer([&] { checkpointer.reset(); });
  gate.Release();
  closer.join();

  EXPECT_EQ(save->status(), Status::Ok());
  ExpectNothingLost(dir_ / "run", 1);
}

}  // namespace
}  // namespace cairn
