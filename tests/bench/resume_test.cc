#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/emulation/disk_profile.h"
#include "bench/harness/resources.h"
#include "bench/strategy_suite.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using nlohmann::json;

pid_t Start(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::execv(pointers[0], pointers.data());
  ::_exit(127);
}

int ExitCode(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::vector<std::string> Arguments(const std::string& strategy, const TempDir& directory, const TempDir& memory,
                                   const std::string& journal) {
  return {BENCH_TRAINING,
          "--strategy",
          strategy,
          "--dir",
          directory.path(),
          "--memory",
          memory.path(),
          "--resume",
          "--journal",
          journal,
          "--tensors",
          "5",
          "--state-bytes",
          "16777216",
          "--iterations",
          "12",
          "--every",
          "2",
          "--csv",
          directory / "runs.csv",
          "--in-flight",
          "2",
          "--network",
          "loopback",
          "--pcie-bytes-per-second",
          "1e9",
          "--iteration-seconds",
          "0.05"};
}

TEST_P(ResumeTest, ResumesFromTheDurableStepAfterAKill) {
  const TempDir directory;
  const TempDir memory{"/dev/shm"};
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);

  const pid_t killed = Start(Arguments(GetParam(), directory, memory, pipe));
  std::ifstream events(pipe);
  std::uint64_t durable = 0;
  for (std::string line; durable < 4 && std::getline(events, line);) {
    const json event = json::parse(line);
    if (event["event"] == "durable") durable = event["step"];
  }
  ::kill(killed, SIGKILL);
  EXPECT_EQ(ExitCode(killed), -SIGKILL);
  const int code = ExitCode(Start(Arguments(GetParam(), directory, memory, directory / "journal")));

  EXPECT_EQ(code, 0);
  ASSERT_GE(durable, 4U);  // More, if step 6 overtook step 4 and took its place.
  std::vector<std::string> kinds;
  std::vector<std::uint64_t> iterations;
  std::uint64_t begun = 0;
  std::ifstream journal(directory / "journal");
  for (std::string line; std::getline(journal, line);) {
    const json event = json::parse(line);
    if (event["event"] == "begin") begun = event["step"];
    if (event["event"] == "iteration") iterations.push_back(event["step"]);
  }
  EXPECT_GE(begun, durable);
  ASSERT_EQ(iterations.size(), 12 - begun);
  EXPECT_EQ(iterations.front(), begun + 1);
  EXPECT_EQ(iterations.back(), 12U);
}

INSTANTIATE_TEST_SUITE_P(CairnMemory, ResumeTest, testing::Values("cairn-memory"), [](const auto&) { return "Kept"; });
INSTANTIATE_TEST_SUITE_P(Writing, ResumeTest, testing::Values("sync", "checkfreq", "gpm", "pccheck", "cairn"),
                         [](const auto& strategy) { return strategy.param; });

TEST(DiskLimitTest, LimitsWritesAndRestoresTheLimit) {
  const TempDir directory;
  const auto group = [] {
    std::ifstream file("/proc/self/cgroup");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string before = group();
  Result<std::unique_ptr<DiskLimit>> limit = DiskLimit::Make(directory.path(), 100'000'000);
  if (!limit.ok()) GTEST_SKIP() << limit.status();

  const std::string within = group();
  limit->reset();

  EXPECT_THAT(within, testing::HasSubstr("/cairn-bench-" + std::to_string(::getpid())));
  EXPECT_EQ(group(), before);
}

}  // namespace
}  // namespace cairn::bench
