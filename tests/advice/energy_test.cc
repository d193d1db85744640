// A pipeline's energy: what instructions save that use their slack, by hand and against the published frontiers.

#include "advice/energy.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSpeedsHead = "stage,instruction,frequency_mhz,time_s,energy_j\n";

std::vector<StageSpeeds> Speeds(const std::string& lines) {
  Result<std::vector<StageSpeeds>> speeds = ReadSpeeds({"speeds.csv", kSpeedsHead + lines});
  EXPECT_TRUE(speeds.ok()) << speeds.status();
  return speeds.ok() ? *std::move(speeds) : std::vector<StageSpeeds>();
}

TEST(Energy, OnlySpeedsThatNothingBeatsAreKept) {
  const std::vector<StageSpeeds> speeds = Speeds(
      "0,forward,1000,2,8\n0,forward,1400,1,10\n0,forward,1200,1.5,9.5\n"  // A mixture of the others beats the third.
      "0,forward,500,3,8\n0,backward,1400,1,10\n");                        // And 500 MHz is no better than 1000.

  ASSERT_EQ(speeds.size(), 1);
  ASSERT_EQ(speeds[0].forward.size(), 2);
  EXPECT_EQ(speeds[0].forward[0].mhz, 1400);
  EXPECT_EQ(speeds[0].forward[1].mhz, 1000);
}

TEST(Energy, InstructionsUseTheirSlackAndNoMore) {
  // As in Slack.TwoStagesOfUnequalTimeWaitWhereExpected: stage 1 never waits once it has begun. F1 of stage 0 may end 4
  // s later, and so may B1; B0 4 s or F2 3 s, and B0 comes first. F0 and B2 are on the longest path.
  const PipelineTimes times{.forward = {{1, 1, 1}, {2, 2, 2}}, .backward = {{1, 1, 1}, {3, 3, 3}}, .send = {}};
  const std::vector<StageSpeeds> speeds = Speeds(
      "0,forward,1400,1,10\n0,forward,700,3,4\n0,backward,1400,1,10\n0,backward,700,3,4\n"
      "1,forward,1400,2,20\n1,forward,700,6,8\n1,backward,1400,3,30\n1,backward,700,9,12\n");

  const Result<SlowedPipeline> slowed = SlowWithinSlack(times, speeds, 1);

  ASSERT_TRUE(slowed.ok()) << slowed.status();
  EXPECT_EQ(Schedule1F1B(slowed->times)->seconds, 17);
  EXPECT_THAT(slowed->forward[0], ElementsAre(0, 1, 0));
  EXPECT_THAT(slowed->backward[0], ElementsAre(1, 1, 0));
  EXPECT_THAT(slowed->forward[1], ElementsAre(0, 0, 0));
  EXPECT_THAT(slowed->backward[1], ElementsAre(0, 0, 0));
  EXPECT_EQ(slowed->fastest_joules, 6 * 10 + 3 * 20 + 3 * 30 + (17 - 6) + (17 - 15));
  EXPECT_EQ(slowed->joules, slowed->fastest_joules - 3 * 6 - 3 * 2);
}

TEST(Energy, RecordedEnergyIsThatOfTheSteps) {
  const Result<RankEnergy> energy =
      ReadEnergy({"e.csv", "time,energy_j,source\n1,5,GPU\n2,15,GPU\n7,20,GPU\n9,50,GPU\n"});

  ASSERT_TRUE(energy.ok()) << energy.status();
  EXPECT_EQ(energy->seconds, 3);
  EXPECT_EQ(energy->joules, 40);
}

TEST(Energy, BadFilesAreRefusedByLine) {
  const auto speeds = [](const std::string& text) { return ReadSpeeds({"s.csv", text}).status().message(); };
  EXPECT_THAT(speeds("stage,instruction\n"), HasSubstr("s.csv:1: expected a column frequency_mhz, found none"));
  EXPECT_THAT(speeds(std::string(kSpeedsHead) + "0,forward,1400,x,1\n"),
              HasSubstr("s.csv:2: expected a number of 0 or more, found \"x\""));
  EXPECT_THAT(speeds(std::string(kSpeedsHead) + "0,sideward,1400,1,1\n"),
              HasSubstr("s.csv:2: expected forward or backward, found \"sideward\""));
  EXPECT_THAT(speeds(std::string(kSpeedsHead) + "1,forward,1400,1,1\n"),
              HasSubstr("s.csv: expected forward and backward of stage 0, found none"));
  EXPECT_THAT(ReadEnergy({"e.csv", "time,energy_j,source\n1,,no NVML: none\n"}).status().message(),
              HasSubstr("e.csv:2: expected joules, found none: no NVML: none"));
  EXPECT_THAT(SlowWithinSlack({.forward = {{1}}, .backward = {{1}}, .send = {}}, {}, 0).status().message(),
              HasSubstr("speeds: expected those of 1 stages, found 0"));
}

// Published frontiers (bench/data/README.md).
TEST(Energy, IsCloseToThePublishedOneAtTheFastestIteration) {
  const auto rows = [](const std::string& name) {
    std::ifstream file(std::string(CAIRN_BENCH_DATA) + "/" + name);
    EXPECT_TRUE(file.good()) << name;
    std::vector<std::pair<std::string, std::string>> found;  // Model and GPU, the rest.
    std::string line;
    for (std::getline(file, line); std::getline(file, line);) {
      const std::size_t comma = line.find(',', line.find(',') + 1);
      found.emplace_back(line.substr(0, comma), line.substr(comma + 1));
    }
    return found;
  };
  std::map<std::string, std::string> lines;
  for (const auto& [of, rest] : rows("perseus_speeds.csv")) lines[of] += rest + "\n";

  std::size_t checked = 0;
  for (const auto& [of, rest] : rows("perseus_frontiers.csv")) {
    std::istringstream cells(rest);
    std::vector<double> numbers;
    for (std::string cell; std::getline(cells, cell, ',');) numbers.push_back(std::stod(cell));
    const auto micro_batches = static_cast<std::size_t>(numbers[0]);
    if (micro_batches > 12) continue;  // They take longer, and show nothing else.
    const bool a100 = of.ends_with("a100");
    const double unit = a100 ? 0.001 : 0.0001;
    const std::vector<StageSpeeds> speeds = Speeds(lines.at(of));
    PipelineTimes times;
    for (const StageSpeeds& stage : speeds) {
      times.forward.emplace_back(micro_batches, std::floor(stage.forward[0].seconds / unit) * unit);
      times.backward.emplace_back(micro_batches, std::floor(stage.backward[0].seconds / unit) * unit);
    }

    const Result<SlowedPipeline> slowed = SlowWithinSlack(times, speeds, a100 ? 83.64 : 70.38);

    SCOPED_TRACE(fmt::format("{}, {} micro-batches", of, micro_batches));
    ASSERT_TRUE(slowed.ok()) << slowed.status();
    EXPECT_NEAR(Schedule1F1B(slowed->times)->seconds, numbers[3] * unit, 1e-6);
    EXPECT_LT(slowed->joules, 1.01 * numbers[4]);
    EXPECT_GT(slowed->joules, 0.98 * numbers[4]);
    ++checked;
  }
  EXPECT_EQ(checked, 4);
}

}  // namespace
}  // namespace cairn
