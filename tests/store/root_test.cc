#include "store/root.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>

#include "store/names.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RootTest : public ::testing::Test {
 protected:
  [[nodiscard]] Result<std::unique_ptr<Root>> Open(const std::string& path) {
    return Root::Open(*queue_, {.path = path});
  }
  [[nodiscard]] Status OpenStatus(const RootOptions& options) { return Root::Open(*queue_, options).status(); }
  /// The indices of the fsyncs of that path among all operations.
  [[nodiscard]] std::vector<std::size_t> Fsyncs(const std::string& path) const {
    std::vector<std::size_t> found;
    const std::vector<SeenOperation> seen = plan_->Seen();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (seen[i].op == IoOp::kFsync && seen[i].path == path) found.push_back(i);
    }
    return found;
  }
  [[nodiscard]] std::size_t First(const FaultMatch& match) const {
    const std::vector<SeenOperation> seen = plan_->Seen();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (seen[i].op == match.op && seen[i].path.find(match.path) != std::string::npos) return i;
    }
    return seen.size();
  }

  TempDir dir_;
  const std::string root_ = dir_ / "root";
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(PlainFactory()));
};

TEST_F(RootTest, MakesMissingParentsAndFsyncsEach) {
  const auto root = Open(dir_ / "a/b/root/");

  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ((*root)->path(), dir_ / "a/b/root");
  EXPECT_THAT(Names(dir_ / "a/b/root"), ElementsAre(".lock", ".writer"));
  EXPECT_THAT(Fsyncs(dir_.path()), SizeIs(1)) << ToString(plan_->Seen());
  EXPECT_THAT(Fsyncs(dir_ / "a"), SizeIs(1));
  EXPECT_THAT(Fsyncs(dir_ / "a/b"), SizeIs(1));
  EXPECT_THAT(Fsyncs(dir_ / "a/b/root"), SizeIs(1));
}

TEST_F(RootTest, PathOfAFileIsRejected) {
  WriteAll(root_, "");

  for (const bool read_only : {false, true}) {
    const Status status = OpenStatus({.path = root_, .read_only = read_only});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(root_ + ": expected a directory"));
  }
  EXPECT_EQ(OpenStatus({.path = root_ + "/below"}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenStatus({.path = ""}).code(), StatusCode::kInvalidArgument);
}

TEST_F(RootTest, DanglingLinkIsRejected) {
  fs::create_symlink("nowhere", root_);

  EXPECT_EQ(OpenStatus({.path = root_}).code(), StatusCode::kFailedPrecondition);
}

TEST_F(RootTest, ReadOnlyChangesNothing) {
  EXPECT_EQ(OpenStatus({.path = root_, .read_only = true}).code(), StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(root_));
  fs::create_directories(root_ + "/.attempt-x");

  const auto writer = Root::Open(*queue_, {.path = root_, .read_only = true});

  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_THAT(Names(root_), ElementsAre(".attempt-x"));
  EXPECT_EQ(plan_->Count({}), 0U);
}

TEST_F(RootTest, OtherRanksChangeNothing) {
  const auto coordinator = Open(root_);
  fs::create_directory(root_ + "/.attempt-x");

  const auto other = Root::Open(*queue_, {.path = root_, .coordinator = false});

  EXPECT_TRUE(coordinator.ok() && other.ok()) << coordinator.status() << other.status();
  EXPECT_TRUE(fs::exists(root_ + "/.attempt-x"));
  EXPECT_EQ(OpenStatus({.path = dir_ / "later", .coordinator = false}), Status::Ok());
  EXPECT_FALSE(fs::exists(dir_ / "later"));
}

TEST_F(RootTest, FailedOpenReleasesTheLock) {
  ASSERT_TRUE(Open(root_).ok());
  const std::size_t operations = plan_->Count({});
  for (std::size_t k = 1; k <= operations; ++k) {
    fs::remove_all(root_);
    plan_->Clear();
    plan_->Fail({.nth = k}, EIO);

    EXPECT_EQ(Open(root_).status().code(), StatusCode::kIoError) << k;

    plan_->Clear();
    EXPECT_EQ(Open(root_).status(), Status::Ok()) << k;
  }
}

