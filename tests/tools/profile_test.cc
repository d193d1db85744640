// cairn profile, and cairn tune with what it wrote, on real processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <spawn.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ProfileCommandTest : public ::testing::Test {
 protected:
  /// Short measurements of a command.
  [[nodiscard]] Ran Profile(const std::vector<std::string>& command, const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> arguments{
        "profile", "--out", out_, "--warm-up", "3", "--iterations", "10", "--least-time=300ms", "--least-cores=1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.emplace_back("--");
    arguments.insert(arguments.end(), command.begin(), command.end());
    return RunProgram(CAIRN_CLI, arguments);
  }
  [[nodiscard]] Ran ProfileShell(const std::string& script, const std::vector<std::string>& flags = {}) const {
    return Profile({"sh", "-c", script}, flags);
  }
  [[nodiscard]] json Written() const { return json::parse(ReadWholeFile(out_)); }

  TempDir folder_;
  const std::string out_ = folder_ / "profile.json";
};

// A busy machine slows both jobs, at any budget. But no batch of the loader's costs less than 8 ms of CPU time.
TEST_F(ProfileCommandTest, TellsALoaderFromAComputeBoundJob) {
  const std::vector<std::string> flags{"--cores=1", "--cores-only", "--check=0.1", "--json"};

  const Ran loader = Profile({CAIRN_TRAINING_JOB, "loader"}, flags);
  const Ran compute = Profile({CAIRN_TRAINING_JOB, "compute"}, flags);

  if (loader.code != 0 && loader.err.find("--check: expected whole cores") != std::string::npos) {
    GTEST_SKIP() << loader.err;
  }
  ASSERT_EQ(loader.code, 0) << loader.err;
  ASSERT_EQ(compute.code, 0) << compute.err;
  EXPECT_LT(loader.parsed()["checks"][0]["throughput"], 20);
  EXPECT_GT(compute.parsed()["checks"][0]["throughput"], 20);
  EXPECT_EQ(compute.parsed(), Written());
}

TEST_F(ProfileCommandTest, PrintsWhatTheJobNeedsAndWhatSavesMayUse) {
  const Ran ran = Profile({CAIRN_TRAINING_JOB, "compute"}, {"--cores-only", "--cores=1"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("cores"), HasSubstr("knee"), HasSubstr("worker_threads"),
                             HasSubstr("checksums run on the host: gpu_checksums"),
                             HasSubstr("memory was not profiled"), HasSubstr(out_)));
  EXPECT_THAT(Written()["memory_note"], "not asked for (--cores-only)");
  EXPECT_EQ(Written()["full"]["memory_bytes"], 0);
  EXPECT_EQ(Written()["samples"].size(), 1U);
}

TEST_F(ProfileCommandTest, ProfilesMemoryWhereItMay) {
  const std::string data = folder_ / "data";
  WriteWholeFile(data, std::string(8U << 20, 'x'));

  const Ran ran = Profile({CAIRN_TRAINING_JOB, "compute", data}, {"--cores=1", "--memory=256MiB", "--least-memory=1MiB",
                                                                  "--data=" + data, "--check=1:128MiB"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  if (Written()["full"]["memory_bytes"] == 0) {
    EXPECT_THAT(ran.err, HasSubstr("memory is not profiled, only cores: "));
    GTEST_SKIP() << Written()["memory_note"];
  }
  EXPECT_EQ(Written()["full"]["memory_bytes"], 256U << 20);
  EXPECT_GT(Written()["full"]["peak_bytes"], 0);
  EXPECT_EQ(Written()["checks"][0]["memory_bytes"], 128U << 20);
  EXPECT_GT(Written()["checks"][0]["predicted"], 0);
  EXPECT_GT(Written()["advice"]["host_memory_bytes"], 128U << 20);
}

TEST_F(ProfileCommandTest, SaysWhyMemoryIsNotProfiled) {
  if (::geteuid() != 0 || RunShell("setpriv --reuid=65534 --regid=65534 --clear-groups true").code != 0) {
    GTEST_SKIP() << "cannot become another user";
  }
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);

  const Ran ran = RunShell("setpriv --reuid=65534 --regid=65534 --clear-groups '" CAIRN_CLI "' profile --out='" + out_ +
                           "' --warm-up 1 --iterations 3 --least-time 0 --cores 1 -- sh -c "
                           "'i=0; while :; do i=$((i+1)); echo step $i; done'");

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("no fractions of a core: "), HasSubstr("memory is not profiled, only cores: "),
                             HasSubstr("ermission denied")));
  EXPECT_THAT(ran.out, HasSubstr("memory was not profiled"));
}

