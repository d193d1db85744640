#include "tune/disk_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "support/faulty_queue.h"
#include "support/points.h"
#include "testing/rate_limited_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kMiB = 1U << 20;

/// A disk with its own clock, so that its rate does not depend on the machine.
struct ModelledDisk {
  explicit ModelledDisk(std::uint64_t bytes_per_second = 400'000'000)
      : disk(RateLimitedDisk::Make(bytes_per_second, RateLimitedDisk::Limits::kReadsAndWrites, time)) {}
  [[nodiscard]] ProbeLimits For(std::chrono::nanoseconds span) const {
    return {.time = span, .now = ModelledTime::Source(time)};
  }
  /// Limits for some passes over a small file.
  [[nodiscard]] ProbeLimits Short() const {
    ProbeLimits limits = For(std::chrono::milliseconds(500));
    limits.file_bytes = 16 * kMiB;
    return limits;
  }

  std::shared_ptr<ModelledTime> time = std::make_shared<ModelledTime>();
  std::shared_ptr<RateLimitedDisk> disk;
};

auto About(double rate) { return testing::DoubleNear(rate, 1e-3 * rate); }

IoQueueFactory Queue() { return ChooseIoQueue(IoQueueKind::kAuto, kProbeDepth)->factory; }

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(DiskProbe, FindsTheRateOfALimitedDiskAndLeavesNoFiles) {
  const TempDir dir;
  const ModelledDisk modelled(400'000'000);
  ProbeLimits limits = modelled.For(std::chrono::seconds(3));
  limits.file_bytes = 16 * kMiB;

  const auto rates = ProbeDisk(modelled.disk->Wrap(Queue()), dir.path(), limits);

  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_EQ(rates->shapes.size(), 5U);
  for (const IoShape& shape : rates->shapes) {
    EXPECT_THAT(shape.write_rate, About(4e8)) << shape.chunk_bytes << " x " << shape.queue_depth;
  }
  EXPECT_THAT(rates->overwrite, About(4e8));
  EXPECT_THAT(rates->read, About(4e8));
  EXPECT_THAT(rates->slow_share, About(1));
  EXPECT_EQ(rates->begin_seconds, 0) << "only transfers take modelled time";
  EXPECT_GT(rates->commit_seconds, 0) << "the header is a transfer";
  EXPECT_GT(rates->cpu_seconds_per_byte, 0);
  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

TEST(DiskProbe, SlowDiskIsMeasuredWithFewBytesInTime) {
  const TempDir dir;
  const ModelledDisk modelled(40'000'000);

  const auto rates = ProbeDisk(modelled.disk->Wrap(Queue()), dir.path(), modelled.For(std::chrono::milliseconds(200)));

  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_EQ(rates->shapes.size(), 1U) << "only the default shape";
  EXPECT_THAT(rates->shapes[0].write_rate, About(4e7));
  EXPECT_LE(modelled.disk->bytes(), 200 * kMiB) << "two passes, one of them overwritten and read";
}

TEST(DiskProbe, OverwritesReadsAndCommitsLikeTheProtocol) {
  const TempDir dir;
  const ModelledDisk modelled;
  const auto plan = FaultPlan::Make();

  const auto rates = ProbeDisk(plan->Wrap(modelled.disk->Wrap(Queue())), dir.path(), modelled.Short());

  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GE(plan->Count({.op = IoOp::kRead}), 4U);
  const std::size_t attempts = plan->Count({.op = IoOp::kRename});
  EXPECT_EQ(plan->Count({.op = IoOp::kFallocate}), attempts);
  EXPECT_EQ(plan->Count({.op = IoOp::kFsync}), 4 * attempts) << "shard, folder, manifest; root";
}

TEST(DiskProbe, AnyErrorIsReturnedAndNoFilesAreLeft) {
  Sample tried(4);
  for (const IoOp op : {IoOp::kMkdir, IoOp::kOpen, IoOp::kFallocate, IoOp::kWrite, IoOp::kRead, IoOp::kFtruncate,
                        IoOp::kFsync, IoOp::kRename}) {
    for (const std::uint64_t nth : {1, 2, 3}) {
      if (!tried.Takes()) continue;
      SCOPED_TRACE(std::string(IoOpName(op)) + " " + std::to_string(nth));
      const TempDir dir;
      const ModelledDisk modelled;
      const auto plan = FaultPlan::Make();
      plan->Fail({.op = op, .nth = nth}, EIO);

      const Status status = ProbeDisk(plan->Wrap(modelled.disk->Wrap(Queue())), dir.path(), modelled.Short()).status();

      EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
      EXPECT_THAT(Names(dir.path()), IsEmpty());
    }
  }
}

TEST(DiskProbe, ShortReadIsAnError) {
  const TempDir dir;
  const ModelledDisk modelled;
  const auto plan = FaultPlan::Make();
  plan->Shorten({.op = IoOp::kRead, .nth = 1}, 4096);

  const Status status = ProbeDisk(plan->Wrap(modelled.disk->Wrap(Queue())), dir.path(), modelled.Short()).status();

  EXPECT_THAT(status.message(), HasSubstr("found 4096"));
  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

TEST(DiskProbe, StoppedProbeIsCancelledAndLeavesNoFiles) {
  const TempDir dir;
  const ModelledDisk modelled;
  const auto plan = FaultPlan::Make();
  std::atomic<bool> stop = false;
  plan->CallAfter({.op = IoOp::kWrite, .nth = 3}, [&](const SeenOperation&) { stop = true; });
  ProbeLimits limits = modelled.Short();
  limits.stopped = [&] { return stop.load(); };

  const Status status = ProbeDisk(plan->Wrap(modelled.disk->Wrap(Queue())), dir.path(), limits).status();

  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

TEST(DiskProbe, InvalidRootsAreRefused) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";

  EXPECT_EQ(ProbeDisk(Queue(), dir / "none", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ProbeDisk(Queue(), dir / "file", {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(DiskProbe, TooLittleSpaceIsAnErrorBeforeAnyWrite) {
  const TempDir dir;
  const auto plan = FaultPlan::Make();

  const Status status = ProbeDisk(plan->Wrap(Queue()), dir.path(), {.file_bytes = kMiB}).status();

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("16777216 free bytes for a probe's file of 4194304"));
  EXPECT_THAT(plan->Seen(), IsEmpty());
}

}  // namespace
}  // namespace cairn
