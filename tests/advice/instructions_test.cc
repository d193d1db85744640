// What recorded instructions say about a pipeline, and what is refused of them.

#include "advice/instructions.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <tuple>
#include <utility>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kHead = "instruction,start,end,step,rank,stage,micro_batch\n";

/// Two stages, a rank each, two micro-batches and steps; the second step is slower. A message takes 0.25 s, its
/// receiver waits for it from before it is sent or is late.
std::vector<InstructionFile> TwoStages() {
  std::string first = kHead;
  std::string second = kHead;
  for (const auto& [step, at, forward] : {std::tuple(7, 100.0, 1.0), std::tuple(8, 200.0, 2.0)}) {
    const auto row = [step = step](std::string& to, const char* name, double start, double end, int stage, int i) {
      to += fmt::format("{},{},{},{},{},{},{}\n", name, start, end, step, stage, stage, i);
    };
    for (int i = 0; i < 2; ++i) {
      row(first, "forward", at + 10 * i, at + 10 * i + forward, 0, i);
      row(first, "send_activation", at + 10 * i + forward, at + 10 * i + forward + 9, 0, i);
      row(second, "recv_activation", at - 1, at + 10 * i + forward + 0.25, 1, i);
      row(second, "forward", at + 10 * i + 4, at + 10 * i + 6, 1, i);
      row(second, "backward", at + 10 * i + 6, at + 10 * i + 9, 1, i);
      row(second, "send_gradient", at + 10 * i + 9, at + 10 * i + 9.25, 1, i);
      row(first, "recv_gradient", at + 10 * i + 20, at + 10 * i + 20.25, 0, i);
      row(first, "backward", at + 10 * i + 21, at + 10 * i + 25, 0, i);
    }
    first += fmt::format("optimizer,{},{},{},0,0,\n", at + 90, at + 95, step);
    second += fmt::format("write,{},{},{},1,1,\n", at - 90, at + 95, step);
  }
  return {{"a.csv", first}, {"b.csv", second}};
}

std::string Refused(const std::vector<InstructionFile>& files) {
  const Result<RecordedPipeline> read = ReadInstructions(files);
  EXPECT_FALSE(read.ok());
  return read.ok() ? "" : std::string(read.status().message());
}

std::string Replaced(std::string text, const std::string& old, const std::string& with) {
  const std::size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), with);
}

TEST(Instructions, TimesAreMediansOverSteps) {
  const Result<RecordedPipeline> read = ReadInstructions(TwoStages());

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->steps, 2U);
  EXPECT_EQ(read->seconds, 35);  // From the first forward to the last backward; the optimizer does not count.
  EXPECT_THAT(read->times.forward, ElementsAre(ElementsAre(1.5, 1.5), ElementsAre(2, 2)));
  EXPECT_THAT(read->times.backward, ElementsAre(ElementsAre(4, 4), ElementsAre(3, 3)));
  EXPECT_THAT(read->times.send, ElementsAre(0.25));
}

TEST(Instructions, FilesMayComeInAnyOrder) {
  std::vector<InstructionFile> files = TwoStages();
  std::swap(files[0], files[1]);

  const Result<RecordedPipeline> read = ReadInstructions(files);

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->times.forward, ElementsAre(ElementsAre(1.5, 1.5), ElementsAre(2, 2)));
}

TEST(Instructions, RanksOfSeveralHostsNeedNoCommonClockWithoutMessages) {
  const auto rank = [](int number, double at) {
    return InstructionFile{fmt::format("{}.csv", number),
                           fmt::format("{0}forward,{1},{2},1,{3},{3},0\nbackward,{4},{5},1,{3},{3},0\n", kHead, at,
                                       at + 1, number, at + 6 - 2 * number, at + 7 - 2 * number)};
  };

  // One host has run for an hour longer; or all times are before the clock's zero.
  for (const double second : {3600.0, -900.0}) {
    const Result<RecordedPipeline> read = ReadInstructions({rank(0, -1000), rank(1, second)});

    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->seconds, 7);
  }
}

TEST(Instructions, AByteOrderMarkDoesNotMatter) {
  std::vector<InstructionFile> files = TwoStages();
  files[0].text.insert(0, "\xef\xbb\xbf");

  EXPECT_TRUE(ReadInstructions(files).ok()) << ReadInstructions(files).status();
}

