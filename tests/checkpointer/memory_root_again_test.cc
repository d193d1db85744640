// A drain that fails though the save is kept: it is tried again, so that the disk gets the newest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "checkpointer/memory_root_fixture.h"
#include "store/names.h"
#include "support/small_run.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class MemoryRootAgain : public MemoryRootTest {
 protected:
  MemoryRootAgain() : MemoryRootTest("/dev/shm") {}  // Else the real disk may stall, too.

  [[nodiscard]] std::unique_ptr<Checkpointer> Open() {
    Options options = WithMemory();
    options.stall_timeout = std::chrono::seconds(3);
    options.on_event = [this](const Event& event) {
      MutexLock lock(mutex_);
      if (event.kind == EventKind::kSaveDurable) durable_.push_back(*event.step);
      if (event.kind == EventKind::kSaveFailed) failed_.push_back(event.severity);
      changed_.NotifyAll();
    };
    return OpenOrFail(options, Through(plan_));
  }
  void FailDrains(std::uint64_t nth = 0) {
    plan_->Fail({.op = IoOp::kMkdir, .path = root_ + "/.attempt", .nth = nth}, EIO);
  }
  [[nodiscard]] bool OnDisk(std::uint64_t step) const { return fs::exists(root_ + "/" + StepName(step)); }
  [[nodiscard]] bool AwaitDurable(std::uint64_t step) {
    const Deadline deadline = Soon();
    MutexLock lock(mutex_);
    while (std::ranges::find(durable_, step) == durable_.end() && !deadline.passed()) {
      changed_.WaitUntil(mutex_, deadline);
    }
    return std::ranges::find(durable_, step) != durable_.end();
  }
  [[nodiscard]] std::vector<Severity> Failed() {
    MutexLock lock(mutex_);
    return failed_;
  }
  /// It is kept, and the disk does not take it, which its caller hears.
  static void KeepAlone(Checkpointer& checkpointer, std::uint64_t step) {
    const auto save = Save(checkpointer, step);
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_FALSE(save->WaitDurable(Soon()).ok());
    ASSERT_EQ(save->stats().phase, SavePhase::kKept);
  }

  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::uint64_t> durable_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Severity> failed_ CAIRN_GUARDED_BY(mutex_);
};

TEST_F(MemoryRootAgain, WhoeverDrainsBringsWhatHasFailed) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains(1);
  KeepAlone(*checkpointer, 1);

  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  EXPECT_TRUE(OnDisk(1));
  EXPECT_EQ(checkpointer->stats().newest_step, 1U);
  EXPECT_EQ(checkpointer->stats().failures_in_a_row, 0U);
  EXPECT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
  EXPECT_EQ(ShardsIn(Folder()).first, 5U);
}

TEST_F(MemoryRootAgain, NobodyNeedHaveHeardOfIt) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains(1);
  ASSERT_EQ(Keep(*checkpointer, 1), Status::Ok());

  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  EXPECT_TRUE(OnDisk(1));
}

TEST_F(MemoryRootAgain, ADrainRaisesWhatFailsAgain) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains();
  ASSERT_EQ(Keep(*checkpointer, 1), Status::Ok());

  for (int i = 0; i < 3; ++i) EXPECT_EQ(checkpointer->Drain(Soon()).code(), StatusCode::kIoError);

  EXPECT_FALSE(OnDisk(1));
  plan_->Clear();
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_TRUE(OnDisk(1));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

TEST_F(MemoryRootAgain, CloseBringsIt) {
  auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains(1);
  KeepAlone(*checkpointer, 1);

  checkpointer.reset();

  EXPECT_TRUE(OnDisk(1));
  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
}

TEST_F(MemoryRootAgain, ADiskThatHadHungGetsItOnceItAnswers) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  KeepAlone(*checkpointer, 1);
  EXPECT_EQ(checkpointer->Drain(Soon()).detail(), StatusDetail::kDiskHangs);

  plan_->Clear();
  gate.Release();

  EXPECT_TRUE(AwaitDurable(1));
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
}

TEST_F(MemoryRootAgain, ANewerOneOvertakesIt) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains(1);
  KeepAlone(*checkpointer, 1);

  EXPECT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());

  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(2));
  EXPECT_FALSE(OnDisk(1));
}

TEST_F(MemoryRootAgain, ItMayBeSavedAnewInstead) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains(1);
  KeepAlone(*checkpointer, 1);
  constexpr std::uint64_t kAnother = 1;
  const auto state = SmallState(1, 0, kAnother);

  const auto save = checkpointer->Save(1, state->state());

  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest(), kAnother), Status::Ok());
  EXPECT_NE(checkpointer->stats().memory_root, "");
}

TEST_F(MemoryRootAgain, ItMayBeRemovedInstead) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  FailDrains(1);
  KeepAlone(*checkpointer, 2);

  EXPECT_EQ(checkpointer->Remove(2), Status::Ok());

  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
}

TEST_F(MemoryRootAgain, ItMayBeRemovedWhileANewerOneIsInFlight) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  FailDrains(1);
  KeepAlone(*checkpointer, 2);
  FaultGate gate = plan_->Hold({.op = IoOp::kMkdir, .path = Folder() + "/.attempt"});
  const auto newer = Save(*checkpointer, 3);
  ASSERT_TRUE(newer.ok()) << newer.status();
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  EXPECT_EQ(checkpointer->Remove(2), Status::Ok());

  newer->Cancel();
  gate.Release();
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
  EXPECT_FALSE(OnDisk(2));
}

// All are kept.
TEST_F(MemoryRootAgain, AFullDiskIsSaidOnce) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains();
  for (std::uint64_t step = 1; step <= 5; ++step) KeepAlone(*checkpointer, step);

  EXPECT_THAT(Failed(),
              ElementsAre(Severity::kError, Severity::kWarning, Severity::kInfo, Severity::kInfo, Severity::kInfo));
  plan_->Clear();
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_TRUE(AwaitDurable(5));
  EXPECT_FALSE(OnDisk(1));
}

TEST_F(MemoryRootAgain, EachOfTwoThreadsHearsThatTheDiskDoesNotHaveIt) {
  const auto checkpointer = Open();
  ASSERT_NE(checkpointer, nullptr);
  FailDrains();
  KeepAlone(*checkpointer, 1);
  constexpr int kDrains = 50;
  const auto drain = [&] {
    for (int i = 0; i < kDrains; ++i) EXPECT_NE(checkpointer->Drain(Soon()), Status::Ok());
  };

  std::thread other(drain);
  drain();
  other.join();

  plan_->Clear();
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_TRUE(OnDisk(1));
}

// It went to the disk without being kept.
TEST_F(MemoryRootAgain, WhatIsDueIsCountedFromTheLastThatTheDiskHas) {
  Options options = WithMemory();
  options.disk_every = 5;
  const auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 11), Status::Ok());
  const auto pinned = SmallState(13);
  ASSERT_EQ(checkpointer->Save(13, pinned->state(), {.pin = true}).value().WaitDurable(Soon()), Status::Ok());

  ASSERT_EQ(Keep(*checkpointer, 16), Status::Ok());
  ASSERT_EQ(Keep(*checkpointer, 18), Status::Ok());

  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(11, 13, 18));
}

}  // namespace
}  // namespace cairn
