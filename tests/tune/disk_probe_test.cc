#include "tune/disk_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "support/faulty_queue.h"
#include "support/rate_limited_queue.h"
#include "support/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Lt;

constexpr std::uint64_t kMiB = 1U << 20;

/// A limited disk is never faster; on a busy machine it is slower.
auto About(double rate) { return AllOf(Gt(0.6 * rate), Lt(1.1 * rate)); }

IoQueueFactory Queue() { return ChooseIoQueue(IoQueueKind::kAuto, kProbeDepth)->factory; }

ProbeLimits Short() { return {.time = std::chrono::milliseconds(500), .file_bytes = 16 * kMiB}; }

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(DiskProbe, FindsTheRateOfALimitedDiskAndLeavesNothing) {
  const TempDir dir;
  const auto disk = RateLimitedDisk::Make(400'000'000);

  const auto rates = ProbeDisk(disk->Wrap(Queue()), dir.path(), {.time = std::chrono::seconds(3)});

  ASSERT_TRUE(rates.ok()) << rates.status();
  ASSERT_FALSE(rates->shapes.empty());
  for (const IoShape& shape : rates->shapes) {
    EXPECT_THAT(shape.write_rate, About(4e8)) << shape.chunk_bytes << " x " << shape.queue_depth;
  }
  EXPECT_THAT(rates->overwrite, About(4e8));
  EXPECT_THAT(rates->read, About(4e8));
  EXPECT_THAT(rates->slow_share, AllOf(Gt(0.4), Le(1)));
  EXPECT_GT(rates->begin_seconds, 0);
  EXPECT_GT(rates->commit_seconds, 0);
  EXPECT_GT(rates->cpu_seconds_per_byte, 0);
  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

TEST(DiskProbe, ASlowDiskIsMeasuredByFewBytesWithinTheTime) {
  const TempDir dir;
  const auto disk = RateLimitedDisk::Make(40'000'000);
  ProbeLimits limits{.time = std::chrono::milliseconds(200)};

  const auto rates = ProbeDisk(disk->Wrap(Queue()), dir.path(), limits);

  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_EQ(rates->shapes.size(), 1U) << "the default shape at least, and no other";
  EXPECT_THAT(rates->shapes[0].write_rate, About(4e7));
  EXPECT_LE(disk->bytes(), 200 * kMiB) << "two passes, one of them written over and read";
}

TEST(DiskProbe, OverwritesReadsAndCommitsAsTheProtocolDoes) {
  const TempDir dir;
  const auto plan = FaultPlan::Make();

  const auto rates = ProbeDisk(plan->Wrap(Queue()), dir.path(), Short());

  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GE(plan->Count({.op = IoOp::kRead}), 4U);
  const std::size_t attempts = plan->Count({.op = IoOp::kRename});
  EXPECT_EQ(plan->Count({.op = IoOp::kFallocate}), attempts);
  EXPECT_EQ(plan->Count({.op = IoOp::kFsync}), 4 * attempts) << "shard, folder, manifest; root";
}

TEST(DiskProbe, AnErrorAnywhereIsToldAndNothingIsLeft) {
  for (const IoOp op : {IoOp::kMkdir, IoOp::kOpen, IoOp::kFallocate, IoOp::kWrite, IoOp::kRead, IoOp::kFtruncate,
                        IoOp::kFsync, IoOp::kRename}) {
    for (const std::uint64_t nth : {1, 2, 3}) {
      SCOPED_TRACE(std::string(IoOpName(op)) + " " + std::to_string(nth));
      const TempDir dir;
      const auto plan = FaultPlan::Make();
      plan->Fail({.op = op, .nth = nth}, EIO);

      const Status status = ProbeDisk(plan->Wrap(Queue()), dir.path(), Short()).status();

      EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
      EXPECT_THAT(Names(dir.path()), IsEmpty());
    }
  }
}

TEST(DiskProbe, AShortTransferIsAnErrorOfTheRead) {
  const TempDir dir;
  const auto plan = FaultPlan::Make();
  plan->Shorten({.op = IoOp::kRead, .nth = 1}, 4096);

  const Status status = ProbeDisk(plan->Wrap(Queue()), dir.path(), Short()).status();

  EXPECT_THAT(status.message(), HasSubstr("found 4096"));
  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

TEST(DiskProbe, StoppedItEndsCancelledAndLeavesNothing) {
  const TempDir dir;
  const auto plan = FaultPlan::Make();
  std::atomic<bool> stop = false;
  plan->CallAfter({.op = IoOp::kWrite, .nth = 3}, [&](const SeenOperation&) { stop = true; });
  ProbeLimits limits = Short();
  limits.stopped = [&] { return stop.load(); };

  const Status status = ProbeDisk(plan->Wrap(Queue()), dir.path(), limits).status();

  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

TEST(DiskProbe, RootsThatAreNoneAreRefused) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";

  EXPECT_EQ(ProbeDisk(Queue(), dir / "none", Short()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ProbeDisk(Queue(), dir / "file", Short()).status().code(), StatusCode::kInvalidArgument);
}

TEST(DiskProbe, TooLittleSpaceIsSaidBeforeAnythingIsWritten) {
  const TempDir dir;
  const auto plan = FaultPlan::Make();

  const Status status = ProbeDisk(plan->Wrap(Queue()), dir.path(), {.file_bytes = kMiB}).status();

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("a probe needs a file of 4194304 bytes"));
  EXPECT_THAT(plan->Seen(), IsEmpty());
}

}  // namespace
}  // namespace cairn
