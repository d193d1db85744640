// Real filesystems: mounted here if permitted, otherwise skipped with the reason.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/root.h"
#include "store_case.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Runs the body on a thread with its own mount namespace, so that its mounts always disappear. A separate thread also
/// because the kernel's io_uring workers stay in the namespace in which they were started.
void WithOwnMounts(const std::function<void()>& body) {
  std::thread([&body] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      GTEST_SKIP() << "making a mount namespace: " << std::strerror(errno);
    }
    body();
  }).join();
}

/// A mount in that namespace.
class Mount {
 public:
  Mount(const std::string& source, const std::string& type, const std::string& target, const std::string& data,
        unsigned long flags = 0) {
    if (::mount(source.c_str(), target.c_str(), type.c_str(), flags, data.c_str()) != 0) {
      problem_ = "mounting " + type + ": " + std::strerror(errno);
      return;
    }
    target_ = target;
  }
  ~Mount() {
    if (!target_.empty()) ::umount2(target_.c_str(), MNT_DETACH);
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  /// Empty if it is mounted.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::string target_;
  std::string problem_;
};

/// A file as a block device. Released when it is closed and unmounted.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& file) {
    const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    const int number = control.valid() ? ::ioctl(control.get(), LOOP_CTL_GET_FREE) : -1;
    path_ = "/dev/loop" + std::to_string(number);
    const UniqueFd backing(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    device_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    loop_info64 info{};
    info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (number < 0 || !device_.valid() || ::ioctl(device_.get(), LOOP_SET_FD, backing.get()) != 0 ||
        ::ioctl(device_.get(), LOOP_SET_STATUS64, &info) != 0) {
      problem_ = std::string("making a loop device: ") + std::strerror(errno);
    }
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  UniqueFd device_;
  std::string path_;
  std::string problem_;
};

/// Save, replace, save again, list, read, remove: everything a run does.
void CheckLife(const std::string& root, bool direct) {
  const auto queue = MakeQueue();
  {
    const auto opened = OpenRoot(*queue, root);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const TestSave first{.step = 1, .shards = 2};
    TestRanks ranks(*queue, root, first);
    ASSERT_EQ(ranks.Save(), Status::Ok());
    EXPECT_EQ(ranks.rank(0).direct(), direct);
    EXPECT_EQ(CheckContent(root, first), Status::Ok());
    EXPECT_EQ(SaveTo(*queue, root, first).code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(SaveTo(*queue, root, {.step = 2}), Status::Ok());
    const TestSave again{.step = 2, .seed = 5, .replace = true};
    EXPECT_EQ(SaveTo(*queue, root, again), Status::Ok());
    EXPECT_EQ(CheckContent(root, again), Status::Ok());
    EXPECT_THAT(GoodSteps(root), ElementsAre(1, 2));
    EXPECT_EQ(Remove(*queue, root, 1), Status::Ok());
    EXPECT_THAT(Names(root), ElementsAre(".lock", ".writer", StepName(2)));
  }
  EXPECT_EQ(OpenRoot(*queue, root).status(), Status::Ok());
}

void OnLoop(const std::string& type, const std::string& make, std::uint64_t megabytes,
            const std::function<void(const std::string& at)>& check) {
  TempDir dir;
  const std::string image = dir / "image";
  const std::string at = dir / "at";
  fs::create_directory(at);
  WriteAll(image, "");
  fs::resize_file(image, megabytes << 20);
  if (std::system((make + " " + image + " >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << make << " does not work here";
  const LoopDevice loop(image);
  if (!loop.problem().empty()) GTEST_SKIP() << loop.problem();
  const Mount mount(loop.path(), type, at, "");
  if (!mount.problem().empty()) GTEST_SKIP() << mount.problem();

  check(at);
}

void CheckLifeOnLoop(const std::string& type, const std::string& make, std::uint64_t megabytes) {
  OnLoop(type, make, megabytes, [](const std::string& at) { CheckLife(at + "/root", /*direct=*/true); });
}

TEST(Filesystem, Xfs) {
  WithOwnMounts([] { CheckLifeOnLoop("xfs", "mkfs.xfs -q", 320); });
}
TEST(Filesystem, Ext4) {
  WithOwnMounts([] { CheckLifeOnLoop("ext4", "mkfs.ext4 -q -F", 16); });
}
TEST(Filesystem, Btrfs) {
  WithOwnMounts([] { CheckLifeOnLoop("btrfs", "mkfs.btrfs -q", 128); });
}

void CheckWithoutDirectIo() {
  TempDir dir;
  const Mount mount("ramfs", "ramfs", dir.path(), "");
  if (!mount.problem().empty()) GTEST_SKIP() << mount.problem();
  const UniqueFd probe(::open((dir / "probe").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600));
  if (probe.valid()) GTEST_SKIP() << "ramfs supports O_DIRECT in this kernel";
  // The kernel has created the file although the open failed; Begin must handle that.
  EXPECT_TRUE(fs::exists(dir / "probe"));

  CheckLife(dir / "root", /*direct=*/false);
}
TEST(Filesystem, WithoutDirectIo) { WithOwnMounts(CheckWithoutDirectIo); }

void CheckNothingIsRecycled() {
  TempDir dir;
  const Mount mount("ramfs", "ramfs", dir.path(), "");
  if (!mount.problem().empty()) GTEST_SKIP() << mount.problem();
  const auto queue = MakeQueue();
  const std::string root = dir / "root";
  fs::create_directory(root);
  ASSERT_EQ(SaveTo(*queue, root, {.step = 1}), Status::Ok());
  const UniqueFd shard(::open((root + "/" + StepName(1) + "/" + ShardName(0)).c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(shard.valid());

  const Status lease = TakeLease(shard, "the shard");
  std::string why;
  const Status retired = Retire(*queue, root, 1, 1, &why);

  EXPECT_EQ(lease.code(), StatusCode::kUnsupported);
  EXPECT_THAT(lease.message(), HasSubstr("the shard: its filesystem (0x858458f6) is not known to be local"));
  EXPECT_EQ(retired, Status::Ok());
  EXPECT_THAT(why, HasSubstr(ShardName(0)));
  EXPECT_THAT(Names(root), IsEmpty());
  const TestSave next{.step = 2, .recycle = true};
  EXPECT_EQ(SaveTo(*queue, root, next), Status::Ok());
  EXPECT_EQ(CheckContent(root, next), Status::Ok());
}
TEST(Filesystem, WithoutInPlaceWritesIsNotRecycled) { WithOwnMounts(CheckNothingIsRecycled); }

void CheckReadOnly() {
  TempDir dir;
  const std::string root = dir / "root";
  const TestSave save{.step = 1};
  const auto queue = MakeQueue();
  fs::create_directory(root);
  ASSERT_EQ(SaveTo(*queue, root, save), Status::Ok());
  const Mount bind(dir.path(), "none", dir.path(), "", MS_BIND);
  if (!bind.problem().empty()) GTEST_SKIP() << bind.problem();
  if (::mount("none", dir.path().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
    GTEST_SKIP() << "mounting read-only: " << std::strerror(errno);
  }

  const Status writer = OpenRoot(*queue, root).status();
  const Status rank = Root::Open(*queue, {.path = root, .coordinator = false}).status();
  const Status missing = OpenRoot(*queue, dir / "other").status();
  const Status attempt = SaveTo(*queue, root, {.step = 2});

  for (const Status& status : {writer, rank, missing, attempt}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("Read-only file system"));
  }
  EXPECT_EQ(Root::Open(*queue, {.path = root, .read_only = true}).status(), Status::Ok());
  EXPECT_THAT(GoodSteps(root), ElementsAre(1));
  EXPECT_TRUE(ReadLock::Take(root + "/" + StepName(1)).ok());
}
TEST(Filesystem, ReadOnly) { WithOwnMounts(CheckReadOnly); }

void CheckFullBeforeTheSave() {
  TempDir dir;
  const Mount mount("tmpfs", "tmpfs", dir.path(), "size=64k");
  if (!mount.problem().empty()) GTEST_SKIP() << mount.problem();
  const auto queue = MakeQueue();
  const auto opened = OpenRoot(*queue, dir / "root");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const TestSave first{.step = 1, .shards = 2};
  ASSERT_EQ(SaveTo(*queue, dir / "root", first), Status::Ok());

  const Status status = SaveTo(*queue, dir / "root", {.step = 2, .shards = 2});

  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status;
  EXPECT_EQ(CheckContent(dir / "root", first), Status::Ok());
  EXPECT_THAT(Names(dir / "root"), ElementsAre(".lock", ".writer", StepName(1)));
}
TEST(Filesystem, FullBeforeTheSave) { WithOwnMounts(CheckFullBeforeTheSave); }

/// Allocates blocks for a file until the disk is full. Returns how much that was.
std::uint64_t Fill(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  std::uint64_t end = 0;
  for (std::uint64_t piece = 64U << 20; piece >= kBlock;) {
    if (::fallocate(fd.get(), 0, static_cast<off_t>(end), static_cast<off_t>(piece)) == 0) {
      end += piece;
    } else {
      piece /= 2;
    }
  }
  return end;
}

/// Takes what is left: the last bytes, or the last files.
void Exhaust(const std::string& at, bool files) {
  if (!files) Fill(at + "/fill");
  for (int i = 0; i < 100'000; ++i) {
    const UniqueFd fd(
        ::open((at + "/x" + std::to_string(files ? i : 0)).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!fd.valid() || (!files && ::write(fd.get(), "xxxxxxxx", 8) < 0)) return;
  }
  ADD_FAILURE() << at << " is not full";
}

/// Opens, removes and saves at 0 bytes or files free, with what a killed run left and without.
void CheckFull(const std::string& at, bool files) {
  const std::string root = at + "/root";
  const auto queue = MakeQueue();
  {
    const auto opened = OpenRoot(*queue, root);
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const std::uint64_t step : {1, 2, 3}) ASSERT_EQ(SaveTo(*queue, root, {.step = step}), Status::Ok());
  }
  fs::copy(root + "/" + StepName(2), root + "/" + AttemptName("of-a-killed-run"));
  Exhaust(at, files);

  EXPECT_EQ(OpenRoot(*queue, root).status(), Status::Ok());
  EXPECT_THAT(Names(root), ElementsAre(".lock", ".writer", StepName(1), StepName(2), StepName(3)));
  Exhaust(at, files);
  const auto opened = OpenRoot(*queue, root);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(SaveTo(*queue, root, {.step = 4}).code(), StatusCode::kNoSpace);
  for (const std::uint64_t step : {1, 2}) EXPECT_EQ(Remove(*queue, root, step), Status::Ok());
  EXPECT_EQ(SaveTo(*queue, root, {.step = 4}), Status::Ok());
  EXPECT_THAT(GoodSteps(root), ElementsAre(3, 4));
  EXPECT_THAT(Names(root), ElementsAre(".lock", ".writer", StepName(3), StepName(4)));
}

void CheckFullTmpfs(const std::string& data, bool files) {
  TempDir dir;
  const Mount mount("tmpfs", "tmpfs", dir.path(), data);
  if (!mount.problem().empty()) GTEST_SKIP() << mount.problem();
  CheckFull(dir.path(), files);
}
TEST(Filesystem, TmpfsWithoutAFreeByte) {
  WithOwnMounts([] { CheckFullTmpfs("size=512k", /*files=*/false); });
}
TEST(Filesystem, TmpfsWithoutAFreeFile) {
  WithOwnMounts([] { CheckFullTmpfs("size=8m,nr_inodes=40", /*files=*/true); });
}
TEST(Filesystem, Ext4WithoutAFreeByte) {
  WithOwnMounts(
      [] { OnLoop("ext4", "mkfs.ext4 -q -F -m 0", 8, [](const std::string& at) { CheckFull(at, /*files=*/false); }); });
}
TEST(Filesystem, Ext4WithoutAFreeFile) {
  WithOwnMounts(
      [] { OnLoop("ext4", "mkfs.ext4 -q -F -N 64", 8, [](const std::string& at) { CheckFull(at, /*files=*/true); }); });
}

// XFS reserves some blocks and inodes, so the message must say more than the errno.
TEST(Filesystem, FullXfsReportsFreeSpaceIfMkdirFails) {
  WithOwnMounts([] {
    OnLoop("xfs", "mkfs.xfs -q", 320, [](const std::string& at) {
      ASSERT_GT(Fill(at + "/fill"), 100U << 20);
      const auto queue = MakeQueue();

      const Status status = RunBlocking(*queue, {.op = IoOp::kMkdir, .path = at + "/root", .mode = 0755}).status();

      EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status;
      EXPECT_THAT(status.message(), ::testing::MatchesRegex("mkdir of " + at +
                                                            "/root: No space left on device .errno 28.: free: [0-9]+ "
                                                            "of [0-9]+ bytes, [0-9]+ of [0-9]+ inodes"));
    });
  });
}

void CheckFullBeforeTheManifest() {
  TempDir dir;
  const Mount mount("tmpfs", "tmpfs", dir.path(), "size=128k");
  if (!mount.problem().empty()) GTEST_SKIP() << mount.problem();
  const auto queue = MakeQueue();
  const std::string root = dir / "root";
  fs::create_directory(root);
  const TestSave first{.step = 1};
  ASSERT_EQ(SaveTo(*queue, root, first), Status::Ok());
  TestRanks ranks(*queue, root, {.step = 2});
  ASSERT_EQ(ranks.Begin(), Status::Ok());
  struct statvfs space {};
  ASSERT_EQ(::statvfs(root.c_str(), &space), 0);
  WriteAll(dir / "filler", std::string(space.f_bavail * space.f_frsize, 'x'));

  // The shard's blocks were allocated at the beginning, so only the manifest does not fit.
  EXPECT_EQ(ranks.Write(), Status::Ok());
  EXPECT_EQ(ranks.Seal(), Status::Ok());
  const Status status = ranks.Commit();
  EXPECT_EQ(ranks.Abandon(), Status::Ok());

  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status;
  EXPECT_THAT(Names(root), ElementsAre(StepName(1)));
  EXPECT_EQ(CheckContent(root, first), Status::Ok());
}
TEST(Filesystem, FullBeforeTheManifest) { WithOwnMounts(CheckFullBeforeTheManifest); }

/// Runs `body` in a child with that RLIMIT_FSIZE. A signal is a test failure.
void WithFileSizeLimit(rlim_t bytes, const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
    ::_exit(::setrlimit(RLIMIT_FSIZE, &limit) == 0 && body() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Filesystem, FileSizeLimitBelowTheShardIsNoSpaceBeforeTheFirstByte) {
  TempDir dir;
  WithFileSizeLimit(8192, [&] {
    const auto queue = MakeQueue();
    const Status status = SaveTo(*queue, dir.path(), {.step = 1});
    return status.code() == StatusCode::kNoSpace &&
           status.message().find("RLIMIT_FSIZE allows 8192") != std::string::npos;
  });

  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

TEST(Filesystem, FileSizeLimitBelowTheManifestRaisesNoSignal) {
  TempDir dir;
  WithFileSizeLimit(20480, [&] {
    const auto queue = MakeQueue();
    TestRanks ranks(*queue, dir.path(), {.step = 1});
    if (!ranks.Begin().ok() || !ranks.Write().ok() || !ranks.Seal().ok()) return false;
    const rlimit limit{.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return ranks.Commit().code() == StatusCode::kNoSpace && ranks.Abandon().ok();
  });

  EXPECT_THAT(Names(dir.path()), IsEmpty());
}

}  // namespace
}  // namespace cairn
