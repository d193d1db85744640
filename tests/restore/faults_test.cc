#include <cerrno>

#include "restore_fixture.h"
#include "support/faulty_queue.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

/// A shard of several reads, behind a queue on which things go wrong.
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
    return RestoreWhich(parts, {}, Folder(folder_), 0, targets_.state, {}).status();
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

TEST_F(RestoreFaultsTest, AFailedReadIsAnIoErrorThatNamesTheFile) {
  for (std::uint64_t nth = 1; nth <= 9; ++nth) {
    plan_->Clear();
    plan_->Fail({.op = IoOp::kRead, .nth = nth}, EIO);

    const Status restored = TryRestore();

    EXPECT_EQ(restored.code(), StatusCode::kIoError) << nth << ": " << restored;
    EXPECT_THAT(restored.message(), HasSubstr("shard-00000.safetensors"));
    EXPECT_TRUE(all_chunks_back());
  }
}

TEST_F(RestoreFaultsTest, AFailedOpenIsAnIoError) {
  plan_->Fail({.op = IoOp::kOpen}, EIO);

  const Status restored = TryRestore();

  EXPECT_EQ(restored.code(), StatusCode::kIoError) << restored;
  EXPECT_TRUE(targets_.untouched());
}

TEST_F(RestoreFaultsTest, InterruptedReadsAreTriedAgain) {
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

TEST_F(RestoreFaultsTest, ShortReadsGoOnWhereTheyStopped) {
  plan_->Shorten({.op = IoOp::kRead, .nth = 2}, 8192);
  plan_->Shorten({.op = IoOp::kRead, .nth = 4}, 1 << 19);

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, AFileThatEndsWhileItIsReadIsCorrupt) {
  plan_->Shorten({.op = IoOp::kRead, .nth = 5}, 0);

  const Status restored = TryRestore();

  EXPECT_EQ(restored.code(), StatusCode::kCorrupt);
  EXPECT_THAT(restored.message(), HasSubstr("is truncated: expected "));
}

TEST_F(RestoreFaultsTest, ReadsBufferedWhereDirectReadsAreRefused) {
  plan_->Fail({.op = IoOp::kRead, .nth = 1}, EINVAL);

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, OpensBufferedWhereDirectIsRefused) {
  plan_->Fail({.op = IoOp::kOpen, .nth = 1}, EINVAL);

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, KeepsAsManyReadsUnderWayAsItMay) {
  const FaultGate gate = plan_->Hold({.op = IoOp::kRead, .path = "shard", .nth = 3});
  bool others_were_read = false;
  // The first data read is held; the others of the depth are done meanwhile.
  plan_->CallAfter({.op = IoOp::kRead, .path = "shard", .nth = 2 + kDepth}, [&](const SeenOperation&) {
    others_were_read = true;
    gate.Release();
  });

  EXPECT_TRUE(TryRestore().ok());
  EXPECT_TRUE(others_were_read);
  EXPECT_EQ(targets_["t"], saved_.bytes);
}

TEST_F(RestoreFaultsTest, SaysThatACheckpointReplacedMeanwhileWasReplaced) {
  const StoredCheckpoint before = Read(folder_);
  WriteCheckpoint(root(), {.attempt = "11111111-2222-4333-8444-555555555555", .shards = {{.tensors = {saved_}}}});

  const auto stale = RestoreCheckpoint(Parts(), before, 0, targets_.state, {});
  const auto fresh = RestoreWhich(Parts(), root(), Latest(), 0, targets_.state, {});

  EXPECT_EQ(stale.status().code(), StatusCode::kNotFound) << stale.status();
  EXPECT_TRUE(fresh.ok()) << fresh.status();
}

}  // namespace
}  // namespace cairn