TEST_F(ProfileCommandTest, RefusesFractionsBeforeItMeasures) {
  if (::geteuid() != 0 || RunShell("setpriv --reuid=65534 --regid=65534 --clear-groups true").code != 0) {
    GTEST_SKIP() << "cannot become another user";
  }
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  const std::string ran_file = folder_ / "ran";

  const Ran ran = RunShell("setpriv --reuid=65534 --regid=65534 --clear-groups '" CAIRN_CLI "' profile --out='" + out_ +
                           "' --cores-only --cores 1 --check 0.5 -- sh -c 'touch " + ran_file + "; echo step 1'");

  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--check: expected whole cores, found 0.5"));
  EXPECT_FALSE(std::filesystem::exists(ran_file));
}

TEST_F(ProfileCommandTest, PrintsWhatAFullDiskDoesNotTake) {
  const std::string full = folder_ / "full";
  std::filesystem::create_directory(full);
  const std::string fill = "mount -t tmpfs -o size=4k none '" + full + "' && head -c 4096 /dev/zero >'" + full + "/x'";
  if (RunShell("unshare -m sh -c \"" + fill + "\"").code != 0) GTEST_SKIP() << "cannot mount a small disk";

  const Ran ran = RunShell("unshare -m sh -c \"" + fill + " && exec '" CAIRN_CLI "' profile --out='" + full +
                           "/p.json' --cores-only --cores=1 --least-cores=1 --warm-up 1 --iterations 3 --least-time 0 "
                           "--pattern=step -- yes step\"");

  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("p.json.part: No space left on device"));
  EXPECT_THAT(ran.out, AllOf(HasSubstr("knee"), HasSubstr("nowhere")));
}

constexpr const char* kEndlessSteps = "i=0; while :; do i=$((i+1)); echo step $i; done";

// As in its run-cnns.sh. Here torchrun only tells what it was started with.
TEST_F(ProfileCommandTest, StartsTheJobAndHandsOnAsSynergyDoes) {
  const std::string words = folder_ / "words";
  WriteWholeFile(folder_ / "torchrun", "#!/bin/sh\necho \"$@\" >>'" + words + "'\n" + kEndlessSteps + "\n");
  std::filesystem::permissions(folder_ / "torchrun", std::filesystem::perms::owner_all);

  const Ran ran = RunShell("PATH='" + folder_.path() + "':\"$PATH\" '" CAIRN_CLI "' profile --out='" + out_ +
                           "' --job-name alexnet --cpu 1 --least-cores 1 --cores-only --warm-up 3 --max-iterations 10 "
                           "--num-gpus 2 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port 29501 -b 512 "
                           "--workers 3 --data '" +
                           folder_.path() + "' -- python train.py -a alexnet");

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Written()["job"], "alexnet");
  EXPECT_EQ(
      ReadWholeFile(words),
      "--nnodes=1 --node-rank=0 --master-addr=127.0.0.1 --master-port=29501 --nproc-per-node=2 train.py -a alexnet "
      "--workers=1 -b 512 --max_iterations=14 --data=" +
          folder_.path() + "\n");
}

