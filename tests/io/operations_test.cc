#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "queue_case.h"

namespace cairn {
namespace {

using IoOperations = IoQueueContract;

TEST_P(IoOperations, FileIsOpenedWrittenReadAndClosed) {
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT | O_EXCL);
  ASSERT_GE(fd, 0);

  const std::int64_t written = Write(fd, "checkpoint", 3);
  std::string buffer(10, '\0');
  const std::int64_t read = Run({.op = IoOp::kRead, .fd = fd, .buffer = buffer.data(), .length = 10, .offset = 3});

  EXPECT_EQ(written, 10);
  EXPECT_EQ(read, 10);
  EXPECT_EQ(buffer, "checkpoint");
  EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(Close(fd), 0);
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST_P(IoOperations, OpenAppliesTheMode) {
  const std::int64_t fd =
      Run({.op = IoOp::kOpen, .path = dir_ / "file", .flags = O_WRONLY | O_CREAT | O_EXCL, .mode = 0600});

  ASSERT_GE(fd, 0);
  struct stat info {};
  ASSERT_EQ(::fstat(static_cast<int>(fd), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  Close(static_cast<int>(fd));
}

TEST_P(IoOperations, ReadIsShortAtTheEndOfTheFile) {
  MakeFile("file", "12345");
  const int fd = Open(dir_ / "file", O_RDONLY);
  std::string buffer(100, '\0');

  const std::int64_t some = Run({.op = IoOp::kRead, .fd = fd, .buffer = buffer.data(), .length = 100, .offset = 2});
  const std::int64_t none = Run({.op = IoOp::kRead, .fd = fd, .buffer = buffer.data(), .length = 100, .offset = 5});

  EXPECT_EQ(some, 3);
  EXPECT_EQ(none, 0);
  Close(fd);
}

TEST_P(IoOperations, FallocateGrowsAndFtruncateShrinks) {
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT);

  const std::int64_t laid_out = Run({.op = IoOp::kFallocate, .fd = fd, .length = 1 << 20, .offset = 0});
  const auto grown = std::filesystem::file_size(dir_ / "file");
  const std::int64_t cut = Run({.op = IoOp::kFtruncate, .fd = fd, .length = 1234});

  EXPECT_EQ(laid_out, 0);
  EXPECT_EQ(grown, 1U << 20);
  EXPECT_EQ(cut, 0);
  EXPECT_EQ(std::filesystem::file_size(dir_ / "file"), 1234U);
  Close(fd);
}

TEST_P(IoOperations, FtruncateAcceptsLengthsBeyond32Bits) {
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT);

  const std::int64_t result = Run({.op = IoOp::kFtruncate, .fd = fd, .length = 5ULL << 30});

  EXPECT_EQ(result, 0);
  EXPECT_EQ(std::filesystem::file_size(dir_ / "file"), 5ULL << 30);
  Close(fd);
}

TEST_P(IoOperations, FilesAndDirectoriesAreSynced) {
  const int file = Open(dir_ / "file", O_RDWR | O_CREAT);
  const int directory = Open(dir_.path(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(Write(file, "durable"), 7);

  EXPECT_EQ(Run({.op = IoOp::kSyncRange, .fd = file, .length = 7, .offset = 0}), 0);
  EXPECT_EQ(Run({.op = IoOp::kSyncRange, .fd = file, .length = 5ULL << 30, .offset = 0}), 0);
  EXPECT_EQ(Run({.op = IoOp::kFsync, .fd = file}), 0);
  EXPECT_EQ(Run({.op = IoOp::kFsync, .fd = directory}), 0);
  Close(file);
  Close(directory);
}

TEST_P(IoOperations, DirectoriesAreMadeAndRemoved) {
  ASSERT_EQ(Run({.op = IoOp::kMkdir, .path = dir_ / "folder", .mode = 0700}), 0);
  struct stat info {};
  ASSERT_EQ(::stat((dir_ / "folder").c_str(), &info), 0);
  EXPECT_TRUE(S_ISDIR(info.st_mode));
  EXPECT_EQ(info.st_mode & 0777U, 0700U);

  EXPECT_EQ(Run({.op = IoOp::kMkdir, .path = dir_ / "folder", .mode = 0700}), -EEXIST);
  MakeFile("folder/file", "");
  EXPECT_EQ(Run({.op = IoOp::kRmdir, .path = dir_ / "folder"}), -ENOTEMPTY);
  EXPECT_EQ(Run({.op = IoOp::kUnlink, .path = dir_ / "folder/file"}), 0);
  EXPECT_EQ(Run({.op = IoOp::kRmdir, .path = dir_ / "folder"}), 0);

  EXPECT_FALSE(std::filesystem::exists(dir_ / "folder"));
}

TEST_P(IoOperations, PlainRenameReplaces) {
  MakeFile("a", "new");
  MakeFile("b", "old");

  EXPECT_EQ(Run({.op = IoOp::kRename, .path = dir_ / "a", .path2 = dir_ / "b"}), 0);

  EXPECT_EQ(Contents("b"), "new");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "a"));
}

TEST_P(IoOperations, RenameWithoutReplacingKeepsTheTarget) {
  MakeFile("a", "new");
  MakeFile("b", "old");

  const std::int64_t taken =
      Run({.op = IoOp::kRename, .path = dir_ / "a", .path2 = dir_ / "b", .rename = RenameMode::kNoReplace});
  const std::int64_t free =
      Run({.op = IoOp::kRename, .path = dir_ / "a", .path2 = dir_ / "c", .rename = RenameMode::kNoReplace});

  EXPECT_EQ(taken, -EEXIST);
  EXPECT_EQ(Contents("b"), "old");
  EXPECT_EQ(free, 0);
  EXPECT_EQ(Contents("c"), "new");
}

TEST_P(IoOperations, ExchangeSwapsDirectories) {
  ASSERT_TRUE(std::filesystem::create_directory(dir_ / "a"));
  ASSERT_TRUE(std::filesystem::create_directory(dir_ / "b"));
  MakeFile("a/name", "a");
  MakeFile("b/name", "b");

  EXPECT_EQ(Run({.op = IoOp::kRename, .path = dir_ / "a", .path2 = dir_ / "b", .rename = RenameMode::kExchange}), 0);

  EXPECT_EQ(Contents("a/name"), "b");
  EXPECT_EQ(Contents("b/name"), "a");
}

TEST_P(IoOperations, LinkGivesAnOpenFileOneMoreName) {
  MakeFile("a", "linked");
  MakeFile("taken", "old");
  const int fd = Open(dir_ / "a", O_RDONLY);

  EXPECT_EQ(Run({.op = IoOp::kLink, .fd = fd, .path2 = dir_ / "b"}), 0);
  EXPECT_TRUE(std::filesystem::equivalent(dir_ / "a", dir_ / "b"));
  EXPECT_EQ(Run({.op = IoOp::kLink, .fd = fd, .path2 = dir_ / "taken"}), -EEXIST);
  EXPECT_EQ(Contents("taken"), "old");
  std::filesystem::remove(dir_ / "a");
  EXPECT_EQ(Run({.op = IoOp::kLink, .fd = fd, .path2 = dir_ / "c"}), 0);
  EXPECT_EQ(std::filesystem::hard_link_count(dir_ / "c"), 2U);
  std::filesystem::remove(dir_ / "b");
  std::filesystem::remove(dir_ / "c");

  EXPECT_EQ(Run({.op = IoOp::kLink, .fd = fd, .path2 = dir_ / "d"}), -ENOENT) << "it has no name any more";
  Close(fd);
}

TEST_P(IoOperations, ErrorsAreNegativeErrno) {
  MakeFile("file", "");
  const int read_only = Open(dir_ / "file", O_RDONLY);
  ASSERT_GE(read_only, 0);

  EXPECT_EQ(Open(dir_ / "missing", O_RDONLY), -ENOENT);
  EXPECT_EQ(Open(dir_ / "file", O_WRONLY | O_CREAT | O_EXCL), -EEXIST);
  EXPECT_EQ(Open(dir_ / "file/below", O_RDONLY), -ENOTDIR);
  EXPECT_EQ(Write(read_only, "x"), -EBADF);
  EXPECT_EQ(Run({.op = IoOp::kFsync, .fd = -1}), -EBADF);
  EXPECT_EQ(Run({.op = IoOp::kFtruncate, .fd = read_only, .length = 1}), -EINVAL);
  EXPECT_EQ(Run({.op = IoOp::kUnlink, .path = dir_ / "missing"}), -ENOENT);
  EXPECT_EQ(Run({.op = IoOp::kUnlink, .path = dir_.path()}), -EISDIR);
  EXPECT_EQ(Run({.op = IoOp::kRmdir, .path = dir_ / "file"}), -ENOTDIR);
  EXPECT_EQ(Run({.op = IoOp::kRename, .path = dir_ / "missing", .path2 = dir_ / "b"}), -ENOENT);
  Close(read_only);
}

TEST_P(IoOperations, DirectWriteReachesTheFile) {
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT | O_DIRECT);
  if (fd == -EINVAL) GTEST_SKIP() << "the filesystem of " << dir_.path() << " refuses O_DIRECT";
  AlignedBuffer buffer(1 << 20);
  std::memset(buffer.data(), 'x', buffer.size());

