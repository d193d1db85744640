// Two nodes that train a pipeline: the schedule and the shapes, and runs of bench_pipeline with a node that is killed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "bench/emulation/network.h"
#include "bench/pipeline/pipeline_compute.h"
#include "bench/pipeline/stage.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr double kScale = 1.0 / 4096;  // 4 MB a node.

TEST(PipelineScheduleTest, IsOneForwardOneBackward) {
  const auto text = [](int stage, std::uint64_t micro_batches) {
    std::string tasks;
    for (const PipelineTask task : TasksOf(stage, micro_batches)) tasks += task == PipelineTask::kForward ? 'F' : 'B';
    return tasks;
  };

  EXPECT_EQ(text(0, 1), "FB");
  EXPECT_EQ(text(1, 1), "FB");
  EXPECT_EQ(text(0, 4), "FFBFBFBB");
  EXPECT_EQ(text(1, 4), "FBFBFBFB");
}

TEST(OptStageTest, HasTheParametersThatDeepspeedCounted) {
  EXPECT_EQ(BytesOf(OptStage(0, 1)), 1'392'768'000ULL * 12);
  EXPECT_EQ(BytesOf(OptStage(1, 1)), 1'387'525'120ULL * 12);
}

TEST(OptStageTest, StagesShareNoTensor) {
  std::set<std::string> names;
  std::size_t tensors = 0;
  for (const int stage : {0, 1}) {
    const std::vector<NamedBytes> parts = OptStage(stage, kScale);
    tensors += parts.size();
    for (const NamedBytes& part : parts) names.insert(part.name);
    EXPECT_EQ(BytesOf(parts) % kBlock, 0U);
  }

  EXPECT_EQ(names.size(), tensors);
}

TEST(TrainingStateTest, PartsOfOneStateDiffer) {
  const auto gpu = EmulateGpu(0);
  const std::vector<NamedBytes> tensors{{"a", 4096}};
  const auto first = *TrainingState::Make(*gpu, tensors);
  const auto second = *TrainingState::Make(*gpu, tensors, 4096);
  ASSERT_TRUE(first->Initialize().ok() && second->Initialize().ok());

  std::memcpy(second->memory().data(), first->memory().data(), 4096);

  EXPECT_TRUE(*first->Is(0));
  EXPECT_FALSE(*second->Is(0));
}

std::string Command(const std::string& strategy, const TempDir& directory, const std::string& more = "") {
  return std::string(BENCH_PIPELINE) + " --strategy " + strategy + " --dir " + directory.path() +
         " --scale 0.000244140625 --dilation 40 --every 2 --iterations 12 --micro-batches 4 --network loopback " + more;
}

// A number of the row; its place is counted from the end, as earlier cells may be quoted.
double Cell(const std::string& out, const std::string& name) {
  const auto cells = [](const std::string& line) {
    std::vector<std::string> found;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) found.push_back(cell);
    return found;
  };
  const std::vector<std::string> names = cells(out.substr(0, out.find('\n')));
  const std::vector<std::string> values = cells(out.substr(out.find('\n') + 1));
  return std::stod(values.end()[std::find(names.begin(), names.end(), name) - names.end()]);
}

class PipelineTest : public testing::TestWithParam<std::string> {};

TEST_P(PipelineTest, PrintsARowOnceBothNodesHaveRestoredTheLastStep) {
  const TempDir directory;

  const Ran run = RunShell(Command(GetParam(), directory, "--csv " + directory / "runs.csv"));

  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("strategy,model,state_bytes,"));
  EXPECT_THAT(run.out, HasSubstr("\n" + GetParam() + ",opt-2.7b,"));
  EXPECT_THAT(run.out, HasSubstr(",12\n"));                                                // The restored step.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);  // The CSV alone is left.
}

