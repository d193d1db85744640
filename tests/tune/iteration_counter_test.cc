#include "tune/iteration_counter.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace cairn {
namespace {

using ::testing::HasSubstr;

using Line = std::function<std::string(int)>;

/// Gives lines 0, 1, ... each a quarter of a second after the one before, until it has enough.
std::optional<CountedRate> Count(const Line& line, IterationCounter::Options options = {}, int most = 1000) {
  Result<IterationCounter> counter = IterationCounter::Make(options);
  EXPECT_TRUE(counter.ok()) << counter.status();
  for (int i = 0; i < most && !counter->Complete(); ++i) counter->Add(line(i), i * 0.25);
  return counter->Complete();
}

double RateOf(const Line& line, const IterationCounter::Options& options = {}) {
  const auto rate = Count(line, options);
  return rate ? rate->throughput : 0;
}

TEST(IterationCounter, KnowsProgressBarsTrainersAndRates) {
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("\r 1%|1  | {}/1000 [00:01<00:19, 99.0it/s]", i); }), 4, 1e-9);
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("{}it [00:01, 99.0it/s]", i); }), 4, 1e-9);
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("\x1b[Kstep={} loss=2.5", i); }), 4, 1e-9);
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("{{'loss': 1.5, 'step': {}}}", i); }), 4, 1e-9);
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("Iteration [{}/1000] lr 0.1", i); }), 4, 1e-9);
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("iteration {:8}/ 1000 | elapsed", i); }), 4, 1e-9);
  EXPECT_NEAR(RateOf([](int) { return "throughput 12.5 it/s"; }), 12.5, 1e-9);
  EXPECT_NEAR(RateOf([](int) { return "3e1 steps/sec"; }), 30, 1e-9);
}

TEST(IterationCounter, CountsIterationsThatWereNotPrinted) {
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("step {} of many", 10 * i); }), 40, 1e-9);
}

TEST(IterationCounter, ACounterMayBeginAgain) {
  EXPECT_NEAR(RateOf([](int i) { return fmt::format("epoch {}: {}/10 [00:01]", i / 10, i % 10 + 1); }), 4, 1e-9);
}

TEST(IterationCounter, WhatLagsIsNotCounted) {
  const Line line = [](int i) {
    return i % 2 == 0 ? fmt::format("step={} loss=1", i / 2 + 10) : fmt::format("durable step={}", i / 4 + 2);
  };

  EXPECT_NEAR(RateOf(line), 2, 1e-9);
  EXPECT_NEAR(RateOf(line, {.pattern = "step=([0-9]+)", .meaning = PatternMeaning::kCounter}), 2, 1e-9);
}

TEST(IterationCounter, SkipsTheWarmUpAndMeasuresNoMoreThanItMust) {
  // The first ten take ten times as long.
  Result<IterationCounter> counter = IterationCounter::Make({.warm_up = 10, .iterations = 5, .least_seconds = 1});
  ASSERT_TRUE(counter.ok());
  double now = 0;
  int lines = 0;
  for (; !counter->Complete(); ++lines) counter->Add(fmt::format("step {}", lines), now += lines <= 10 ? 1 : 0.1);

  EXPECT_NEAR(counter->Complete()->throughput, 10, 1e-6);
  EXPECT_NEAR(static_cast<double>(counter->Complete()->iterations), 10, 1);  // A second.
  EXPECT_NEAR(lines, 21, 1);
}

TEST(IterationCounter, APatternCountsLinesOrReadsANumber) {
  const Line line = [](int i) { return fmt::format("batch done, number {}, speed 7.5", 3 * i); };

  EXPECT_NEAR(RateOf(line, {.pattern = "batch done"}), 4, 1e-9);
  EXPECT_NEAR(RateOf(line, {.pattern = "speed ([0-9.]+)"}), 7.5, 1e-9);
  EXPECT_NEAR(RateOf(line, {.pattern = "number ([0-9]+)", .meaning = PatternMeaning::kCounter}), 12, 1e-9);
  EXPECT_EQ(RateOf(line, {.pattern = "no such thing"}), 0);
  EXPECT_EQ(RateOf(line, {.pattern = "(batch)"}), 0);  // No number.
}

TEST(IterationCounter, SaysWhatIsWrongWithAPattern) {
  const auto refused = [](const IterationCounter::Options& options) {
    return IterationCounter::Make(options).status().message();
  };

  EXPECT_THAT(refused({.pattern = "step ("}), HasSubstr("--pattern: expected a regular expression, found \"step (\""));
  EXPECT_THAT(refused({.pattern = "(a)(b)"}), HasSubstr("expected one group, the number, found 2"));
  EXPECT_THAT(refused({.pattern = "a", .meaning = PatternMeaning::kCounter}), HasSubstr("found 0"));
  EXPECT_THAT(refused({.pattern = "(a)", .meaning = PatternMeaning::kLine}), HasSubstr("expected no group"));
}

TEST(IterationCounter, TellsWhatThereIsSoFar) {
  Result<IterationCounter> counter = IterationCounter::Make({.warm_up = 2});
  ASSERT_TRUE(counter.ok());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(counter->SoFar().has_value(), i > 4);
    counter->Add(fmt::format("step {}", i), i);
  }
  EXPECT_EQ(counter->seen(), 5U);
  EXPECT_NEAR(counter->SoFar()->throughput, 1, 1e-9);
}

TEST(IterationCounter, SurvivesHostileLines) {
  Result<IterationCounter> counter = IterationCounter::Make({});
  ASSERT_TRUE(counter.ok());
  const std::string numbers(1U << 20, '1');

  counter->Add(numbers, 0);
  counter->Add("step " + numbers, 1);
  counter->Add("step 99999999999999999999999", 2);
  counter->Add(std::string("\x1b[\0\xff", 5), 3);
  counter->Add("\x1b", 4);

  EXPECT_EQ(counter->seen(), 0U);
  EXPECT_EQ(PlainLine("\x1b[2K\x1b[1;31mred\x1b[0m"), "red");
}

}  // namespace
}  // namespace cairn
