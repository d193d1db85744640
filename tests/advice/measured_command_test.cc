#include "advice/measured_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "advice/control_group.h"
#include "base/memory_limit.h"
#include "support/checkpoint_writer.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A shell's script with all cores, whose few iterations suffice.
CommandOptions Shell(const std::string& script) {
  return {.command = {"sh", "-c", script},
          .budget = {.cores = static_cast<double>(CountCores())},
          .counting = {.warm_up = 1, .iterations = 3, .least_seconds = 0},
          .timeout = std::chrono::seconds(60)};
}

MeasuredCommand Measured(const CommandOptions& options) {
  Result<MeasuredCommand> measured = MeasureCommand(options);
  EXPECT_TRUE(measured.ok()) << measured.status();
  return measured.ok() ? *measured : MeasuredCommand{};
}

bool IsGone(const std::string& pid) { return !std::filesystem::exists("/proc/" + pid); }

TEST(MeasuredCommand, CountsIterationsAndEndsTheCommandWithItsChildren) {
  const TempDir folder;
  const std::string pids = folder / "pids";
  CommandOptions options =
      Shell("sleep 1000 & echo $! >'" + pids + "'; i=0; while :; do i=$((i+1)); echo step $i; done");

  const MeasuredCommand measured = Measured(options);

  ASSERT_TRUE(measured.rate) << measured.failure;
  EXPECT_GE(measured.rate->iterations, 3U);
  EXPECT_GT(measured.rate->throughput, 0);
  std::string pid;
  std::ifstream(pids) >> pid;
  while (!IsGone(pid)) ::sched_yield();  // SIGKILL was sent; init reaps it.
}

// A session of its own, such as torchrun gives each worker, is no part of the command's process group.
TEST(MeasuredCommand, KillsWhatHasLeftTheCommandsGroup) {
  const TempDir folder;
  const std::string pids = folder / "pids";
  const std::string daemon = "trap \"\" TERM; setsid sleep 1000 & echo $! >>\"" + pids + "\"; sleep 1000";

  const MeasuredCommand measured =
      Measured(Shell("setsid sh -c '" + daemon + "' & echo $! >>'" + pids + "'; while [ $(wc -l <'" + pids +
                     "') -lt 2 ]; do :; done; for i in 1 2 3 4 5 6; do echo step $i; done"));

  ASSERT_TRUE(measured.rate) << measured.failure;
  std::ifstream file(pids);
  for (std::string pid; file >> pid;) EXPECT_TRUE(IsGone(pid)) << pid;
}

TEST(MeasuredCommand, EndsWhatPrintsFasterThanItIsRead) {
  // Each line takes long to compare with the patterns.
  CommandOptions options = Shell("exec yes " + std::string(1000, '1'));
  options.timeout = std::chrono::milliseconds(100);
  options.grace = std::chrono::milliseconds(20);

  EXPECT_THAT(Measured(options).failure, HasSubstr("100 ms passed after no line"));
}

TEST(MeasuredCommand, KillsWhatIgnoresSigterm) {
  CommandOptions options = Shell("trap '' TERM; i=0; while :; do i=$((i+1)); echo step $i; done");
  options.grace = std::chrono::milliseconds(20);

  EXPECT_TRUE(Measured(options).rate);
}

TEST(MeasuredCommand, TakesWhatThereWasOfACommandThatEnds) {
  const MeasuredCommand measured = Measured(Shell("for i in 1 2 3 4; do echo step $i; done"));

  ASSERT_TRUE(measured.rate) << measured.failure;
  EXPECT_EQ(measured.rate->iterations, 2U);
}

TEST(MeasuredCommand, SaysHowACommandFailed) {
  EXPECT_THAT(Measured(Shell("echo step 1; echo no data >&2; exit 3")).failure,
              AllOf(HasSubstr("it exited with code 3 after"), HasSubstr("its last lines: step 1 | no data")));
  EXPECT_THAT(Measured(Shell("true")).failure,
              AllOf(HasSubstr("no line that the pattern matches"), HasSubstr("it printed nothing")));
  EXPECT_THAT(Measured(Shell("kill -SEGV $$")).failure, HasSubstr("it was killed by signal 11"));
  CommandOptions silent = Shell("echo hello; exec sleep 1000");
  silent.timeout = std::chrono::milliseconds(200);
  EXPECT_THAT(Measured(silent).failure,
              AllOf(HasSubstr("200 ms passed after no line"), HasSubstr("its last lines: hello")));
}

TEST(MeasuredCommand, SaysWhetherIterationsWereMissing) {
  const std::string many = "for i in 1 2 3; do echo step $i; done; exit 3";
  EXPECT_THAT(Measured(Shell(many)).failure, HasSubstr("it exited with code 3 after 2 iterations; expected 1 of"));
  CommandOptions enough = Shell("for i in 1 2 3 4; do echo step $i; done; exit 3");
  enough.counting.iterations = 100;
  EXPECT_THAT(Measured(enough).failure, HasSubstr("it exited with code 3 after 3 iterations; its last lines: "));
  EXPECT_THAT(Measured(Shell("for i in 1 2 3 4 5; do echo 0 it/s; done")).failure,
              HasSubstr("it exited with code 0 after 5 iterations, whose rate is 0; expected a rate above 0"));
}

