#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "api/wiring.h"
#include "cairn/cairn.h"
#include "support/faulty_queue.h"
#include "support/patience.h"
#include "support/tensors.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::HasSubstr;

// One slot in flight, and a disk that is blocked until released.
class Policy : public testing::Test {
 protected:
  void Open(WhenFull when_full, int places, std::chrono::nanoseconds full_timeout = kPatience) {
    Wiring wiring;
    wiring.wrap_queue = [plan = plan_](IoQueueFactory inner) { return plan->Wrap(std::move(inner)); };
    auto opened = Checkpointer::Open({.root = dir_ / "run",
                                      .keep_last = 0,
                                      .max_in_flight = places,
                                      .when_full = when_full,
                                      .full_timeout = full_timeout,
                                      .host_memory_bytes = 4_MiB,
                                      .chunk_bytes = 1_MiB,
                                      .queue_depth = 2},
                                     std::move(wiring));
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpointer_ = *std::move(opened);
  }
  SaveHandle Save(std::uint64_t step) {
    auto save = checkpointer_->Save(step, tensors_.state());
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }
  [[nodiscard]] std::vector<std::uint64_t> Steps() const {
    std::vector<std::uint64_t> steps;
    for (const CheckpointInfo& info : *checkpointer_->List()) steps.push_back(info.step);
    return steps;
  }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  // Twice the pool, so that held writes keep it uncaptured.
  Tensors tensors_ = Tensors::Many(8, 1_MiB / sizeof(float));
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(Policy, WaitBlocksUntilASlotIsFree) {
  Open(WhenFull::kWait, 1);
  const FaultGate disk = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  Save(1);
  ASSERT_TRUE(disk.WaitHeld(Deadline::In(kPatience)));
  std::promise<void> calling;
  auto second = std::async(std::launch::async, [&] {
    calling.set_value();
    return Save(2);
  });
  calling.get_future().wait();

  disk.Release();

  EXPECT_TRUE(second.get().WaitDurable(Deadline::In(kPatience)).ok());
  EXPECT_THAT(Steps(), testing::ElementsAre(1, 2));
}

TEST_F(Policy, WaitTimesOutAndTheStepStaysFree) {
  Open(WhenFull::kWait, 1, std::chrono::milliseconds(1));
  const FaultGate disk = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const SaveHandle first = Save(1);
  ASSERT_TRUE(disk.WaitHeld(Deadline::In(kPatience)));

  const Status status = checkpointer_->Save(2, tensors_.state()).status();

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  disk.Release();
  EXPECT_TRUE(first.WaitDurable(Deadline::In(kPatience)).ok());
  EXPECT_TRUE(Save(2).WaitDurable(Deadline::In(kPatience)).ok());
}

TEST_F(Policy, TimesOutWhileTheStepIsBeingRemoved) {
  Open(WhenFull::kWait, 2, std::chrono::milliseconds(1));
  ASSERT_TRUE(Save(1).WaitDurable(Deadline::In(kPatience)).ok());
  const FaultGate removal = plan_->Hold({.op = IoOp::kRename, .path = ".retired-"});
  auto removing = std::async(std::launch::async, [&] { return checkpointer_->Remove(1); });
  ASSERT_TRUE(removal.WaitHeld(Deadline::In(kPatience)));

  const Status status = checkpointer_->Save(1, tensors_.state()).status();

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("step 1: its old checkpoint is still being removed"));
  removal.Release();
  EXPECT_TRUE(removing.get().ok());
  EXPECT_TRUE(Save(1).WaitDurable(Deadline::In(kPatience)).ok());
}

TEST_F(Policy, SkipCancelsTheNewSave) {
  Open(WhenFull::kSkip, 1);
  const FaultGate disk = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const SaveHandle first = Save(1);
  ASSERT_TRUE(disk.WaitHeld(Deadline::In(kPatience)));

  const SaveHandle second = Save(2);

  const Status status = second.WaitDurable(Deadline::In(kPatience));
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("step 2: skipped, 1 saves are in flight"));
  disk.Release();
  EXPECT_TRUE(first.WaitDurable(Deadline::In(kPatience)).ok());
  EXPECT_TRUE(checkpointer_->LastFailure().ok());
  EXPECT_THAT(Steps(), testing::ElementsAre(1));
}

TEST_F(Policy, ReplaceCancelsTheYoungestUncapturedSave) {
  Open(WhenFull::kReplace, 2);
  const FaultGate disk = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const SaveHandle first = Save(1);
  ASSERT_TRUE(disk.WaitHeld(Deadline::In(kPatience)));
  const SaveHandle second = Save(2);

  const SaveHandle third = Save(3);

  const Status status = second.WaitDurable(Deadline::In(kPatience));
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("step 2: replaced by step 3"));
  disk.Release();
  EXPECT_TRUE(first.WaitDurable(Deadline::In(kPatience)).ok());
  EXPECT_TRUE(third.WaitDurable(Deadline::In(kPatience)).ok());
  EXPECT_THAT(Steps(), testing::ElementsAre(1, 3));
}

TEST_F(Policy, CancelLeavesNothingOfTheSave) {
  Open(WhenFull::kWait, 1);
  const FaultGate disk = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const SaveHandle save = Save(1);
  ASSERT_TRUE(disk.WaitHeld(Deadline::In(kPatience)));

  EXPECT_TRUE(save.Cancel());
  disk.Release();

  EXPECT_EQ(save.WaitDurable(Deadline::In(kPatience)).code(), StatusCode::kCancelled);
  EXPECT_EQ(save.WaitCaptured().code(), StatusCode::kCancelled);
  EXPECT_THAT(Steps(), testing::IsEmpty());
  EXPECT_TRUE(Save(1).WaitDurable(Deadline::In(kPatience)).ok()) << "the step is free again";
}

TEST_F(Policy, CancelFailsOnceTheCommitHasBegun) {
  Open(WhenFull::kWait, 1);
  const FaultGate commit = plan_->Hold({.op = IoOp::kRename});
  const SaveHandle save = Save(1);
  ASSERT_TRUE(commit.WaitHeld(Deadline::In(kPatience)));

  EXPECT_FALSE(save.Cancel());
  commit.Release();

  EXPECT_TRUE(save.WaitDurable(Deadline::In(kPatience)).ok());
}

TEST_F(Policy, WaitsWithADeadlineLeaveTheSaveRunning) {
  Open(WhenFull::kWait, 1);
  const FaultGate disk = plan_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const SaveHandle save = Save(1);

  EXPECT_EQ(save.WaitCaptured(Deadline::In(std::chrono::milliseconds(1))).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(save.WaitDurable(Deadline::In(std::chrono::milliseconds(1))).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(checkpointer_->Drain(Deadline::In(std::chrono::milliseconds(1))).code(), StatusCode::kDeadlineExceeded);
  disk.Release();

  EXPECT_TRUE(save.WaitDurable(Deadline::In(kPatience)).ok());
}

}  // namespace
}  // namespace cairn
