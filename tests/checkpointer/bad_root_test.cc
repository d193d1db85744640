// Roots that cannot be used, or no longer can: the error says what was expected and found, and nothing is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(BadRoot, IsMadeWithItsParentsIfMissing) {
  const TempDir dir;
  Options options = SmallOptions(dir / "a/b/c");
  options.directory_mode = 0750;
  auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);

  EXPECT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());

  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  EXPECT_EQ(std::filesystem::status(dir / "a/b").permissions() & std::filesystem::perms::others_all,
            std::filesystem::perms::none);
  checkpointer.reset();
  ExpectNothingLost(dir / "a/b/c", 1);
}

TEST(BadRoot, IsNotMadeIfReadOnly) {
  const TempDir dir;
  Options options = SmallOptions(dir / "run");
  options.read_only = true;

  const Status status = Checkpointer::Open(options).status();

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(dir / "run"));
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

TEST(BadRoot, IsRejectedIfItOrAParentIsAFile) {
  const TempDir dir;
  std::ofstream(dir / "file") << "precious";
  for (const std::string& path : {dir / "file", dir / "file/run"}) {
    const Status status = Checkpointer::Open(SmallOptions(path)).status();

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(dir / "file"));
    EXPECT_THAT(status.message(), HasSubstr("director"));
  }
  EXPECT_EQ(std::filesystem::file_size(dir / "file"), 8U);
}

/// Drops root privileges for this thread's file accesses while it lives. The library's threads keep them.
class Unprivileged {
 public:
  Unprivileged() : was_root_(::geteuid() == 0) {
    if (was_root_) able_ = ::setegid(65534) == 0 && ::seteuid(65534) == 0;
  }
  ~Unprivileged() {
    if (was_root_ && (::seteuid(0) != 0 || ::setegid(0) != 0)) std::terminate();
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;
  [[nodiscard]] bool able() const { return able_; }

 private:
  const bool was_root_;
  bool able_ = true;
};

TEST(BadRoot, IsRejectedWithoutWritePermission) {
  const TempDir dir;
  std::filesystem::permissions(dir.path(), std::filesystem::perms{0755});
  {
    const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
    ASSERT_NE(checkpointer, nullptr);
    ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  }
  std::filesystem::permissions(dir / "run", std::filesystem::perms{0555});
  {
    const Unprivileged nobody;
    if (!nobody.able()) GTEST_SKIP() << "this process cannot drop its privileges";
    const Status status = Checkpointer::Open(SmallOptions(dir / "run")).status();

    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr(dir / "run"));
    EXPECT_THAT(status.message(), HasSubstr("Permission denied"));

    // It can still be read.
    Options options = SmallOptions(dir / "run");
    options.read_only = true;
    const auto reader = OpenOrFail(options);
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(RestoreAndCompare(*reader, Latest()), Status::Ok());
  }
  std::filesystem::permissions(dir / "run", std::filesystem::perms{0755});
  ExpectNothingLost(dir / "run", 1);
}

TEST(BadRoot, IsRejectedIfItCannotBeMade) {
  const TempDir dir;
  std::filesystem::permissions(dir.path(), std::filesystem::perms{0555});
  const Unprivileged nobody;
  if (!nobody.able()) GTEST_SKIP() << "this process cannot drop its privileges";

  const Status status = Checkpointer::Open(SmallOptions(dir / "run")).status();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), HasSubstr(dir / "run"));
}

/// A tmpfs of the given size on a directory while it lives.
class SmallDisk {
 public:
  SmallDisk(std::string path, const std::string& size) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
    if (!mounted_) why_ = "a tmpfs cannot be mounted here: " + std::generic_category().message(errno);
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  /// Empty if it is mounted.
  [[nodiscard]] const std::string& why_not() const { return why_; }

 private:
  const std::string path_;
  bool mounted_ = false;
  std::string why_;
};

TEST(FullDisk, FailsASaveUntilThereIsSpace) {
  const TempDir dir;
  const SmallDisk disk(dir / "disk", "4m");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const std::string root = dir / "disk/run";
  const auto checkpointer = OpenOrFail(SmallOptions(root));
  ASSERT_NE(checkpointer, nullptr);
  // Three states of 1.2 MB fit, a fourth does not.
  for (std::uint64_t step = 1; step <= 3; ++step) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());

  const Status status = SaveDurably(*checkpointer, 4);

  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status;
  EXPECT_THAT(status.message(), HasSubstr("bytes"));
  EXPECT_THAT(status.message(), HasSubstr("free"));
  EXPECT_EQ(checkpointer->LastFailure(), status);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2, 3));
  EXPECT_THAT(Leftovers(root), IsEmpty());
  for (std::uint64_t step = 1; step <= 3; ++step) EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(step)), Status::Ok());
  // These restores have begun a new line; the newest was restored last.
  ASSERT_EQ(checkpointer->Remove(1), Status::Ok());
  EXPECT_EQ(SaveDurably(*checkpointer, 5), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), Contains(5));
}

