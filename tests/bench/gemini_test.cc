#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "bench/emulation/network.h"
#include "bench/harness/restore_check.h"
#include "bench/strategy_suite.h"
#include "bench/workplace.h"
#include "support/forked.h"

namespace cairn::bench {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Gemini, StrategyTest, testing::Values("gemini"), [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Gemini, ResumeTest, testing::Values("gemini"), [](const auto& test) { return test.param; });

constexpr std::uint64_t kRate = 10'000'000;

bool NetworkCanBeMade() { return TwoNodes::Make(kRate).ok(); }

// The process that holds the lock on the directory's notice file; -1 if there is none.
pid_t PeerOf(const std::string& directory) {
  const UniqueFd notice(::open((directory + "/gemini-peer").c_str(), O_RDWR | O_CLOEXEC));
  struct flock holder {};
  holder.l_type = F_WRLCK;
  holder.l_whence = SEEK_SET;
  if (::fcntl(notice.get(), F_GETLK, &holder) != 0 || holder.l_type == F_UNLCK) return -1;
  return holder.l_pid;
}

// A descriptor that becomes readable when the process ends.
UniqueFd Watch(pid_t process) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))); }

bool Ends(const UniqueFd& process) {
  pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 60'000) == 1;
}

// Bytes received in the process's network namespace.
std::uint64_t Received(pid_t process, const std::string& interface) {
  std::ifstream file("/proc/" + std::to_string(process) + "/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t name = line.find(interface + ":");
    if (name != std::string::npos) return std::stoull(line.substr(name + interface.size() + 1));
  }
  return 0;
}

TEST(GeminiTest, AKilledSaveLeavesThePreviousOneInThePeersMemory) {
  if (!NetworkCanBeMade()) GTEST_SKIP() << TwoNodes::Make(kRate).status();
  const TempDir directory;
  Forked child([&directory](const Say& say) {
    SmallWorkplace at(directory.path());
    (*at).network_bytes_per_second = kRate;
    auto strategy = at.Open("gemini");
    if (strategy == nullptr) return 1;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      if (!TrainAndSave(*strategy, at.state(), step).ok() || !strategy->Drain().ok()) return 2;
    }
    const pid_t peer = PeerOf(directory.path());
    const std::uint64_t before = Received(peer, "node1");
    if (!TrainAndSave(*strategy, at.state(), 4).ok()) return 3;
    while (Received(peer, "node1") < before + SmallWorkplace::kBytes / 8) std::this_thread::yield();
    say("in mid-save");
    ::pause();
    return 4;
  });
  ASSERT_EQ(child.NextLine(Deadline::In(std::chrono::seconds(60))), "in mid-save");

  child.Kill();
  const Forked::End end = child.Wait(Deadline::In(std::chrono::seconds(60)));

  EXPECT_EQ(end.how, Forked::How::kKilled);
  SmallWorkplace at(directory.path());
  EXPECT_EQ(CheckRestored(*FindStrategy("gemini"), *at, 3), Status::Ok());
}

TEST(GeminiTest, IsLimitedByTheNetworksRate) {
  if (!NetworkCanBeMade()) GTEST_SKIP() << TwoNodes::Make(kRate).status();
  const TempDir directory;
  SmallWorkplace at(directory.path());
  (*at).network_bytes_per_second = kRate;
  auto strategy = at.Open("gemini");
  ASSERT_NE(strategy, nullptr);
  const std::uint64_t before = Received(PeerOf(directory.path()), "node1");
  const auto begin = Deadline::Clock::now();

  ASSERT_TRUE(TrainAndSave(*strategy, at.state(), 1).ok());
  ASSERT_TRUE(strategy->BeforeUpdate().ok());
  const std::chrono::duration<double> stall = Deadline::Clock::now() - begin;
  ASSERT_TRUE(strategy->Drain().ok());

  const std::chrono::duration<double> took = Deadline::Clock::now() - begin;
  const std::uint64_t bucket = 4U << 20;  // The burst that may pass at once, at first.
  EXPECT_GE(took.count(), static_cast<double>(SmallWorkplace::kBytes - bucket) / kRate);
  EXPECT_GE(Received(PeerOf(directory.path()), "node1"), before + SmallWorkplace::kBytes);
  EXPECT_LT(stall.count(), took.count() / 2);  // The update waits only for the copy.
}

TEST(GeminiTest, ThePeerEndsWithTheDirectory) {
  auto directory = std::make_unique<TempDir>();
  SmallWorkplace at(directory->path());
  auto strategy = at.Open("gemini");
  ASSERT_NE(strategy, nullptr);
  const UniqueFd peer = Watch(PeerOf(directory->path()));

  strategy.reset();
  directory.reset();

  EXPECT_TRUE(Ends(peer));
}

TEST(GeminiTest, AKilledPeerIsReplacedByAnEmptyOne) {
  const TempDir directory;
  SmallWorkplace at(directory.path());
  auto strategy = at.Open("gemini");
  ASSERT_NE(strategy, nullptr);
  ASSERT_TRUE(TrainAndSave(*strategy, at.state(), 1).ok());
  ASSERT_TRUE(strategy->Drain().ok());
  const pid_t killed = PeerOf(directory.path());
  const UniqueFd peer = Watch(killed);

  ASSERT_EQ(::kill(killed, SIGKILL), 0);
  ASSERT_TRUE(Ends(peer));
  static_cast<void>(TrainAndSave(*strategy, at.state(), 2));
  const Status lost = strategy->Drain();
  strategy = at.Open("gemini");

  EXPECT_EQ(lost.code(), StatusCode::kIoError);
  ASSERT_NE(strategy, nullptr);
  EXPECT_EQ(strategy->Restore().status().code(), StatusCode::kNotFound);
}

TEST(GeminiTest, RefusesAPeerForAnotherState) {
  const TempDir directory;
  SmallWorkplace at(directory.path());
  auto strategy = at.Open("gemini");
  ASSERT_NE(strategy, nullptr);
  strategy.reset();
  const auto smaller = *TrainingState::Make((*at).gpu, 1U << 20, 1);
  const Workplace other{.directory = directory.path(), .state = *smaller, .gpu = (*at).gpu};

  const Status refused = FindStrategy("gemini")->open(other).status();

  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("expected a peer for 1048576 bytes, found one for 8388608"));
}

TEST(GeminiTest, SkipsTheNetworkWithTheReasonWithoutPrivileges) {
  const TempDir directory;
  const std::string log = directory / "log";
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0);
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(file, 2);
    ::execl(BENCH_TRAINING, BENCH_TRAINING, "--strategy", "gemini", "--state-bytes", "1048576", "--tensors", "1",
            "--iteration-seconds", "0.05", "--dir", directory.path().c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);

  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 77);
  std::ostringstream said;
  said << std::ifstream(log).rdbuf();
  EXPECT_THAT(said.str(), HasSubstr("skipped: Unsupported: making a network namespace (needs root)"));
  EXPECT_THAT(said.str(), HasSubstr("--network loopback"));
}

}  // namespace
}  // namespace cairn::bench