TEST_F(ProfileCommandTest, ProfilesAListOfJobsIntoOneTable) {
  const std::string list = folder_ / "jobs.txt";
  const std::string options = "--cores 1 --least-cores 1 --cores-only --warm-up 1 --iterations 3 --least-time 0 ";
  WriteWholeFile(list, "# Two jobs, and one that fails.\n\n" + options + "--job-name one -- sh -c '" + kEndlessSteps +
                           "'\n" + options + "--job-name two -- sh -c '" + kEndlessSteps + "'\n" + options +
                           "-- false\n");

  const Ran ran = RunProgram(CAIRN_CLI, {"profile", "--all", list, "--out", out_});

  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("JOB "), HasSubstr("one "), HasSubstr("two ")));
  EXPECT_THAT(ran.err, HasSubstr("jobs.txt:5: exit status 2"));
  EXPECT_EQ(Written()["jobs"].size(), 2U);
  EXPECT_EQ(Written()["jobs"][1]["job"], "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2);
}

TEST_F(ProfileCommandTest, SaysHowToStartAContainerByHand) {
  EXPECT_THAT(ProfileShell("true", {"--docker-img=nvcr.io/pytorch:21.11", "--container-mnt=/datadrive/"}).err,
              HasSubstr("by hand: docker run --rm -it --gpus all --ipc=host --network=host --privileged --mount "
                        "type=bind,src=/,target=/datadrive/ nvcr.io/pytorch:21.11 cairn profile ..."));
}

TEST_F(ProfileCommandTest, NamesAnUnknownOptionAndNotTheWordAfterIt) {
  EXPECT_THAT(ProfileShell("true", {"--str-bw", "5"}).err, HasSubstr("unknown option \"--str-bw\""));
  EXPECT_THAT(ProfileShell("true", {"-z", "5"}).err, HasSubstr("unknown option \"-z\""));
  EXPECT_THAT(RunProgram(CAIRN_CLI, {"profile", "--num-gpu", "1", "train.py"}).err,
              HasSubstr("unknown option \"--num-gpu\"; did you mean --num-gpus?"));
  EXPECT_THAT(ProfileShell("true", {"--node_rank", "1"}).err, HasSubstr("expected --num-gpus or --nnodes beside them"));
}

TEST_F(ProfileCommandTest, CountsWhatAPatternMatches) {
  const std::string script = "while :; do echo batch done; done";

  EXPECT_EQ(ProfileShell(script, {"--cores-only", "--cores=1", "--pattern=batch done"}).code, 0);
  EXPECT_EQ(
      ProfileShell("while :; do echo at 12.5 a second; done", {"--cores-only", "--cores=1", "--pattern=at ([0-9.]+)"})
          .code,
      0);
  EXPECT_EQ(Written()["samples"][0]["throughput"], 12.5);
}

TEST_F(ProfileCommandTest, RunsOnceMoreWhatALesserBudgetOutdid) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two cores";
  const std::string first = folder_ / "first";
  const std::string job =
      "[ -e " + first + " ] && rate=50 || rate=30; : >" + first + "; while :; do echo at $rate; done";

  const Ran ran = ProfileShell(job, {"--cores-only", "--cores=2", "--pattern=at ([0-9]+)"});

  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("2 cores once more, because less gave more:\n2 cores: 50 iterations/s\n"));
  EXPECT_EQ(Written()["samples"].size(), 2U);
  EXPECT_EQ(Written()["knee"]["cores"], 1);
}