TEST(Instructions, OfAStageTheSlowestRankCounts) {
  const auto rank = [](int number, int stage, double forward, double send) {
    return InstructionFile{fmt::format("{}.csv", number),
                           fmt::format("{0}forward,0,{1},1,{2},{3},0\nbackward,50,51,1,{2},{3},0\n"
                                       "{4}_activation,{5},{6},1,{2},{3},0\n",
                                       kHead, forward, number, stage, stage == 0 ? "send" : "recv", stage == 0 ? 10 : 5,
                                       stage == 0 ? 10 : 10 + send)};
  };
  // Ranks are paired by their numbers: 2 and 11, 10 and 12.
  const Result<RecordedPipeline> read =
      ReadInstructions({rank(10, 0, 3, 0), rank(11, 1, 1, 0.5), rank(12, 1, 1, 1.5), rank(2, 0, 4, 0)});

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->times.forward, ElementsAre(ElementsAre(4), ElementsAre(1)));
  EXPECT_THAT(read->times.send, ElementsAre(1.0));  // The median of 0.5 and 1.5.
}

TEST(Instructions, WithoutMessagesSendsTakeNoTime) {
  std::vector<InstructionFile> files = TwoStages();
  for (InstructionFile& file : files) {
    std::istringstream lines(std::exchange(file.text, ""));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("send") && !line.starts_with("recv")) file.text += line + "\r\n";
    }
  }

  const Result<RecordedPipeline> read = ReadInstructions(files);

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->times.send, IsEmpty());
}

TEST(Instructions, AFileThatIsNoneIsRefusedByNameAndLine) {
  const std::string whole = TwoStages()[0].text;
  const auto said = [](std::string text) { return Refused({{"a.csv", std::move(text)}, TwoStages()[1]}); };

  EXPECT_EQ(said("time,energy_j\n"), "a.csv:1: expected a column instruction, found \"time,energy_j\"");
  EXPECT_EQ(said(kHead), "a.csv: expected instructions, found none");
  EXPECT_EQ(said(kHead + std::string(70'000, ',')),
            "a.csv:2: expected a line of at most 65536 bytes, found one of 70000");
  EXPECT_EQ(said(whole + "forward,1,2\n"), "a.csv:20: expected 7 fields, found 3");
  EXPECT_EQ(said(Replaced(whole, "forward,100,", "forward,x,")), "a.csv:2: start: expected seconds, found \"x\"");
  EXPECT_THAT(said(Replaced(whole, "forward,100,101", "forward,100,99")),
              HasSubstr("a.csv:2: expected an end at or after the start, found 100 and 99"));
  EXPECT_THAT(said(Replaced(whole, "forward,100,101", "forward,100,nan")), HasSubstr("a.csv:2: expected an end"));
  EXPECT_EQ(said(Replaced(whole, "101,7,0,0,0", "101,7,0,0,-1")),
            "a.csv:2: micro_batch: expected a whole number, found \"-1\"");
  EXPECT_THAT(said(Replaced(whole, "101,7,0,0,0", "101,7,0,1,0")), HasSubstr("a.csv:3: expected rank 0 of stage 1"));
}

TEST(Instructions, WhatIsMissingOrThereTwiceIsNamed) {
  const std::vector<InstructionFile> files = TwoStages();
  const std::string& first = files[0].text;

  EXPECT_EQ(Refused({}), "expected the files of all ranks, found none");
  EXPECT_EQ(Refused({files[1]}), "stage 0: expected the records of its ranks, found none");
  EXPECT_EQ(Refused({files[0], files[1], {"c.csv", first}}), "c.csv: expected another rank than 0, which is in a.csv");
  EXPECT_EQ(Refused({{"a.csv", first + "forward,1,2,7,0,0,0\n"}, files[1]}),
            "a.csv:20: forward of micro-batch 0 in step 7 is there twice");
  EXPECT_EQ(Refused({files[0], {"b.csv", Replaced(files[1].text, "backward,", "other,")}}),
            "b.csv: expected backward of micro-batch 0 in step 7, found none");
  EXPECT_THAT(Refused({files[0], {"b.csv", files[1].text + "forward,1,2,9,1,1,0\n"}}),
              HasSubstr("b.csv: expected the steps and micro-batches that a.csv has, found forward of micro-batch 0 "
                        "in step 9"));
  EXPECT_EQ(Refused({{"a.csv", Replaced(first, "send_activation,", "other,")}, files[1]}),
            "a.csv: expected send_activation of micro-batch 0 in step 7, because b.csv received it, found none");
}

TEST(Instructions, AMessageThatArrivesBeforeItIsSentIsRefused) {
  const std::vector<InstructionFile> files = TwoStages();
  const std::string other_clock = Replaced(files[1].text, "recv_activation,99,101.25", "recv_activation,9,11.25");

  EXPECT_THAT(
      Refused({files[0], {"b.csv", other_clock}}),
      HasSubstr("b.csv: expected recv_activation of micro-batch 0 in step 7 after it was sent at 101 s, found it "
                "ended at 11.25 s: are a.csv and this file of one run"));
}

}  // namespace
}  // namespace cairn
