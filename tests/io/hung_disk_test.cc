#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "queue_case.h"
#include "support/hung_fuse.h"

namespace cairn {
namespace {

using namespace std::chrono_literals;
using IoHungDisk = IoQueueContract;

// Far more than a deadline that is kept, far less than a request of HungFuse is held.
constexpr auto kLate = 5s;

struct HeldOperation {
  std::uint32_t opcode = 0;
  IoRequest request;
};

TEST_P(IoHungDisk, OperationThatHangsLeavesTheDeadlineAndTheOthers) {
  std::filesystem::create_directory(dir_ / "hung");
  HungFuse disk(dir_ / "hung");
  if (!disk.refusal().empty()) GTEST_SKIP() << disk.refusal();
  const std::string file = disk.directory() + "/file";
  const std::string folder = disk.directory() + "/folder";
  const AlignedBuffer memory(4096);
  const int fd = Open(file, O_RDWR | O_DIRECT | O_NONBLOCK);  // As restores and recycled files have it.
  const int closed = Open(file, O_RDWR);
  const int cached = Open(file, O_RDWR);
  const int elsewhere = Open(dir_ / "elsewhere", O_RDWR | O_CREAT);
  ASSERT_GE(std::min({fd, closed, cached, elsewhere}), 0);
  const std::vector<HeldOperation> operations = {
      {FUSE_OPEN, {.op = IoOp::kOpen, .path = file, .flags = O_RDONLY}},
      {FUSE_OPENDIR, {.op = IoOp::kOpen, .path = folder, .flags = O_RDONLY | O_DIRECTORY}},
      {FUSE_READ, {.op = IoOp::kRead, .fd = fd, .buffer = memory.data(), .length = memory.size()}},
      {FUSE_READ, {.op = IoOp::kRead, .fd = cached, .buffer = memory.data(), .length = memory.size()}},
      {FUSE_WRITE, {.op = IoOp::kWrite, .fd = fd, .buffer = memory.data(), .length = memory.size()}},
      {FUSE_WRITE, {.op = IoOp::kWrite, .fd = cached, .buffer = memory.data(), .length = memory.size()}},
      {FUSE_POLL, {.op = IoOp::kWrite, .fd = fd, .buffer = memory.data(), .length = memory.size()}},
      {FUSE_FSYNC, {.op = IoOp::kFsync, .fd = fd}},
      {FUSE_FALLOCATE, {.op = IoOp::kFallocate, .fd = fd, .length = 4096}},
      {FUSE_SETATTR, {.op = IoOp::kFtruncate, .fd = fd, .length = 4096}},
      {FUSE_RENAME2, {.op = IoOp::kRename, .path = file, .path2 = folder + "/x", .rename = RenameMode::kExchange}},
      {FUSE_MKDIR, {.op = IoOp::kMkdir, .path = folder + "/new-folder", .mode = 0755}},
      {FUSE_UNLINK, {.op = IoOp::kUnlink, .path = file}},
      {FUSE_RMDIR, {.op = IoOp::kRmdir, .path = folder}},
      {FUSE_FLUSH, {.op = IoOp::kClose, .fd = closed}},
  };
  for (const HeldOperation& held : operations) {
    SCOPED_TRACE(Describe(held.request));
    std::optional<std::int64_t> result;
    std::optional<std::int64_t> other;
    disk.Hold(held.opcode);
    const auto begin = Deadline::Clock::now();

    queue_->Submit(held.request, [&](std::int64_t value) { result = value; });
    ASSERT_TRUE(queue_->RunOnce(Deadline::In(1ms)).ok());
    queue_->Submit({.op = IoOp::kFsync, .fd = elsewhere}, [&](std::int64_t value) { other = value; });
    while (!other) ASSERT_TRUE(queue_->RunOnce(Deadline::In(kLate)).ok());
    const auto took = Deadline::Clock::now() - begin;

    EXPECT_LT(took, kLate);
    EXPECT_EQ(other, 0);
    const bool polled_first = held.opcode == FUSE_POLL;  // By io_uring, if it tries an operation before it waits.
    EXPECT_TRUE(polled_first || !result.has_value()) << *result;
    disk.Release();
    Drain();
  }
  for (const int open : {fd, cached, elsewhere}) EXPECT_EQ(Close(open), 0);
}

INSTANTIATE_TEST_SUITE_P(All, IoHungDisk, testing::ValuesIn(AllQueues()), CaseName);

}  // namespace
}  // namespace cairn
