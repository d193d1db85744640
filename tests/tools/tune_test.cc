#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <spawn.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Flags = std::map<std::string, std::string>;

/// The real commands that examine the machine, with an empty root.
class TuneCommandTest : public ::testing::Test {
 protected:
  [[nodiscard]] Ran Tune(const Flags& changed, const std::vector<std::string>& more = {}) const {
    Flags flags{{"--state-bytes", "64MiB"}, {"--iteration-time", "100ms"}, {"--slowdown", "1%"},
                {"--mtbf", "2h"},           {"--probe-time", "100ms"},     {"--memory", "256MiB"}};
    for (const auto& [flag, value] : changed) flags[flag] = value;
    std::vector<std::string> arguments{"tune", root_.path()};
    for (const auto& [flag, value] : flags) arguments.push_back(flag + "=" + value);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(CAIRN_CLI, arguments);
  }
  void ExpectRefused(const Flags& changed, const std::string& why) const {
    const Ran ran = Tune(changed);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_THAT(ran.err, HasSubstr(why));
    EXPECT_THAT(ran.out, IsEmpty());
  }

  TempDir root_;
};

TEST_F(TuneCommandTest, PrintsChoiceReasonAndExpectation) {
  const Ran ran = Tune({{"--restart-time", "30s"}}, {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  const json out = ran.parsed();
  EXPECT_EQ(out["input"]["state_bytes"], 64U << 20);
  EXPECT_EQ(out["input"]["iteration_seconds"], 0.1);
  EXPECT_EQ(out["input"]["mtbf_seconds"], 7200);
  EXPECT_GE(out["choice"]["interval"], 1);
  EXPECT_LE(out["choice"]["host_memory_bytes"], 256U << 20);
  EXPECT_FALSE(out["choice"]["why"].get<std::string>().empty());
  EXPECT_LE(out["expected"]["slowdown"], 0.01);
  EXPECT_GT(out["expected"]["goodput"], 0.9);
  EXPECT_GT(out["expected"]["lost_seconds"], 30);
  EXPECT_GT(out["measured"]["copy_bytes_per_second"], 0);
  EXPECT_TRUE(std::filesystem::is_empty(root_.path()));
}

TEST_F(TuneCommandTest, PrintsThemAsText) {
  const Ran ran = Tune({{"--write-rate", "10MB"}, {"--memory", "40MiB"}});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("interval"), HasSubstr("max_in_flight"), HasSubstr("bound by"), HasSubstr("goodput")));
  EXPECT_THAT(
      ran.out,
      AllOf(ContainsRegex("every save +from [.0-9]+ s an iteration on.*64.0 MiB at 10.0 MB/s of the disk"),
            ContainsRegex("yours takes 100 ms, [.0-9]+ times too short"),
            ContainsRegex(
                "pool +holds 40.0 MiB of 64.0 MiB; the disk takes the rest in 2.5[0-9]* s: each fence waits 2.4"),
            ContainsRegex("endurance +0.0[0-9]+ TB a day")));
}

TEST_F(TuneCommandTest, PrintsLongTimesInHoursAndTheSlowestStage) {
  const Ran ran =
      Tune({{"--mtbf", "24h"}, {"--iteration-time", "300ms"}, {"--update-time", "250ms"}, {"--copy-rate", "20MB"}});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("64.0 MiB at 20.0 MB/s of the copy, the commit"));
  EXPECT_THAT(ran.out, AllOf(HasSubstr("with failures every 24 h, "), Not(HasSubstr("e+0"))));
}