TEST_F(RootTest, SecondWriterInThisProcessFails) {
  auto first = Open(root_);
  ASSERT_TRUE(first.ok()) << first.status();
  fs::create_directory_symlink(root_, dir_ / "link");

  for (const std::string& path :
       {root_, dir_ / "link", dir_ / "../" + fs::path(dir_.path()).filename().string() + "/root"}) {
    const Status second = OpenStatus({.path = path});
    EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition) << second;
    EXPECT_THAT(second.message(), HasSubstr("in this process"));
  }
  // The failed open must not have closed `.lock`, which would release the lock.
  const pid_t child = ::fork();
  if (child == 0) {
    const auto queue = MakeQueue();
    ::_exit(OpenRoot(*queue, root_).status().code() == StatusCode::kFailedPrecondition ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);

  (*first).reset();
  EXPECT_EQ(OpenStatus({.path = root_}), Status::Ok());
}

/// A child process that runs `body` and then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) {
    int ready[2];
    int go[2];
    EXPECT_EQ(::pipe(ready), 0);
    EXPECT_EQ(::pipe(go), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(go[1]);
      const char good = body() ? 1 : 0;
      static_cast<void>(::write(ready[1], &good, 1));
      char byte = 0;
      static_cast<void>(::read(go[0], &byte, 1));
      ::_exit(0);
    }
    ::close(ready[1]);
    ::close(go[0]);
    char good = 0;
    EXPECT_EQ(::read(ready[0], &good, 1), 1);
    EXPECT_EQ(good, 1);
    ::close(ready[0]);
    go_ = go[1];
  }
  ~Child() { Kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(go_);
    pid_ = -1;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int go_ = -1;
};

TEST_F(RootTest, WriterInAnotherProcessIsNamedUntilItDies) {
  std::unique_ptr<IoQueue> queue;
  Result<std::unique_ptr<Root>> held = Status(StatusCode::kInternal, "not opened");
  Child writer([&] {
    queue = MakeQueue();
    held = OpenRoot(*queue, root_);
    return held.ok();
  });

  fs::create_directories(root_ + "/.attempt-of-the-writer");

  const Status refused = OpenStatus({.path = root_});
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("in process " + std::to_string(writer.pid())));
  EXPECT_TRUE(fs::exists(root_ + "/.attempt-of-the-writer")) << "a rejected open must not sweep";

  writer.Kill();
  EXPECT_EQ(OpenRoot(*queue_, root_).status(), Status::Ok());
  EXPECT_FALSE(fs::exists(root_ + "/.attempt-of-the-writer"));
}

TEST_F(RootTest, ForkedWorkerDoesNotKeepTheLock) {
  // Given a trainer that has opened the root and forked a worker, which ends when `hold` is closed.
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  std::unique_ptr<IoQueue> queue;
  Result<std::unique_ptr<Root>> held = Status(StatusCode::kInternal, "not opened");
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  Child trainer([&] {
    queue = MakeQueue();
    held = OpenRoot(*queue, root_);
    if (::fork() == 0) {
      ::close(hold[1]);
      char byte = 'w';
      static_cast<void>(::write(alive[1], &byte, 1));
      static_cast<void>(::read(hold[0], &byte, 1));
      ::_exit(0);
    }
    ::close(alive[1]);
    return held.ok();
  });

  char worker = 0;
  ASSERT_EQ(::read(alive[0], &worker, 1), 1);

  // Once the trainer is killed, a new one may open the root although the worker is alive.
  trainer.Kill();
  EXPECT_EQ(OpenStatus({.path = root_}), Status::Ok());
  ::close(hold[0]);
  ::close(hold[1]);
  ::close(alive[0]);
  ::close(alive[1]);
}

