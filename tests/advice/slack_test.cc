// The graph of a 1F1B pipeline: by hand, and against the published frontiers in bench/data.

#include "advice/slack.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <tuple>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Stages that take the same time for each micro-batch.
PipelineTimes Uniform(const std::vector<double>& forward, const std::vector<double>& backward, std::size_t count) {
  PipelineTimes times;
  for (const double seconds : forward) times.forward.emplace_back(count, seconds);
  for (const double seconds : backward) times.backward.emplace_back(count, seconds);
  return times;
}

PipelineSchedule Scheduled(const PipelineTimes& times) {
  const Result<PipelineSchedule> schedule = Schedule1F1B(times);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return schedule.ok() ? *schedule : PipelineSchedule();
}

/// "F0 B0 F1", of one stage or of a path.
std::string Names(const std::vector<Instruction>& instructions, bool stages = false) {
  std::string names;
  for (const Instruction& one : instructions) {
    names += names.empty() ? "" : " ";
    names += one.pass == Pass::kForward ? "F" : "B";
    names += std::to_string(one.micro_batch);
    if (stages) names += "@" + std::to_string(one.stage);
  }
  return names;
}

std::vector<std::vector<double>> Windows(const std::vector<IdleWindow>& idle) {
  std::vector<std::vector<double>> windows;
  for (const IdleWindow& window : idle) windows.push_back({window.begin, window.end});
  return windows;
}

