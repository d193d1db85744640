#include "support/faulty_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGKILL
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "io/thread_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class FaultyQueues : public testing::Test {
 protected:
  FaultyQueues() : queue_(MakeQueue()) {}

  std::unique_ptr<IoQueue> MakeQueue() {
    return *plan_->Wrap([] { return MakeThreadQueue(2); })();
  }
  std::int64_t Run(IoRequest request) {
    const auto result = RunBlocking(*queue_, std::move(request));
    if (result.ok()) return *result;
    error_ = result.status().message();
    return -1;
  }
  std::int64_t Mkdir(const std::string& name) { return Run({.op = IoOp::kMkdir, .path = dir_ / name, .mode = 0755}); }
  int OpenFile() {
    return static_cast<int>(Run({.op = IoOp::kOpen, .path = dir_ / "shard", .flags = O_RDWR | O_CREAT, .mode = 0644}));
  }
  [[nodiscard]] bool Exists(const std::string& name) const { return std::filesystem::exists(dir_ / name); }

  TempDir dir_;
  std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::unique_ptr<IoQueue> queue_;
  std::string error_;
};

TEST_F(FaultyQueues, FailsWithoutRunning) {
  plan_->Fail({.op = IoOp::kMkdir, .path = dir_ / "b"}, ENOSPC);

  EXPECT_EQ(Mkdir("a"), 0);
  EXPECT_EQ(Mkdir("b"), -1);

  EXPECT_THAT(error_, HasSubstr("errno 28"));
  EXPECT_TRUE(Exists("a"));
  EXPECT_FALSE(Exists("b"));
}

TEST_F(FaultyQueues, FailsAfterRunning) {
  plan_->FailAfter({.op = IoOp::kMkdir}, EIO);

  EXPECT_EQ(Mkdir("a"), -1);

  EXPECT_THAT(error_, HasSubstr("errno 5"));
  EXPECT_TRUE(Exists("a"));
}

TEST_F(FaultyQueues, CountsOperationsOverAllQueuesOfThePlan) {
  plan_->Fail({.op = IoOp::kMkdir, .nth = 3}, EIO);

  EXPECT_EQ(Mkdir("a"), 0);
  EXPECT_EQ(Mkdir("b"), 0);
  queue_ = MakeQueue();
  EXPECT_EQ(Mkdir("c"), -1);
  EXPECT_EQ(Mkdir("d"), 0);

  EXPECT_FALSE(Exists("c"));
}

TEST_F(FaultyQueues, MatchesDescriptorsByTheirPath) {
  const int fd = OpenFile();
  plan_->Fail({.op = IoOp::kFsync, .path = "shard"}, EIO);

  EXPECT_EQ(Run({.op = IoOp::kFsync, .fd = fd}), -1);
  EXPECT_EQ(Run({.op = IoOp::kClose, .fd = fd}), 0);

  EXPECT_EQ(plan_->Count({.op = IoOp::kFsync, .path = "shard"}), 1U);
  EXPECT_EQ(plan_->Count({.op = IoOp::kClose, .path = "shard"}), 1U);
}

TEST_F(FaultyQueues, ShortWriteTransfersLess) {
  const int fd = OpenFile();
  std::string text(10000, 'x');
  plan_->Shorten({.op = IoOp::kWrite, .nth = 1}, 100);

  const std::int64_t first = Run({.op = IoOp::kWrite, .fd = fd, .buffer = text.data(), .length = text.size()});
  const auto written = std::filesystem::file_size(dir_ / "shard");
  const std::int64_t second = Run({.op = IoOp::kWrite, .fd = fd, .buffer = text.data(), .length = text.size()});

  EXPECT_EQ(first, 100);
  EXPECT_EQ(written, 4096U);
  EXPECT_EQ(second, 10000);
  Run({.op = IoOp::kClose, .fd = fd});
}

TEST_F(FaultyQueues, ShortReadTransfersLess) {
  const int fd = OpenFile();
  std::string text(10000, 'x');
  Run({.op = IoOp::kWrite, .fd = fd, .buffer = text.data(), .length = text.size()});
  plan_->Shorten({.op = IoOp::kRead}, 8192);

  EXPECT_EQ(Run({.op = IoOp::kRead, .fd = fd, .buffer = text.data(), .length = text.size()}), 8192);
  Run({.op = IoOp::kClose, .fd = fd});
}

