#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "io/disk_watch.h"
#include "restore_fixture.h"
#include "store/remove.h"
#include "support/faulty_queue.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A shard of several reads, through a queue with faults.
class RestoreFaultsTest : public RestoreTest {
 protected:
  RestoreFaultsTest() {
    saved_ = MakeTensor("t", DType::kU8, {(7 << 20) + 99}, 1);
    folder_ = WriteCheckpoint(root(), {.shards = {{.tensors = {saved_}}}});
    targets_.Add(saved_);
  }
  [[nodiscard]] Status TryRestore() {
    RestoreParts parts = Parts();
    parts.queue = plan_->Wrap(parts.queue);
    return RestoreSelected(parts, {}, Folder(folder_), 0, targets_.state, {}).status();
  }
  [[nodiscard]] bool all_chunks_back() {
    std::vector<BufferPool::Chunk> chunks;
    for (std::uint64_t i = 0; i < pool_->chunk_count(); ++i) {
      chunks.push_back(pool_->TryAcquire(BufferPool::Priority::kRestore));
    }
    return static_cast<bool>(chunks.back());
  }

  SavedTensor saved_;
  std::string folder_;
  Targets targets_;
  std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
};

TEST_F(RestoreFaultsTest, MediumErrorOfAReadIsCorruptAndNamesTheFile) {
  for (std::uint64_t nth = 1; nth <= 9; ++nth) {
    plan_->Clear();
    plan_->Fail({.op = IoOp::kRead, .nth = nth}, EIO);

    const Status restored = TryRestore();

    EXPECT_EQ(restored.code(), StatusCode::kCorrupt) << nth << ": " << restored;
    EXPECT_THAT(restored.message(), HasSubstr("shard-00000.safetensors"));
    EXPECT_TRUE(all_chunks_back());
  }
}

TEST_F(RestoreFaultsTest, MediumErrorOfAnOpenIsCorrupt) {
  plan_->Fail({.op = IoOp::kOpen}, EIO);

  const Status restored = TryRestore();

  EXPECT_EQ(restored.code(), StatusCode::kCorrupt) << restored;
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(RestoreFaultsTest, FallBackSkipsOnlyMediumErrors) {
  // An older checkpoint, and a newer one with a fault at the open, in the header or in the data.
  WriteCheckpoint(root(), {.step = 2, .shards = {{.tensors = {saved_}}}});
  const auto fall_back = [this](IoOp op, std::uint64_t nth, int error) {
    plan_->Clear();
    plan_->Fail({.op = op, .path = "step-00000000000000000002", .nth = nth}, error);
    RestoreParts parts = Parts();
    parts.queue = plan_->Wrap(parts.queue);
    return RestoreSelected(parts, root(), Latest().FallBack(), 0, targets_.state, {});
  };
  for (const auto& [op, nth] : {std::pair(IoOp::kOpen, 1), std::pair(IoOp::kRead, 1), std::pair(IoOp::kRead, 5)}) {
    for (const int error : {EIO, EUCLEAN, EBADMSG, ENODATA, EREMOTEIO, EILSEQ}) {
      const auto restored = fall_back(op, nth, error);
      ASSERT_TRUE(restored.ok()) << error << ": " << restored.status();
      EXPECT_EQ(restored->step, 1);
      EXPECT_THAT(restored->passed_over,
                  ElementsAre(AllOf(HasSubstr("step-00000000000000000002"), HasSubstr("shard-00000.safetensors"),
                                    HasSubstr(fmt::format("(errno {})", error)))));
      EXPECT_EQ(targets_["t"], saved_.bytes);
    }
    for (const int error : {EACCES, EPERM, EMFILE, ENFILE, ENOMEM, ENXIO, ETIMEDOUT}) {
      const auto restored = fall_back(op, nth, error);
      EXPECT_FALSE(restored.ok()) << error;
      EXPECT_NE(restored.status().code(), StatusCode::kCorrupt) << restored.status();
      EXPECT_NE(restored.status().code(), StatusCode::kNotFound) << restored.status();
    }
  }
}

TEST_F(RestoreFaultsTest, StaleHandleCausesANewChoice) {
  plan_->Fail({.op = IoOp::kRead, .path = "shard", .nth = 3}, ESTALE);
  RestoreParts parts = Parts();
  parts.queue = plan_->Wrap(parts.queue);

  const auto restored = RestoreSelected(parts, root(), Latest(), 0, targets_.state, {});

  EXPECT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, InterruptedReadsAreRetried) {
  plan_->Fail({.op = IoOp::kRead, .nth = 1}, EINTR);
  plan_->Fail({.op = IoOp::kRead, .nth = 3}, EAGAIN);
  plan_->Fail({.op = IoOp::kRead, .nth = 4}, EINTR);

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, ReadsThatNeverSucceedEndInAnError) {
  plan_->Fail({.op = IoOp::kRead}, EAGAIN);

  EXPECT_EQ(TryRestore().code(), StatusCode::kIoError);
}

TEST_F(RestoreFaultsTest, ShortReadsAreResumed) {
  plan_->Shorten({.op = IoOp::kRead, .nth = 2}, 8192);
  plan_->Shorten({.op = IoOp::kRead, .nth = 4}, 1 << 19);

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, FileTruncatedDuringTheReadIsCorrupt) {
  plan_->Shorten({.op = IoOp::kRead, .nth = 5}, 0);

  const Status restored = TryRestore();

  EXPECT_EQ(restored.code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.message(), HasSubstr("is truncated: expected "));
}

TEST_F(RestoreFaultsTest, RejectedDirectReadsAreBuffered) {
  plan_->Fail({.op = IoOp::kRead, .nth = 1}, EINVAL);

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, RejectedDirectOpenIsBuffered) {
  plan_->Fail({.op = IoOp::kOpen, .nth = 1}, EINVAL);

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, KeepsQueueDepthReadsInFlight) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kRead, .path = "shard", .nth = 3});
  bool others_were_read = false;
  // The first data read is held while the others of the queue depth complete.
  plan_->CallAfter({.op = IoOp::kRead, .path = "shard", .nth = 2 + kDepth}, [&](const SeenOperation&) {
    others_were_read = true;
    gate.Release();
  });

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_TRUE(others_were_read);
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, SlowReadsAreReportedAndWaitedFor) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kRead, .nth = 3});
  std::string told;
  RestoreParts parts = Parts();
  parts.queue = Reporting(plan_->Wrap(parts.queue), [&](const Event& event) {
    told = event.message;
    gate.Release();
  });

  EXPECT_TRUE(RestoreSelected(parts, {}, Folder(folder_), 0, targets_.state, {}).ok());

  EXPECT_THAT(told, AllOf(HasSubstr("read of"), HasSubstr("shard-00000.safetensors has waited for the disk for 1")));
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, WaitForThePoolEndsAtItsDeadline) {
  std::vector<BufferPool::Chunk> held;
  while (BufferPool::Chunk chunk = pool_->TryAcquire(BufferPool::Priority::kRestore)) held.push_back(std::move(chunk));
  RestoreParts parts = Parts();
  parts.memory_timeout = {};

  const Status restored = RestoreSelected(parts, {}, Folder(folder_), 0, targets_.state, {}).status();

  EXPECT_EQ(restored.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(restored.message(), HasSubstr("while saves hold the pool"));
}

/// Parts with which the chosen step is removed before it is locked, `times` times, while a newer one exists.
class DisplacedTest : public RestoreFaultsTest {
 protected:
  [[nodiscard]] RestoreParts Displacing(int times) {
    RestoreParts parts = Parts();
    parts.queue = [this, times, make = parts.queue, gone = 0]() mutable -> Result<std::unique_ptr<IoQueue>> {
      CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, make());
      if (gone == times) return queue;
      ++gone;
      WriteCheckpoint(root(), {.step = ++newest_, .shards = {{.tensors = {saved_}}}});
      CAIRN_RETURN_IF_ERROR(RemoveCheckpointBlocking(*queue, root(), newest_ - 1, {}).status);
      return queue;
    };
    return parts;
  }

  std::uint64_t newest_ = 1;
};