  const std::int64_t written =
      Run({.op = IoOp::kWrite, .fd = fd, .buffer = buffer.data(), .length = buffer.size(), .offset = 4096});

  EXPECT_EQ(written, 1 << 20);
  EXPECT_EQ(Contents("file"), std::string(4096, '\0') + std::string(1 << 20, 'x'));
  Close(fd);
}

TEST_P(IoOperations, UnalignedDirectWriteIsRefused) {
  const int fd = Open(dir_ / "file", O_RDWR | O_CREAT | O_DIRECT);
  if (fd == -EINVAL) GTEST_SKIP() << "the filesystem of " << dir_.path() << " refuses O_DIRECT";
  AlignedBuffer buffer(8192);
  IoRequest aligned{.op = IoOp::kWrite, .fd = fd, .buffer = buffer.data(), .length = 4096, .offset = 0};
  IoRequest length = aligned;
  length.length = 100;
  IoRequest offset = aligned;
  offset.offset = 100;

  const std::int64_t of_length = Run(length);
  const std::int64_t of_offset = Run(offset);
  if (of_length > 0) GTEST_SKIP() << "the filesystem of " << dir_.path() << " takes unaligned O_DIRECT";

  EXPECT_EQ(of_length, -EINVAL);
  EXPECT_EQ(of_offset, -EINVAL);
  Close(fd);
}

INSTANTIATE_TEST_SUITE_P(All, IoOperations, testing::ValuesIn(AllQueues()), CaseName);

}  // namespace
}  // namespace cairn