TEST_F(ProfileCommandTest, SaysWhatIsWrongWithACommand) {
  const auto refused = [](const Ran& ran, const std::string& why) {
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_THAT(ran.err, HasSubstr(why));
    EXPECT_THAT(ran.out, IsEmpty());
  };
  const std::vector<std::string> plain{"--cores-only", "--cores=1"};
  refused(Profile({"/no/such/program"}, plain), "starting /no/such/program");
  refused(ProfileShell("echo no data; exit 3", plain), "it exited with code 3 after no line that the pattern matches");
  refused(ProfileShell("echo no data; exit 3", plain), "its last lines: no data");
  refused(ProfileShell("exit 0", plain), "it printed nothing");
  refused(ProfileShell("sleep 100", {"--cores-only", "--cores=1", "--timeout=200ms"}), "200 ms passed after no line");
  refused(ProfileShell("", {"--pattern=("}), "--pattern: expected a regular expression");
  refused(ProfileShell("", {"--cores=100000"}), "--cores: expected 0.05 to");
  refused(ProfileShell("", {"--timeout=soon"}), "--timeout: expected a time such as");
  refused(ProfileShell("", {"--check=half"}), "--check: expected");
  refused(ProfileShell("", {"--memory=0"}), "expected at least 1 byte");
  refused(ProfileShell("", {"--means=line"}), "--means: expected --pattern");
  refused(RunProgram(CAIRN_CLI, {"profile"}), "expected the command behind --");
  refused(RunProgram(CAIRN_CLI, {"profile", "--out=/no/such/folder/profile.json", "--cores-only", "--cores=1",
                                 "--least-time=0", "--", "sh", "-c", "while :; do echo step $((i=i+1)); done"}),
          "writing /no/such/folder/profile.json.part");
  const std::string ran_file = folder_ / "ran";
  refused(RunProgram(CAIRN_CLI, {"profile", "--out=" + std::string(folder_.path()), "--cores-only", "--", "sh", "-c",
                                 "touch " + ran_file}),
          "Is a directory");
  EXPECT_FALSE(std::filesystem::exists(ran_file));
  EXPECT_FALSE(std::filesystem::exists(out_));
}

// Its options must not be taken for those of cairn profile.
TEST_F(ProfileCommandTest, RefusesACommandWithoutDashes) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"sh", "--iterations", "5"}, {"sh", "--steps=5"}, {"sh"}}) {
    std::vector<std::string> words{"profile", "--out", out_, "--cores=1"};
    words.insert(words.end(), command.begin(), command.end());
    const Ran ran = RunProgram(CAIRN_CLI, words);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err,
                HasSubstr("profile: expected the command behind --, such as: cairn profile -- python train.py"));
  }
  const Ran help = RunProgram(CAIRN_CLI, {"profile", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out,
              AllOf(HasSubstr("cairn profile --out profile.json -- python train.py"), HasSubstr("again and again"),
                    HasSubstr("SIGKILL"), HasSubstr("folder for\ncheckpoints that you do not need")));
}

// The kernel takes no such quota: what was measured before would be lost.
TEST_F(ProfileCommandTest, RefusesAQuotaThatIsTooSmallBeforeItMeasures) {
  const std::string ran_file = folder_ / "ran";

  const Ran ran = ProfileShell("touch " + ran_file + "; while :; do echo step $((i=i+1)); done",
                               {"--cores-only", "--cores=1", "--check=0.02"});

  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--check: expected 0.05 to 1 cores, found 0.02"));
  EXPECT_FALSE(std::filesystem::exists(ran_file));
}

TEST_F(ProfileCommandTest, GoesOnAfterAHangupThatNohupIgnores) {
  const std::string pid_file = folder_ / "pid";
  const std::string go = folder_ / "go";
  const std::string job = "echo $PPID >'" + pid_file + ".part'; mv '" + pid_file + ".part' '" + pid_file +
                          "'; while [ ! -e '" + go + "' ]; do :; done; while :; do echo step $((i=i+1)); done";
  WriteWholeFile(folder_ / "job", job);
  const std::string profile = "trap '' HUP; exec '" CAIRN_CLI
                              "' profile --cores-only --cores=1 --least-cores=1 --out='" +
                              out_ + "' --warm-up=1 --iterations=3 --least-time=0 -- sh '" + (folder_ / "job") + "'";
  std::vector<std::string> words{"sh", "-c", profile};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  ASSERT_EQ(::posix_spawnp(&child, "sh", nullptr, nullptr, arguments.data(), environ), 0);
  while (!std::filesystem::exists(pid_file)) ::sched_yield();
  ASSERT_EQ(std::stoi(ReadWholeFile(pid_file)), child);

  ::kill(child, SIGHUP);
  WriteWholeFile(go, "");

  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(std::filesystem::exists(out_));
}