TEST_F(FaultyQueues, HeldOperationRunsOnlyAfterRelease) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir, .path = "held"});
  std::optional<std::int64_t> result;

  // The test's thread sees the operation arrive while the queue's thread sleeps in RunOnce.
  bool existed_while_held = true;
  std::thread other([&] {
    EXPECT_TRUE(gate.WaitHeld());
    existed_while_held = Exists("held");
    gate.Release();
  });
  queue_->Submit({.op = IoOp::kMkdir, .path = dir_ / "held", .mode = 0755},
                 [&result](std::int64_t value) { result = value; });
  EXPECT_EQ(queue_->pending(), 1U);
  while (!result.has_value()) ASSERT_TRUE(queue_->RunOnce(Deadline::Infinite()).ok());
  other.join();

  EXPECT_EQ(*result, 0);
  EXPECT_FALSE(existed_while_held);
  EXPECT_TRUE(Exists("held"));
  EXPECT_EQ(Run({.op = IoOp::kRmdir, .path = dir_ / "held"}), 0);
}

TEST_F(FaultyQueues, GateNotReachedTimesOut) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir});

  EXPECT_FALSE(gate.WaitHeld(Deadline::In(std::chrono::milliseconds(1))));
}

TEST_F(FaultyQueues, QueueWithAHeldOperationCanBeDestroyed) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir});
  queue_->Submit({.op = IoOp::kMkdir, .path = dir_ / "held", .mode = 0755}, [](std::int64_t) { FAIL(); });

  queue_.reset();
  gate.Release();

  EXPECT_FALSE(Exists("held"));
}

TEST_F(FaultyQueues, HooksSeeTheOperationBeforeAndAfter) {
  std::vector<bool> existed;
  const auto hook = [&](const SeenOperation& seen) { existed.push_back(std::filesystem::exists(seen.path)); };
  plan_->CallBefore({.op = IoOp::kMkdir, .path = dir_ / "a"}, hook);
  plan_->CallAfter({.op = IoOp::kMkdir, .path = dir_ / "b"}, hook);

  Mkdir("a");
  Mkdir("b");

  EXPECT_THAT(existed, testing::ElementsAre(false, true));
}

TEST_F(FaultyQueues, KillsBeforeOrAfterTheOperation) {
  queue_.reset();  // Under ThreadSanitizer a child of a process with threads cannot start threads.
  for (const bool before : {true, false}) {
    const std::string name = before ? "before" : "after";
    const pid_t child = ::fork();
    if (child == 0) {
      if (before) {
        plan_->KillBefore({.op = IoOp::kMkdir, .nth = 2});
      } else {
        plan_->KillAfter({.op = IoOp::kMkdir, .nth = 2});
      }
      const auto queue = MakeQueue();
      for (const char* number : {"1", "2", "3"}) {
        (void)RunBlocking(*queue, {.op = IoOp::kMkdir, .path = dir_ / (name + number), .mode = 0755});
      }
      ::_exit(0);
    }
    int outcome = 0;
    ASSERT_EQ(::waitpid(child, &outcome, 0), child);

    EXPECT_TRUE(WIFSIGNALED(outcome) && WTERMSIG(outcome) == SIGKILL);
    EXPECT_TRUE(Exists(name + "1"));
    EXPECT_EQ(Exists(name + "2"), !before);
    EXPECT_FALSE(Exists(name + "3"));
  }
}

TEST_F(FaultyQueues, RecordsOperationsWithTheirResults) {
  plan_->Fail({.op = IoOp::kRename}, EXDEV);
  Mkdir("a");
  Run({.op = IoOp::kRename, .path = dir_ / "a", .path2 = dir_ / "b"});

  const std::vector<SeenOperation> seen = plan_->Seen();

  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[1].path2, dir_ / "b");
  EXPECT_EQ(seen[1].result, -EXDEV);
  EXPECT_EQ(ToString(seen), "mkdir " + (dir_ / "a") + " = 0\nrename " + (dir_ / "a") + " -> " + (dir_ / "b") + " = " +
                                std::to_string(-EXDEV) + "\n");
}

TEST_F(FaultyQueues, ClearedPlanLetsEverythingPass) {
  plan_->Fail({}, EIO);
  EXPECT_EQ(Mkdir("a"), -1);

  plan_->Clear();

  EXPECT_EQ(Mkdir("a"), 0);
}

}  // namespace
}  // namespace cairn