/// The journals of both nodes, read as they are written.
class Journals {
 public:
  explicit Journals(const TempDir& directory) : path_(directory / "journal") {
    for (const char* stage : {".0", ".1"}) EXPECT_EQ(::mkfifo((path_ + stage).c_str(), 0600), 0);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Once both nodes have opened theirs. Until the run has ended they may close and open them again.
  void Open() {
    for (std::size_t stage = 0; stage < 2; ++stage) {
      const std::string path = path_ + "." + std::to_string(stage);
      files_[stage].open(path);
      held_[stage] = UniqueFd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    }
    held_both_.set_value();
  }
  /// The run has ended: both journals have an end.
  void RunEnded() {
    std::array<UniqueFd, 2> opened;  // Also of a node that never opened its own.
    for (std::size_t stage = 0; stage < 2; ++stage)
      opened[stage] = UniqueFd(::open((path_ + "." + std::to_string(stage)).c_str(), O_RDWR | O_CLOEXEC));
    held_both_.get_future().wait();
    for (UniqueFd& held : held_) held.Reset();
  }
  /// The next event of that name that a node writes; null if the run has ended.
  json Next(std::size_t stage, const std::string& name) {
    for (std::string line; std::getline(files_[stage], line);) {
      if (json event = json::parse(line); event["event"] == name) return event;
    }
    return {};
  }
  /// Reads on until the run has ended.
  void ReadOn() {
    for (const std::size_t stage : {0U, 1U}) {
      while (!Next(stage, "").is_null()) {
      }
    }
  }

 private:
  const std::string path_;
  std::array<std::ifstream, 2> files_;
  std::array<UniqueFd, 2> held_;
  std::promise<void> held_both_;
};

struct Killed {
  Ran ran;
  std::uint64_t durable = 0;             // On stage 0, before the kill.
  std::array<std::uint64_t, 2> begun{};  // After the restart.
};

// Kills a node once step 4 is durable.
Killed RunAndKill(const std::string& strategy, std::size_t victim, int restarts) {
  const TempDir directory;
  Journals journals(directory);
  const std::string more = "--restarts " + std::to_string(restarts) + " --journal " + journals.path();
  auto running = std::async(std::launch::async, [&] {
    Ran ran = RunShell(Command(strategy, directory, more));
    journals.RunEnded();
    return ran;
  });
  journals.Open();
  const std::array<json, 2> opened{journals.Next(0, "open"), journals.Next(1, "open")};
  Killed killed;
  for (json durable; killed.durable < 4; killed.durable = durable["step"]) {
    durable = journals.Next(0, "durable");
    if (durable.is_null()) break;
  }
  if (opened[victim].is_object()) ::kill(opened[victim]["pid"].get<pid_t>(), SIGKILL);
  for (std::size_t stage = 0; restarts > 0 && stage < 2; ++stage) {
    journals.Next(stage, "open");
    if (const json begun = journals.Next(stage, "begin"); begun.is_object()) killed.begun[stage] = begun["step"];
  }
  journals.ReadOn();
  killed.ran = running.get();
  return killed;
}

TEST_P(PipelineTest, GoesOnFromTheStepThatBothHaveAfterANodeWasKilled) {
  for (const std::size_t victim : {0U, 1U}) {
    const Killed killed = RunAndKill(GetParam(), victim, 1);

    EXPECT_GE(killed.durable, 4U);
    EXPECT_EQ(killed.ran.code, 0) << killed.ran.err;
    EXPECT_THAT(killed.ran.err, HasSubstr("stage " + std::to_string(victim) + " was killed by signal 9"));
    EXPECT_THAT(killed.ran.err, HasSubstr("both start again"));
    EXPECT_GE(killed.begun[0], killed.durable);
    EXPECT_EQ(killed.begun[0], killed.begun[1]);
  }
}

TEST_P(PipelineTest, TheOtherNodeEndsWithAnErrorWhenOneIsKilled) {
  const Killed killed = RunAndKill(GetParam(), 1, 0);

  EXPECT_EQ(killed.ran.code, 2);
  EXPECT_THAT(killed.ran.err,
              HasSubstr("bench_pipeline: stage 0: "));  // Its own error, and not a kill by the launcher.
  EXPECT_THAT(killed.ran.err, HasSubstr("stage 0 ended with exit code 2, stage 1 was killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(Saving, PipelineTest,
                         testing::Values("sync", "checkfreq", "gpm", "gemini", "pccheck", "cairn"),
                         [](const auto& test) { return test.param; });

TEST(PipelineNetworkTest, IsHeldToTheRate) {
  if (const Result<TwoNodes> made = TwoNodes::Make(1'000'000); !made.ok()) GTEST_SKIP() << made.status();
  const TempDir directory;
  // Two iterations of 1,024 micro-batches of 10 KiB: 21 MB each way, of which the bucket lets 4 MiB pass at once.
  constexpr double kBytes = 2 * 1024 * 10240;
  constexpr double kBucket = 4 << 20;
  constexpr double kRate = 10e6;

  const Ran run = RunShell(std::string(BENCH_PIPELINE) +
                           " --strategy none --scale 0.0009765625 --iteration-seconds 200 --iterations 2 "
                           "--micro-batches 1024 --network-bytes-per-second 10000000 --dir " +
                           directory.path());

  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("network (two namespaces, a token bucket)"));
  EXPECT_LE(Cell(run.out, "iterations_per_second"), 2 / ((kBytes - kBucket) / kRate));
}

TEST(PipelineFlagsTest, RefusesWhatNoRunCanHave) {
  const TempDir directory;

  const Ran strategy = RunShell(Command("tape", directory));
  const Ran batches =
      RunShell(std::string(BENCH_PIPELINE) + " --strategy sync --micro-batches 0 --dir " + directory.path());
  const Ran room =
      RunShell(std::string(BENCH_PIPELINE) + " --strategy sync --check --scale 1000 --dir " + directory.path());

  EXPECT_EQ(strategy.code, 2);
  EXPECT_THAT(strategy.err, HasSubstr("unknown strategy \"tape\""));
  EXPECT_EQ(batches.code, 2);
  EXPECT_THAT(batches.err, HasSubstr("--micro-batches: expected 1 to 1024, found 0"));
  EXPECT_EQ(room.code, 2);
  EXPECT_THAT(room.err, HasSubstr("would fit"));
}

}  // namespace
}  // namespace cairn::bench