TEST_F(ProfileCommandTest, EndsTheCommandWhenInterrupted) {
  const std::string pid_file = folder_ / "pid";
  const std::string script =
      "echo $$ >'" + pid_file + ".part'; mv '" + pid_file + ".part' '" + pid_file + "'; exec sleep 1000";
  std::vector<std::string> words{CAIRN_CLI, "profile", "--cores-only", "--out", out_, "--", "sh", "-c", script};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, CAIRN_CLI, nullptr, nullptr, arguments.data(), environ), 0);
  while (!std::filesystem::exists(pid_file)) ::sched_yield();
  const int job = std::stoi(ReadWholeFile(pid_file));

  ::kill(child, SIGINT);

  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_NE(::kill(job, 0), 0);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

/// cairn tune, with a profile as `cairn profile` writes it.
class TuneByProfileTest : public ProfileCommandTest {
 protected:
  [[nodiscard]] Ran Tune(const json& profile, const std::vector<std::string>& flags = {}) const {
    WriteWholeFile(out_, profile.dump());
    std::vector<std::string> arguments{"tune",          folder_.path(), "--state-bytes=64MiB", "--iteration-time=100ms",
                                       "--slowdown=1%", "--mtbf=2h",    "--probe-time=100ms",  "--profile=" + out_};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunProgram(CAIRN_CLI, arguments);
  }
  /// Of a job that needs half of eight cores.
  const json profile_ = {{"version", 1},
                         {"command", {"train"}},
                         {"full", {{"cores", 8}, {"memory_bytes", 1U << 30}, {"peak_bytes", 1U << 29}}},
                         {"memory_note", "limited by a control group"},
                         {"tolerance", 0.1},
                         {"samples",
                          {{{"cores", 8}, {"memory_bytes", 1U << 30}, {"throughput", 40}},
                           {{"cores", 4}, {"memory_bytes", 1U << 30}, {"throughput", 40}},
                           {{"cores", 2}, {"memory_bytes", 1U << 30}, {"throughput", 20}},
                           {{"cores", 8}, {"memory_bytes", 1U << 28}, {"throughput", 15}}}},
                         {"checks", json::array()}};
};