TEST(FullDisk, FailsASaveIfSpaceRunsOutMeanwhile) {
  const TempDir dir;
  const SmallDisk disk(dir / "disk", "8m");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const std::string root = dir / "disk/run";
  const auto plan = FaultPlan::Make();
  const auto checkpointer = OpenOrFail(SmallOptions(root), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  // Another program uses the rest between the space check and the allocation.
  plan->CallBefore({.op = IoOp::kFallocate, .nth = 1}, [&dir](const SeenOperation&) {
    std::ofstream other(dir / "disk/other", std::ios::binary);
    other << std::string(16U << 20, 'x');
  });

  const Status status = SaveDurably(*checkpointer, 2);

  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status;
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  std::filesystem::remove(dir / "disk/other");
  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
}

TEST(FullDisk, RemovesSparesForASaveThatNeedsSpace) {
  const TempDir dir;
  const SmallDisk disk(dir / "disk", "5m");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const std::string root = dir / "disk/run";
  for (const char* retired : {"/.retired-a", "/.retired-b"}) {
    std::filesystem::create_directories(root + retired);
    std::ofstream(root + retired + "/shard-00000.safetensors") << std::string(2U << 20, 'x');
  }
  const auto checkpointer = OpenOrFail(SmallOptions(root));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  ASSERT_THAT(Leftovers(root), ElementsAre(".spare-0", ".spare-1"));
  Tensors large = Tensors::Many(1, (7U << 20) / 2 / sizeof(float));

  const auto save = checkpointer->Save(1, large.state());
  ASSERT_TRUE(save.ok()) << save.status();

  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
  EXPECT_TRUE(save->stats().recycled) << checkpointer->stats().not_recycled_reason;
}

// A buffered write beyond the limit would kill the process.
TEST(FullDisk, FailsASaveBeyondRlimitFsize) {
  const TempDir dir;
  const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1U << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);

  const Status status = SaveDurably(*checkpointer, 2);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);

  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status;
  EXPECT_THAT(status.message(), AnyOf(HasSubstr("RLIMIT_FSIZE")));
  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 3));
}

// A root that is moved while a trainer runs.
TEST(BadRoot, IsFollowedIfMoved) {
  const TempDir dir;
  Mutex mutex;
  std::vector<std::string> warnings;
  Options options = SmallOptions(dir / "run");
  options.keep_last = 0;
  options.on_event = [&](const Event& event) {
    MutexLock lock(mutex);
    if (event.severity == Severity::kWarning) warnings.push_back(event.message);
  };
  const auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  std::filesystem::rename(dir / "run", dir / "elsewhere");
  std::filesystem::create_directory(dir / "run");

  EXPECT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  {
    MutexLock lock(mutex);
    EXPECT_THAT(warnings,
                ElementsAre(AllOf(HasSubstr((dir / "run") + " is another directory now"),
                                  HasSubstr("was moved to " + (dir / "elsewhere") + ". Its saves follow it"))));
  }
  const Status listed = checkpointer->List().status();
  EXPECT_TRUE(std::filesystem::is_empty(dir / "run")) << "it belongs to somebody else";
  std::filesystem::remove(dir / "run");
  std::filesystem::rename(dir / "elsewhere", dir / "run");

  EXPECT_EQ(listed.code(), StatusCode::kFailedPrecondition) << listed;
  EXPECT_THAT(listed.message(), HasSubstr(dir / "run"));
  EXPECT_EQ(SaveDurably(*checkpointer, 4), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2, 3, 4));
}

TEST(BadRoot, FailsSavesIfRemoved) {
  const TempDir dir;
  const auto checkpointer = OpenOrFail(SmallOptions(dir / "run"));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  std::filesystem::remove_all(dir / "run");

  const Status status = SaveDurably(*checkpointer, 2);

  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status;
  EXPECT_THAT(status.message(), HasSubstr(dir / "run"));
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

// Other files are left alone and reported.
TEST(BadRoot, LeavesOtherFilesAloneAndReportsThem) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "run/notes");
  std::ofstream(dir / "run/step-12") << "not a folder, and not the name of one";
  std::ofstream(dir / "run/.attempt-0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11") << "a file";
  Mutex mutex;
  std::vector<std::string> warnings;
  Options options = SmallOptions(dir / "run");
  options.on_event = [&](const Event& event) {
    MutexLock lock(mutex);
    if (event.severity == Severity::kWarning) warnings.push_back(event.message);
  };

  const auto checkpointer = OpenOrFail(options);

  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  {
    MutexLock lock(mutex);
    EXPECT_THAT(warnings, ElementsAre(HasSubstr(".attempt-0b9d6a52")));
  }
  EXPECT_TRUE(std::filesystem::exists(dir / "run/notes"));
  EXPECT_TRUE(std::filesystem::exists(dir / "run/step-12"));
  EXPECT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
}

}  // namespace
}  // namespace cairn
