// `cairn slack`: a pipeline's longest path and idle windows, from recorded instructions.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A file of each of two stages, as in Slack.TwoStagesOfUnequalTimeWaitWhereExpected.
class SlackCommandTest : public ::testing::Test {
 protected:
  SlackCommandTest() {
    for (int stage = 0; stage < 2; ++stage) {
      std::string text = "instruction,start,end,step,rank,stage,micro_batch\n";
      for (int i = 0; i < 3; ++i) {
        text += fmt::format("forward,0,{0},1,{1},{1},{2}\nbackward,20,{3},1,{1},{1},{2}\n", stage + 1, stage, i,
                            21 + 2 * stage);
      }
      files_.push_back(directory_ / fmt::format("instructions-{}.csv", stage));
      WriteWholeFile(files_.back(), text);
    }
  }
  [[nodiscard]] static Ran Slack(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "slack");
    return RunProgram(CAIRN_CLI, arguments);
  }

  TempDir directory_;
  std::vector<std::string> files_;
};

TEST_F(SlackCommandTest, JsonHasThePathAndTheWindows) {
  const Ran ran = Slack({files_[0], files_[1], "--json"});

  ASSERT_EQ(ran.code, 0) << ran.err;
  const json out = ran.parsed();
  EXPECT_EQ(out["seconds"], 17);
  EXPECT_EQ(out["recorded_seconds"], 23);
  EXPECT_EQ(out["steps"], 1);
  EXPECT_TRUE(out["send_seconds"].empty());
  EXPECT_EQ(out["critical_path"].size(), 8);
  EXPECT_EQ(out["critical_path"][1], (json{{"stage", 1}, {"instruction", "forward"}, {"micro_batch", 0}}));
  const json& first = out["stages"][0];
  EXPECT_EQ(first["busy_seconds"], 6);
  EXPECT_EQ(first["idle"],
            (json::array(
                {{{"begin", 2.0}, {"end", 6.0}}, {{"begin", 8.0}, {"end", 11.0}}, {{"begin", 12.0}, {"end", 16.0}}})));
  EXPECT_EQ(first["instructions"].size(), 6);
  EXPECT_EQ(first["instructions"][1],
            (json{{"instruction", "forward"}, {"micro_batch", 1}, {"begin", 1.0}, {"end", 2.0}, {"slack", 4.0}}));
}

TEST_F(SlackCommandTest, ItIsPrintedAsText) {
  const Ran ran = Slack(files_);

  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("take at least 17 s"), HasSubstr("recorded 23 s, the median of 1 step\n"),
                             HasSubstr("LONGEST"), HasSubstr("64.7 %"),
                             HasSubstr("longest path: F0@0 F0@1 B0@1 F1@1 B1@1 F2@1 B2@1 B2@0\n")));
}

TEST_F(SlackCommandTest, WhatItCannotUseIsNamed) {
  WriteWholeFile(directory_ / "empty.csv", "");

  const Ran one = Slack({files_[1]});
  const Ran empty = Slack({files_[0], directory_ / "empty.csv"});
  const Ran absent = Slack({directory_ / "absent.csv"});

  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, HasSubstr("stage 0: expected the records of its ranks, found none"));
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("empty.csv: expected instructions, found an empty file"));
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.err, HasSubstr("absent.csv"));
}

}  // namespace
}  // namespace cairn