TEST_F(DisplacedTest, NewestIsChosenAgainWheneverRetentionIsFaster) {
  constexpr int kTimes = 12;

  const auto inspected = InspectSelected(Displacing(kTimes), root(), Latest(), InspectPart{});
  const Status verified = VerifySelected(Displacing(kTimes), root(), Latest(), {});

  ASSERT_TRUE(inspected.ok()) << inspected.status();
  EXPECT_EQ(inspected->info.step, 1 + kTimes);
  EXPECT_TRUE(verified.ok()) << verified;
}

TEST_F(DisplacedTest, RemovedNamedStepIsNotFound) {
  const Status verified = VerifySelected(Displacing(1), root(), Step(1), {});

  EXPECT_EQ(verified.code(), StatusCode::kNotFound) << verified;
}

TEST_F(DisplacedTest, RestoredCheckpointIsHeld) {
  const auto restored = RestoreSelected(Displacing(1), root(), Latest(), 0, targets_.state, {});

  EXPECT_EQ(restored.status().code(), StatusCode::kFailedPrecondition) << "the removal's";
}

TEST_F(DisplacedTest, ChosenCheckpointStaysUntilReleased) {
  auto chosen = ChooseSelected(Parts(), root(), Latest(), /*inspect=*/false);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  const RestoreParts displacing = Displacing(1);

  EXPECT_EQ(displacing.queue().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(RestoreSelected(Parts(), root(), Step(1), 0, targets_.state, {}).ok());
  chosen->hold.reset();

  EXPECT_TRUE(Displacing(1).queue().ok());
}

TEST_F(RestoreFaultsTest, CheckpointReplacedMeanwhileIsNotFound) {
  const StoredCheckpoint before = Read(folder_);
  WriteCheckpoint(root(), {.attempt = "11111111-2222-4333-8444-555555555555", .shards = {{.tensors = {saved_}}}});

  const auto stale = RestoreCheckpoint(Parts(), before, 0, targets_.state, {});
  const auto fresh = RestoreSelected(Parts(), root(), Latest(), 0, targets_.state, {});

  EXPECT_EQ(stale.status().code(), StatusCode::kNotFound) << stale.status();
  EXPECT_TRUE(fresh.ok()) << fresh.status();
}

}  // namespace
}  // namespace cairn