TEST_F(TuneCommandTest, LimitsBelowTheMeasuredRatesApply) {
  const Ran ran = Tune({{"--write-rate", "10MB"}, {"--copy-rate", "20MB"}, {"--training-cores", "0"}}, {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  const json out = ran.parsed();
  EXPECT_EQ(out["measured"]["copy_bytes_per_second"], 20e6);
  // What a commit takes here is measured, and a busy disk may take long.
  const double write = out["expected"]["write_seconds"];
  EXPECT_NEAR(write - out["measured"]["commit_seconds"].get<double>(), 6.9, 0.3)
      << "64 MiB at 10 MB/s, and the first chunk's copy at 20 MB/s";
  EXPECT_NEAR(out["expected"]["every_iteration_seconds"], 1.1 * write, 0.1);
  EXPECT_GT(out["expected"]["bytes_per_day"], 0);
}

TEST_F(TuneCommandTest, RejectsAbsurdInputBeforeMeasuring) {
  ExpectRefused({{"--state-bytes", "0"}}, "--state-bytes: expected 1 B to 1000 PB, found 0 B");
  ExpectRefused({{"--state-bytes", "much"}}, "--state-bytes: expected a size such as 4294967296, 4GiB or 4GB");
  ExpectRefused({{"--state-bytes", "-4GB"}}, "found \"-4GB\"");
  ExpectRefused({{"--state-bytes", "1e30"}}, "--state-bytes: expected a size");
  ExpectRefused({{"--state-bytes", "1000000TB"}}, "--state-bytes: expected at most");
  ExpectRefused({{"--iteration-time", "0"}}, "--iteration-time: expected 1 us to 10 d, found 0 s");
  ExpectRefused({{"--iteration-time", "nan"}}, "--iteration-time: expected");
  ExpectRefused({{"--iteration-time", "5 parsecs"}}, "--iteration-time: expected a time such as");
  ExpectRefused({{"--slowdown", "1.5"}}, "--slowdown: expected");
  ExpectRefused({{"--slowdown", "200%"}}, "expected above 0% and at most 100% (1% is 0.01), found 200%");
  ExpectRefused({{"--slowdown", "-1%"}}, "--slowdown: expected");
  ExpectRefused({{"--mtbf", "inf"}}, "--mtbf: expected");
  ExpectRefused({{"--mtbf", "50ms"}}, "--mtbf: expected more than an iteration's 100 ms, found 50 ms");
  ExpectRefused({{"--restart-time", "-1s"}}, "--restart-time: expected 0 s to 20000 d, found -1 s");
  ExpectRefused({{"--update-time", "1s"}}, "--update-time: expected 0 to less than an iteration's 100 ms");
  ExpectRefused({{"--memory", "1KiB"}}, "--memory: expected at least");
  ExpectRefused({{"--copy-rate", "0"}}, "--copy-rate: expected at least 1 byte per second");
  ExpectRefused({{"--probe-time", "1h"}}, "--probe-time: expected 100ms to 5m, found 1h");
  ExpectRefused({{"--device", "abacus"}}, "--device");
  EXPECT_TRUE(std::filesystem::is_empty(root_.path()));
}

TEST_F(TuneCommandTest, NamesAMissingRoot) {
  const std::string missing = root_ / "none";
  for (const std::string command : {"tune", "doctor"}) {
    std::vector<std::string> arguments{command, missing};
    if (command == "tune") {
      for (const std::string flag : {"--state-bytes=1GB", "--iteration-time=1", "--slowdown=1%", "--mtbf=1h"}) {
        arguments.push_back(flag);
      }
    }

    const Ran ran = RunProgram(CAIRN_CLI, arguments);

    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr(missing));
  }
}

TEST_F(TuneCommandTest, RemovesItsFilesWhenInterrupted) {
  std::string program = CAIRN_CLI;
  std::string root = root_.path();
  std::vector<std::string> words{program, "doctor", root, "--probe-time=60s"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  const auto probing = [&] {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(root_.path(), gone)) {
      if (std::filesystem::exists(entry.path() / "shard-00000.safetensors", gone)) return true;
    }
    return false;
  };
  while (!probing()) ::sched_yield();

  ::kill(child, SIGINT);

  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_TRUE(std::filesystem::is_empty(root_.path()));
}

TEST_F(TuneCommandTest, DoctorReportsEveryProperty) {
  const Ran ran = RunProgram(CAIRN_CLI, {"doctor", root_.path(), "--probe-time=100ms", "--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  std::map<std::string, json> findings;
  for (const json& finding : ran.parsed()) {
    findings[finding["name"]] = finding;
    EXPECT_FALSE(finding["found"].get<std::string>().empty()) << finding;
    EXPECT_FALSE(finding["cost"].get<std::string>().empty()) << finding;
  }
  for (const std::string name : {"kernel", "io_uring", "huge pages", "locked memory", "file size limit", "open files",
                                 "GPU", "memory", "/dev/shm", "filesystem", "free space", "O_DIRECT", "preallocation",
                                 "leases", "rename, no replace", "rename, exchange"}) {
    EXPECT_TRUE(findings.contains(name)) << name;
  }
  for (const std::string name : {"write, fresh file", "write, over existing blocks", "read", "copy of CPU tensors",
                                 "checksum", "commit", "a save of every iteration", "endurance"}) {
    EXPECT_GT(findings[name]["value"], 0) << name;
  }
  EXPECT_TRUE(std::filesystem::is_empty(root_.path()));
}

TEST_F(TuneCommandTest, DoctorPrintsACostOnlyWhereSomethingCosts) {
  const std::string limited = "ulimit -f 1000000; ulimit -l 0; exec \"$0\" doctor \"$1\" --probe-time=100ms";

  const Ran ran = RunProgram("/bin/sh", {"-c", limited, CAIRN_CLI, root_.path()});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("costs    file size limit"), HasSubstr("ulimit -f"), HasSubstr("ok       kernel"),
                    HasSubstr("costs    locked memory"), HasSubstr("ulimit -l")));
  EXPECT_THAT(ran.out, AllOf(Not(HasSubstr("oldest supported")), Not(HasSubstr("upper limit of a restore"))));
  EXPECT_THAT(ran.out, AllOf(ContainsRegex(
                                 "an iteration for a save of 1 GB, and [.0-9]+ m?s for each GB more \\([.0-9]+ .B/s of "
                                 "the [a-z]+, the commit, and a reserve"),
                             ContainsRegex("endurance +[.0-9]+ TB a day")));
}

TEST_F(TuneCommandTest, DoctorRaisesNoAlarmWithoutAGpu) {
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices")) {
    std::string vendor;
    std::ifstream(device.path() / "vendor") >> vendor;
    if (vendor == "0x10de") GTEST_SKIP() << "this machine has an NVIDIA device";
  }

  const Ran ran = RunProgram(CAIRN_CLI, {"doctor", root_.path(), "--probe-time=100ms"});

  EXPECT_THAT(ran.out, AllOf(HasSubstr("ok       GPU"), Not(HasSubstr("libcuda"))));
}

}  // namespace
}  // namespace cairn