TEST(Slack, StagesRunForwardsAheadThenOneForwardAndOneBackwardInTurn) {
  const PipelineSchedule schedule = Scheduled(Uniform({1, 1, 1}, {2, 2, 2}, 4));

  EXPECT_EQ(Names(schedule.stages[0]), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Names(schedule.stages[1]), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Names(schedule.stages[2]), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(Slack, FewerMicroBatchesThanStagesRunAllForwardsFirst) {
  const PipelineSchedule schedule = Scheduled(Uniform({1, 1, 1, 1}, {1, 1, 1, 1}, 2));

  EXPECT_EQ(Names(schedule.stages[0]), "F0 F1 B0 B1");
  EXPECT_EQ(Names(schedule.stages[2]), "F0 F1 B0 B1");
  EXPECT_EQ(Names(schedule.stages[3]), "F0 B0 F1 B1");
  EXPECT_EQ(schedule.seconds, 4 + 4 + 2);
}

TEST(Slack, TwoStagesOfUnequalTimeWaitWhereExpected) {
  // The last stage takes 2 + 3 s of each micro-batch and never waits once it has begun:
  // stage 0: F0 0-1, F1 1-2, B0 6-7, F2 7-8, B1 11-12, B2 16-17; stage 1: F0 1-3, B0 3-6, F1 6-8, B1 8-11, ...
  const PipelineSchedule schedule = Scheduled(Uniform({1, 2}, {1, 3}, 3));

  EXPECT_EQ(schedule.seconds, 17);
  EXPECT_THAT(Windows(schedule.idle[0]), ElementsAre(ElementsAre(2, 6), ElementsAre(8, 11), ElementsAre(12, 16)));
  EXPECT_THAT(Windows(schedule.idle[1]), ElementsAre(ElementsAre(0, 1), ElementsAre(16, 17)));
  EXPECT_EQ(Names(schedule.critical_path, true), "F0@0 F0@1 B0@1 F1@1 B1@1 F2@1 B2@1 B2@0");
}

TEST(Slack, AnInstructionMayEndLaterByItsSlack) {
  const PipelineTimes times = Uniform({1, 2}, {1, 3}, 3);
  const PipelineSchedule schedule = Scheduled(times);

  for (const std::vector<Instruction>& stage : schedule.stages) {
    for (const Instruction& one : stage) {
      PipelineTimes slower = times;
      double& seconds = (one.pass == Pass::kForward ? slower.forward : slower.backward)[one.stage][one.micro_batch];
      seconds += one.slack;
      EXPECT_EQ(Scheduled(slower).seconds, 17) << Names({one}, true);
      seconds += 0.5;
      EXPECT_EQ(Scheduled(slower).seconds, 17.5) << Names({one}, true);
    }
  }
  EXPECT_EQ(schedule.stages[0][1].slack, 4);  // F1 ends at 2, and stage 1 begins it at 6.
}

TEST(Slack, ASendDelaysTheOtherStageOnly) {
  PipelineTimes times = Uniform({1, 1}, {1, 1}, 1);
  times.send = {0.25};

  const PipelineSchedule schedule = Scheduled(times);

  EXPECT_EQ(schedule.seconds, 4.5);
  EXPECT_THAT(Windows(schedule.idle[0]), ElementsAre(ElementsAre(1, 3.5)));
  EXPECT_EQ(schedule.critical_path.size(), 4);
  for (const Instruction& one : schedule.critical_path) EXPECT_EQ(one.slack, 0) << Names({one}, true);
}

TEST(Slack, OneSlowMicroBatchIsOnThePath) {
  PipelineTimes times = Uniform({1, 1}, {1, 1}, 4);
  times.forward[0][2] = 10;

  const PipelineSchedule schedule = Scheduled(times);

  EXPECT_EQ(schedule.stages[0][3].begin, 4);  // F0 F1 B0 [F2].
  EXPECT_THAT(Names(schedule.critical_path, true), HasSubstr("F2@0 F2@1"));
  EXPECT_EQ(schedule.seconds, 19);
}

TEST(Slack, ASingleStageNeverWaits) {
  const PipelineSchedule schedule = Scheduled(Uniform({1}, {2}, 5));

  EXPECT_EQ(schedule.seconds, 15);
  EXPECT_THAT(schedule.idle[0], IsEmpty());
  EXPECT_EQ(schedule.critical_path.size(), 10);
}

TEST(Slack, APathEndsWithTheIterationsLastInstructionEvenIfItTakesNoTime) {
  PipelineTimes times = Uniform({1, 1}, {1, 1}, 2);
  times.backward[0] = {0, 0};

  const PipelineSchedule schedule = Scheduled(times);

  EXPECT_EQ(schedule.seconds, 5);
  EXPECT_EQ(Names(schedule.critical_path, true), "F0@0 F0@1 B0@1 F1@1 B1@1 B1@0");
}

TEST(Slack, WhatRoundingLeavesBetweenTwoInstructionsIsNoWindow) {
  const PipelineSchedule schedule = Scheduled(Uniform({0.1, 0.1}, {0.1, 0.1}, 64));

  EXPECT_EQ(schedule.idle[0].size(), 2);  // For its first backward, and for its last.
  EXPECT_EQ(schedule.idle[1].size(), 2);  // Before its first forward, and after its last backward.
}

TEST(Slack, BadTimesAreRefusedByName) {
  const auto refused = [](const PipelineTimes& times) {
    const Result<PipelineSchedule> schedule = Schedule1F1B(times);
    EXPECT_EQ(schedule.status().code(), StatusCode::kInvalidArgument);
    return schedule.status().message();
  };
  PipelineTimes times = Uniform({1, 1}, {1, 1}, 3);

  EXPECT_THAT(refused({}), HasSubstr("at least one stage and one micro-batch, found none"));
  times.forward[1].pop_back();
  EXPECT_THAT(refused(times), HasSubstr("forward of stage 1: expected 3 micro-batches, found 2"));
  times.forward[1].push_back(-1);
  EXPECT_THAT(refused(times), HasSubstr("forward of stage 1, micro-batch 2: expected a time of 0 s or more, found -1"));
  times.forward[1][2] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refused(times), HasSubstr("found nan"));
  times.forward[1][2] = 1;
  times.send = {1, 1};
  EXPECT_THAT(refused(times), HasSubstr("sends: expected none, or 1, found 2"));
  times.send = {-0.5};
  EXPECT_THAT(refused(times), HasSubstr("send between stages 0 and 1: expected a time of 0 s or more, found -0.5"));
  times.backward.pop_back();
  EXPECT_THAT(refused(times), HasSubstr("backward: expected 2 stages, found 1"));
  EXPECT_THAT(refused(Uniform({1e308}, {1}, 2)), HasSubstr("longest path: expected a time of 0 s or more, found inf"));
}

// Random pipelines, against the definition of 1F1B. Times are eighths of a second, so that sums are exact.

/// When an instruction ends: the longest way to it, step by step back.
class Definition {
 public:
  explicit Definition(const PipelineTimes& times)
      : times_(times), stages_(times.forward.size()), micro_batches_(times.forward[0].size()) {}

  double End(std::size_t stage, Pass pass, std::size_t i) {
    const auto known = ends_.find({stage, pass, i});
    if (known != ends_.end()) return known->second;
    const bool forward = pass == Pass::kForward;
    const std::size_t ahead = std::min(stages_ - 1 - stage, micro_batches_);
    double begin = 0;
    if (forward && i > ahead) begin = End(stage, Pass::kBackward, i - ahead - 1);
    if (forward && i > 0) begin = std::max(begin, End(stage, Pass::kForward, i - 1));
    if (!forward && i > 0) begin = End(stage, Pass::kBackward, i - 1);
    if (!forward) begin = std::max(begin, End(stage, Pass::kForward, std::min(i + ahead, micro_batches_ - 1)));
    if (forward && stage > 0) begin = std::max(begin, End(stage - 1, pass, i) + times_.send[stage - 1]);
    if (!forward && stage + 1 < stages_) begin = std::max(begin, End(stage + 1, pass, i) + times_.send[stage]);
    return ends_[{stage, pass, i}] = begin + (forward ? times_.forward : times_.backward)[stage][i];
  }
  double Last() { return End(0, Pass::kBackward, micro_batches_ - 1); }

 private:
  const PipelineTimes& times_;
  const std::size_t stages_;
  const std::size_t micro_batches_;
  std::map<std::tuple<std::size_t, Pass, std::size_t>, double> ends_;
};

TEST(Slack, RandomPipelinesAreAsTheDefinitionSays) {
  std::mt19937 random(7);
  const auto upto = [&](unsigned most) { return random() % (most + 1); };
  for (int round = 0; round < 300; ++round) {
    const std::size_t stages = 1 + upto(4);
    const std::size_t micro_batches = 1 + upto(5);
    // Few different times give ties, and zeros.
    const unsigned most = round % 3 == 0 ? 2 : 100;
    PipelineTimes times = Uniform(std::vector<double>(stages), std::vector<double>(stages), micro_batches);
    for (auto* const pass : {&times.forward, &times.backward}) {
      for (auto& stage : *pass) std::generate(stage.begin(), stage.end(), [&] { return upto(most) / 8.0; });
    }
    for (std::size_t edge = 1; edge < stages; ++edge) times.send.push_back(upto(most) / 8.0);
    SCOPED_TRACE(fmt::format("round {}: {} stages, {} micro-batches", round, stages, micro_batches));

    const PipelineSchedule schedule = Scheduled(times);

    Definition definition(times);
    ASSERT_EQ(schedule.seconds, definition.Last());
    for (const std::vector<Instruction>& stage : schedule.stages) {
      for (const Instruction& one : stage) {
        ASSERT_EQ(one.end, definition.End(one.stage, one.pass, one.micro_batch)) << Names({one}, true);
        PipelineTimes slower = times;
        double& seconds = (one.pass == Pass::kForward ? slower.forward : slower.backward)[one.stage][one.micro_batch];
        seconds += one.slack;
        ASSERT_EQ(Definition(slower).Last(), schedule.seconds) << Names({one}, true);
        seconds += 0.125;
        ASSERT_GT(Definition(slower).Last(), schedule.seconds) << Names({one}, true);
      }
    }
    double along = 0;
    for (const Instruction& one : schedule.critical_path) {
      EXPECT_EQ(one.slack, 0) << Names({one}, true);
      along += one.end - one.begin;
    }
    EXPECT_LE(along, schedule.seconds);  // The rest is sends.
    EXPECT_EQ(Names({schedule.critical_path.front(), schedule.critical_path.back()}, true),
              fmt::format("F0@0 B{}@0", micro_batches - 1));
  }
}

// Published frontiers (bench/data/README.md).

std::vector<std::vector<std::string>> Rows(const std::string& name) {
  std::ifstream file(std::string(CAIRN_BENCH_DATA) + "/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::vector<std::vector<std::string>> rows;
  std::string line;
  for (std::getline(file, line); std::getline(file, line);) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

TEST(Slack, TheLongestPathsAreThoseOfAllPublishedFrontiers) {
  std::map<std::string, std::array<std::vector<double>, 4>> stages;  // Forward and backward, fastest and slowest.
  for (const std::vector<std::string>& row : Rows("perseus_stages.csv")) {
    auto& times = stages[row[0] + " " + row[1]];
    const std::size_t backward = row[4] == "backward" ? 1 : 0;
    times[backward].push_back(std::stod(row[5]));
    times[2 + backward].push_back(std::stod(row[6]));
  }

  const std::vector<std::vector<std::string>> frontiers = Rows("perseus_frontiers.csv");
  for (const std::vector<std::string>& row : frontiers) {
    const auto& times = stages.at(row[0] + " " + row[1]);
    const std::size_t micro_batches = std::stoul(row[2]);
    const double rows = std::stod(row[3]);
    const PipelineSchedule fastest = Scheduled(Uniform(times[0], times[1], micro_batches));
    const PipelineSchedule slowest = Scheduled(Uniform(times[2], times[3], micro_batches));

    SCOPED_TRACE(row[0] + " on " + row[1] + ", " + row[2] + " micro-batches");
    EXPECT_EQ(fastest.seconds, std::stod(row[5]));
    EXPECT_EQ(slowest.seconds, std::stod(row[4]) + 1);
    EXPECT_EQ(slowest.seconds - fastest.seconds, rows);
  }
  EXPECT_EQ(frontiers.size(), 16);
  EXPECT_EQ(stages.size(), 4);
}

}  // namespace
}  // namespace cairn