TEST_F(RootTest, ForkedChildNeitherReleasesNorReopensTheParentsRoot) {
  auto root = Open(root_);
  ASSERT_TRUE(root.ok()) << root.status();

  for (const bool destroys : {false, true}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (destroys) (*root).reset();
      const auto queue = MakeQueue();
      ::_exit(OpenRoot(*queue, root_).status().message().find("in process " + std::to_string(::getppid())) ==
                      std::string::npos
                  ? 1
                  : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << destroys;
  }
  EXPECT_EQ(OpenStatus({.path = root_}).code(), StatusCode::kFailedPrecondition);
}

TEST_F(RootTest, SweepRemovesOnlyLeftoversAfterAnFsync) {
  fs::create_directories(root_);
  ASSERT_EQ(SaveTo(*queue_, root_, {.step = 1}), Status::Ok());
  fs::create_directories(root_ + "/.attempt-a");
  WriteAll(root_ + "/.attempt-a/" + ShardName(0), "half");
  fs::copy(root_ + "/" + StepName(1), root_ + "/.retired-b");
  fs::create_directories(root_ + "/mine/.attempt-c");
  WriteAll(root_ + "/notes.txt", "mine");
  WriteAll(root_ + "/.attempt-file", "mine");
  fs::create_directories(dir_ / "elsewhere");
  WriteAll(dir_ / "elsewhere/precious", "mine");
  fs::create_directory_symlink(dir_ / "elsewhere", root_ + "/.attempt-link");
  fs::create_directory_symlink(dir_ / "elsewhere", root_ + "/.attempt-a/link");

  const auto root = Open(root_);
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(plan_->Count({.op = IoOp::kUnlink}), 0U) << "it may take long";
  const std::vector<std::string> left = SweepNow(*queue_, root_);

  EXPECT_THAT(Names(root_),
              ElementsAre(".attempt-file", ".attempt-link", ".lock", ".writer", "mine", "notes.txt", StepName(1)));
  EXPECT_EQ(ReadAll(dir_ / "elsewhere/precious"), "mine");
  EXPECT_TRUE(fs::exists(root_ + "/mine/.attempt-c"));
  EXPECT_EQ(CheckContent(root_, {.step = 1}), Status::Ok());
  EXPECT_LT(Fsyncs(root_).at(1), First({.op = IoOp::kUnlink, .path = "/."})) << ToString(plan_->Seen());
  EXPECT_THAT(
      left, ElementsAre(HasSubstr(".attempt-file is not a directory"), HasSubstr(".attempt-link is not a directory")));
}

TEST_F(RootTest, ReplacedStepIsRestoredOrRetired) {
  ASSERT_EQ(OpenStatus({.path = root_}), Status::Ok());
  for (const std::uint64_t step : {1, 2}) {
    ASSERT_EQ(SaveTo(*queue_, root_, {.step = step, .seed = step}), Status::Ok());
    fs::rename(root_ + "/" + StepName(step), root_ + "/" + ReplacedName(step, "u"));
  }
  ASSERT_EQ(SaveTo(*queue_, root_, {.step = 2, .seed = 9}), Status::Ok());
  fs::create_directory(root_ + "/.replaced-of-a-stranger");

  const auto root = Open(root_);

  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(CheckContent(root_, {.step = 1, .seed = 1}), Status::Ok());
  EXPECT_EQ(CheckContent(root_, {.step = 2, .seed = 9}), Status::Ok());
  EXPECT_THAT((*root)->notes(), ElementsAre(HasSubstr("step 1 is restored")));
  EXPECT_TRUE(fs::exists(root_ + "/.replaced-of-a-stranger"));
  EXPECT_FALSE(fs::exists(root_ + "/" + ReplacedName(2, "u")));
}

TEST_F(RootTest, SweepReportsWhatItLeaves) {
  fs::create_directories(root_ + "/.retired-a/mine");
  WriteAll(root_ + "/.retired-a/mine/notes.txt", "mine");
  fs::create_directories(root_ + "/.retired-b");
  WriteAll(root_ + "/.retired-b/stuck", "");
  plan_->Fail({.op = IoOp::kUnlink, .path = "stuck"}, EIO);

  const std::vector<std::string> left = SweepNow(*queue_, root_);

  EXPECT_THAT(left, ElementsAre(HasSubstr("mine is a directory that is not part of a checkpoint"), HasSubstr("stuck")));
  EXPECT_EQ(ReadAll(root_ + "/.retired-a/mine/notes.txt"), "mine");
}

}  // namespace
}  // namespace cairn