// A terminal ends a line with two characters, and either of them ends a progress bar.
TEST(MeasuredCommand, CountsEachLineOnce) {
  CommandOptions options = Shell("for i in 1 2 3 4 5 6; do echo batch; done");
  options.counting.pattern = ".*";
  options.counting.iterations = 100;

  EXPECT_EQ(Measured(options).rate->iterations, 5U);
}

TEST(MeasuredCommand, NamesAProgramThatCannotBeStarted) {
  CommandOptions options = Shell("");
  options.command = {"/no/such/program"};

  const Status status = MeasureCommand(options).status();

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("starting /no/such/program"));
}

TEST(MeasuredCommand, LimitsTheCores) {
  CommandOptions options = Shell("while :; do echo number $(nproc); done");
  options.budget.cores = 1;
  options.counting.pattern = "number ([0-9]+)";

  EXPECT_EQ(Measured(options).rate->throughput, 1);
}

/// A group, if this machine lets this process make it.
class GroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto group = ControlGroup::Make({.cores = 0.5, .memory_bytes = 64U << 20});
    if (!group.ok()) GTEST_SKIP() << group.status();
  }
};

TEST_F(GroupTest, LimitsMemory) {
  CommandOptions options = Shell("echo step 1; head -c 200000000 /dev/zero | tail -c 200000000 | wc -c");
  options.budget.memory_bytes = 32U << 20;

  const MeasuredCommand measured = Measured(options);

  EXPECT_FALSE(measured.rate);
  EXPECT_THAT(measured.failure, HasSubstr("32.0 MiB of memory do not suffice"));
  EXPECT_GT(measured.peak_bytes, 16U << 20);
  EXPECT_LE(measured.peak_bytes, 32U << 20);
}

TEST_F(GroupTest, TellsTheMemoryThatWasUsed) {
  CommandOptions options = Shell("for i in 1 2 3 4 5 6 7 8; do echo step $i; done");
  options.budget.memory_bytes = 1U << 30;

  EXPECT_GT(Measured(options).peak_bytes, 0U);
}

TEST_F(GroupTest, IsRemoved) {
  const TempDir directory;
  const std::string own = directory / "cgroup";
  CommandOptions options = Shell("cat /proc/self/cgroup >'" + own +
                                 "'; setsid sleep 1000 & i=0; while :; do i=$((i+1)); echo step $i; done");
  options.budget = {.cores = 0.5, .memory_bytes = 64U << 20};

  EXPECT_TRUE(Measured(options).rate);

  const std::string groups = ReadWholeFile(own);
  std::smatch name;  // Other processes have groups of other names.
  ASSERT_TRUE(std::regex_search(groups, name, std::regex("cairn-profile-[0-9a-f-]+"))) << groups;
  for (const std::string controller : {"cpu", "memory"}) {
    for (const std::string& folder : GroupFolders(controller)) {
      EXPECT_FALSE(std::filesystem::exists(folder + "/" + name.str()));
    }
  }
}

/// A machine's files, as version 1 or 2 of control groups shows them.
class GroupFilesTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] Status Make() const { return ControlGroup::Make({.memory_bytes = 1U << 20}, root_.path()).status(); }

  TempDir root_;
};

TEST_F(GroupFilesTest, SaysWhyThereIsNone) {
  EXPECT_EQ(Make().code(), StatusCode::kUnsupported);
  EXPECT_THAT(Make().message(), HasSubstr("no control group here has the controller \"memory\""));

  Write("proc/self/cgroup", "0::/\n");
  Write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("sys/fs/cgroup/cgroup.controllers", "cpu pids\n");
  EXPECT_THAT(Make().message(), HasSubstr("no control group here has the controller \"memory\""));

  Write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  EXPECT_THAT(Make().message(), HasSubstr("sys/fs/cgroup/cgroup.subtree_control"));
}

// As in a container that has a namespace of its own.
TEST_F(GroupFilesTest, SaysWhatToDoWithProcessesAtTheTopInVersion2) {
  Write("proc/self/cgroup", "0::/\n");
  Write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  Write("sys/fs/cgroup/cgroup.type", "domain\n");
  Write("sys/fs/cgroup/cgroup.procs", "1\n");
  Write("sys/fs/cgroup/cgroup.subtree_control", "");

  const Status status = Make();

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("sys/fs/cgroup holds this process"), HasSubstr("cannot divide its memory: move all of")));
  EXPECT_EQ(std::filesystem::file_size(root_ / "sys/fs/cgroup/cgroup.subtree_control"), 0U);
}

TEST_F(GroupFilesTest, StandsBesideItsOwnInVersion2) {
  Write("proc/self/cgroup", "0::/user/job\n");
  Write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("sys/fs/cgroup/user/job/cgroup.controllers", "cpu memory\n");
  Write("sys/fs/cgroup/user/cgroup.subtree_control", "cpu memory\n");

  const Status status = Make();

  // A folder of a plain filesystem has no such file.
  EXPECT_THAT(status.message(), AllOf(HasSubstr("sys/fs/cgroup/user/cairn-profile-"), HasSubstr("cgroup.procs")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_ / "sys/fs/cgroup/user"), {}), 2);
}

}  // namespace
}  // namespace cairn