TEST_F(TuneByProfileTest, UsesWhatTheJobDoesNotNeed) {
  const Ran ran = Tune(profile_, {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.parsed()["choice"]["worker_threads"], 4);
  EXPECT_EQ(ran.parsed()["input"]["training_cores"], 0);
  EXPECT_GT(ran.parsed()["input"]["memory_bytes"], 500U << 20);
  EXPECT_LT(ran.parsed()["input"]["memory_bytes"], 600U << 20);
  EXPECT_THAT(Tune(profile_).out,
              AllOf(HasSubstr("worker_threads"), HasSubstr("the job keeps its speed with 3.6 of 8")));
}

TEST_F(TuneByProfileTest, FlagsPrecedeIt) {
  const Ran ran = Tune(profile_, {"--json", "--memory=128MiB", "--training-cores=2"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.parsed()["input"]["memory_bytes"], 128U << 20);
  EXPECT_EQ(ran.parsed()["input"]["training_cores"], 2);
}

TEST_F(TuneByProfileTest, SaysThatTheJobNeedsAllOfTheMemory) {
  json hungry = profile_;
  hungry["full"]["peak_bytes"] = 1U << 30;
  hungry["samples"][3]["memory_bytes"] = 1'073'741'823;
  hungry["samples"][3]["throughput"] = 0;

  const Ran ran = Tune(hungry);

  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err,
              HasSubstr(out_ + ": the job needs 1.0 GiB of 1.0 GiB of memory, which leaves 0 B for saves: --memory"));
  EXPECT_EQ(Tune(hungry, {"--memory=64MiB"}).code, 0);
}

TEST_F(TuneByProfileTest, ALoaderPaysForEachCoreThatSavesUse) {
  json loader = profile_;
  loader["samples"][1]["throughput"] = 20;
  loader["samples"][2]["throughput"] = 10;

  const Ran ran = Tune(loader, {"--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.parsed()["choice"]["worker_threads"], 1);
  EXPECT_NEAR(ran.parsed()["input"]["training_cores"].get<double>(), 8, 1e-6);
}

TEST_F(TuneByProfileTest, NamesTheFieldOfABrokenProfile) {
  const auto refused = [this](const std::function<void(json&)>& change, const std::string& why) {
    json profile = profile_;
    change(profile);
    const Ran ran = Tune(profile);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_THAT(ran.err, HasSubstr(out_ + ": " + why));
  };
  refused([](json& p) { p["version"] = 2; }, "version: expected 1, found 2");
  refused([](json& p) { p.erase("version"); }, "version: expected 1, found nothing");
  refused([](json& p) { p = json::array(); }, "expected an object, found []");
  refused([](json& p) { p["full"] = 8; }, "full: expected an object, found 8");
  refused([](json& p) { p["full"]["cores"] = "many"; }, "full.cores: expected a number, found \"many\"");
  refused([](json& p) { p["full"]["memory_bytes"] = -1; },
          "full.memory_bytes: expected a whole number from 0 to 18446744073709551615, found -1");
  refused([](json& p) { p["tolerance"] = 2; }, "tolerance: expected a share");
  refused([](json& p) { p["samples"] = 1; }, "samples: expected a list of samples, found 1");
  refused([](json& p) { p["samples"] = json::array(); }, "samples: expected at least the whole budget");
  refused([](json& p) { p["samples"][1].erase("cores"); }, "samples[1].cores: expected a number, found nothing");
  refused([](json& p) { p["samples"][2]["throughput"] = nullptr; },
          "samples[2].throughput: expected a number, found null");
  refused([](json& p) { p["samples"][2]["throughput"] = -1; },
          "samples[2].throughput: expected a number of at least 0");
  refused([](json& p) { p["samples"][0]["cores"] = 4; }, "samples[0]: expected the whole budget");
  refused([](json& p) { p["full"]["memory_bytes"] = p["samples"][0]["memory_bytes"] = ~std::uint64_t{0}; },
          "full.memory_bytes: expected at most 1.0 EiB, found 16.0 EiB");
  refused([](json& p) { p["full"]["peak_bytes"] = ~std::uint64_t{0}; }, "full.peak_bytes: expected at most");
  refused([](json& p) { p["full"]["cores"] = p["samples"][0]["cores"] = 1e-300; },
          "full.cores: expected a number above 0, from 1e-09 to 1e+06, found 1e-300");
  refused([](json& p) { p["samples"][1]["throughput"] = 1e308; }, "samples[1].throughput: expected a number above 0");
  refused(
      [](json& p) {
        for (int i = 0; i < 100'000; ++i) {
          p["samples"].push_back({{"cores", 4 + 1e-5 * i}, {"memory_bytes", 1U << 30}, {"throughput", 40}});
        }
      },
      "samples: expected at most 1000, found 100004");
  refused([](json& p) { p["checks"] = {1}; }, "checks[0]: expected an object, found 1");
  refused([](json& p) { p["command"] = {1}; }, "command[0]: expected a text, found 1");
  refused([](json& p) { p["memory_note"] = 1; }, "memory_note: expected a text, found 1");

  const auto refused_text = [this](const std::string& text, const std::string& why) {
    WriteWholeFile(out_, text);
    EXPECT_THAT(RunProgram(CAIRN_CLI, {"tune", folder_.path(), "--state-bytes=1MB", "--iteration-time=1s",
                                       "--slowdown=1%", "--mtbf=1h", "--profile=" + out_})
                    .err,
                HasSubstr(out_ + ": " + why));
  };
  refused_text("{", "expected JSON");
  refused_text("", "expected a profile, found an empty file");
  refused_text(std::string((16U << 20) + 1, ' '), "expected a profile of at most 16.0 MiB, found more");
  refused_text("{\"version\": " + std::string(300'000, '['), "expected at most 100 levels of lists and objects");
}

TEST_F(TuneByProfileTest, WithoutOneNothingIsAdded) {
  const Ran ran = RunProgram(CAIRN_CLI, {"tune", folder_.path(), "--state-bytes=1MB", "--iteration-time=1s",
                                         "--slowdown=1%", "--mtbf=1h", "--probe-time=100ms", "--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_FALSE(ran.parsed()["choice"].contains("worker_threads"));
  EXPECT_FALSE(ran.parsed()["input"].contains("profile"));
}

}  // namespace
}  // namespace cairn
