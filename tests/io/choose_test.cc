#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>  // NOLINT(modernize-deprecated-headers): offsetof for the filter
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "io/io_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// As container runtimes do: from now on the call fails with EPERM in this process and its children.
bool Forbid(unsigned call) {
  std::array<sock_filter, 4> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `say` in a child for which the call is forbidden. Returns its result.
template <typename Say>
std::string SayWithout(unsigned call, Say say) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string said = Forbid(call) ? say() : "no seccomp";
    const bool written = ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  std::array<char, 512> some{};
  for (ssize_t n = 0; (n = ::read(ends[0], some.data(), some.size())) > 0;) said.append(some.data(), n);
  ::close(ends[0]);
  int outcome = 0;
  ::waitpid(child, &outcome, 0);
  return outcome == 0 ? said : "child ended with " + std::to_string(outcome);
}

std::string Choose(IoQueueKind kind) {
  const auto choice = ChooseIoQueue(kind, 8);
  return choice.ok() ? choice->name + " because " + choice->reason : choice.status().ToString();
}

TEST(ChooseIoQueue, UsesThreadsIfRequested) {
  const auto choice = ChooseIoQueue(IoQueueKind::kThreads, 8);

  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->name, "threads");
  EXPECT_EQ(choice->reason, "requested by the options");
  const auto queue = choice->factory();
  ASSERT_TRUE(queue.ok()) << queue.status();
  EXPECT_EQ((*queue)->name(), "threads");
}

TEST(ChooseIoQueue, PrefersIoUringAndReportsWhichOperationsItRuns) {
  const auto choice = ChooseIoQueue(IoQueueKind::kAuto, 8);
  ASSERT_TRUE(choice.ok()) << choice.status();
  if (choice->name != "io_uring") GTEST_SKIP() << choice->reason;

  const auto queue = choice->factory();

  EXPECT_THAT(choice->reason, HasSubstr("io_uring runs all operations"));
  ASSERT_TRUE(queue.ok()) << queue.status();
  EXPECT_EQ((*queue)->name(), "io_uring");
}

TEST(ChooseIoQueue, RefusesADepthOfZero) {
  const auto choice = ChooseIoQueue(IoQueueKind::kAuto, 0);

  EXPECT_EQ(choice.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(choice.status().message(), "I/O queue depth: expected 1 to 4096, found 0");
}

TEST(ChooseIoQueue, FallsBackToThreadsUnderSeccomp) {
  const TempDir dir;

  const std::string said = SayWithout(__NR_io_uring_setup, [&dir] {
    const auto choice = ChooseIoQueue(IoQueueKind::kAuto, 8);
    if (!choice.ok()) return choice.status().ToString();
    const auto queue = choice->factory();
    if (!queue.ok()) return queue.status().ToString();
    const auto made = RunBlocking(**queue, {.op = IoOp::kMkdir, .path = dir / "made", .mode = 0755});
    return choice->name + " because " + choice->reason + "; " + made.status().ToString();
  });

  EXPECT_THAT(
      said,
      AllOf(HasSubstr("threads because io_uring is unavailable: io_uring_setup: Operation not permitted (errno 1)"),
            HasSubstr("seccomp"), HasSubstr("; Ok")));
}

TEST(ChooseIoQueue, RequiredIoUringFailsUnderSeccompWithTheCause) {
  const std::string said = SayWithout(__NR_io_uring_setup, [] { return Choose(IoQueueKind::kUring); });

  EXPECT_THAT(said, AllOf(HasSubstr("Unsupported: the options require io_uring, which is unavailable: io_uring_setup"),
                          HasSubstr("Operation not permitted")));
}

TEST(ChooseIoQueue, FallsBackIfARingCannotBeEntered) {
  const std::string said = SayWithout(__NR_io_uring_enter, [] { return Choose(IoQueueKind::kAuto); });

  EXPECT_THAT(said, HasSubstr("threads because io_uring is unavailable: io_uring_enter: Operation not permitted"));
}

TEST(DescribeRequest, NamesOperationFileAndRange) {
  const IoRequest write{.op = IoOp::kWrite, .fd = 5, .length = 10, .offset = 4096};
  const IoRequest named{.op = IoOp::kWrite, .fd = 5, .length = 10, .offset = 4096, .name = "shard"};
  const IoRequest rename{.op = IoOp::kRename, .path = "a", .path2 = "b"};
  const IoRequest exchange{.op = IoOp::kRename, .path = "a", .path2 = "b", .rename = RenameMode::kExchange};

  EXPECT_EQ(Describe(named), "write of 10 bytes at 4096 of shard");
  EXPECT_EQ(Describe(write), "write of 10 bytes at 4096 of descriptor 5");
  EXPECT_EQ(Describe(rename), "rename of a to b");
  EXPECT_EQ(Describe(exchange), "exchange of a and b");
  EXPECT_EQ(Describe({.op = IoOp::kLink, .fd = 5, .path2 = "b", .name = "a"}), "link of a as b");
  EXPECT_EQ(Describe({.op = IoOp::kFsync, .fd = 5, .name = "shard"}), "fsync of shard");
  EXPECT_EQ(Describe({.op = IoOp::kFtruncate, .length = 7, .name = "shard"}), "ftruncate of shard to 7 bytes");
  EXPECT_EQ(Describe({.op = IoOp::kOpen, .path = "a"}), "open of a");
  EXPECT_EQ(FailureOf({.op = IoOp::kFsync, .fd = 5, .name = "shard"}, EIO).message(),
            "fsync of shard: Input/output error (errno 5)");
}

}  // namespace
}  // namespace cairn
