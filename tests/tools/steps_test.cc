// What ls tells of each step, and the commands that change steps: rm, pin, unpin, and gc where it asks.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "io/io_queue.h"
#include "store/root.h"
#include "store/writer.h"
#include "tools/tools_fixture.h"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class StepsTest : public ToolsTest {
 protected:
  /// With an answer at a terminal.
  [[nodiscard]] Ran RunAtTerminal(const std::string& answer, const std::string& arguments) const {
    return RunShell("(printf '" + answer + "\\n' | script -qec \"'" CAIRN_CLI "' " + arguments + "\" /dev/null)");
  }
  void PinByHand(std::uint64_t step, const std::string& text) const {
    WriteWholeFile(StepFolder(step) + "/pinned", text);
  }
};

TEST_F(StepsTest, LsShowsTimeSizeMetricsAndPins) {
  const std::string metrics = R"({"version":1,"tree":{"loss":0.123456,"gap":["float","nan"],"odd":{}}})";
  WriteCheckpoint(root_, {.step = 3000, .shards = {{.tensors = {bias_}, .values = {{"metrics", Json{metrics}}}}}});
  PinByHand(1000, "");
  PinByHand(2000, "best\n");
  using std::chrono::sys_days;
  const auto committed = sys_days(std::chrono::year(2026) / 11 / 29) + std::chrono::hours(12);
  std::filesystem::last_write_time(StepFolder(3000) + "/manifest.json",
                                   std::chrono::file_clock::from_sys(std::chrono::sys_seconds(committed)));

  const Ran text = RunShell("TZ=UTC-2 '" CAIRN_CLI "' ls '" + root_ + "'");
  const json last = Run({"ls", root_, "--json"}).parsed()[2];

  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out,
              AllOf(::testing::StartsWith("STEP  TIME"), HasSubstr("  pinned\n"), HasSubstr("  pinned by keep_best\n"),
                    HasSubstr("3000  2026-11-29 14:00:00  "), HasSubstr("  1      gap=nan loss=0.1235\n")));
  EXPECT_EQ(last["time"], "2026-11-29T12:00:00Z");
  EXPECT_EQ(last["metrics"], (json{{"gap", "nan"}, {"loss", 0.123456}}));
}

// The files may be a stranger's.
TEST_F(StepsTest, LsAndShowSendATerminalNothingToActOn) {
  const std::string text = R"(["float","\u001b[2J"])";
  WriteCheckpoint(root_, {.step = 3000,
                          .shards = {{.tensors = {bias_},
                                      .values = {{"metrics", Json{R"({"tree":{"loss":1,"x":)" + text + "}}"}},
                                                 {"c1", Json{"[\"\xc2\x9b\"]"}},
                                                 {"turned", Json{"\"\u202e\""}},
                                                 {"line", Json{"[1,\n2]"}},
                                                 {"plain", std::string("\xc2\xb5m")}}}}});

  const Ran list = Run({"ls", root_});
  const Ran shown = Run({"show", root_});

  EXPECT_THAT(list.out, HasSubstr("  loss=1\n")) << list.err;
  EXPECT_EQ(Run({"ls", root_, "--json"}).parsed()[2]["metrics"], (json{{"loss", 1}}));
  EXPECT_THAT(shown.out, AllOf(HasSubstr(R"(c1 = ["\u009b"])"), HasSubstr("line = [1,2]\n"),
                               HasSubstr("plain = \"\xc2\xb5m\""), Not(HasSubstr("\x1b")), Not(HasSubstr("\u202e"))))
      << shown.err;
}

TEST_F(StepsTest, ATimeOutOfRangeIsUnknown) {
  std::array<timespec, 2> times{};
  times[1].tv_sec = std::int64_t{1} << 57;
  // A disk's filesystem would keep a time in its range.
  TempDir memory(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path());
  const std::string root = memory / "run";
  std::filesystem::create_directory(root);
  const std::string folder = WriteCheckpoint(root, {.step = 1, .shards = {{.tensors = {bias_}}}});
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder + "/manifest.json").c_str(), times.data(), 0), 0);
  struct stat facts {};
  ASSERT_EQ(::stat((folder + "/manifest.json").c_str(), &facts), 0);
  if (facts.st_mtime != times[1].tv_sec) GTEST_SKIP() << "no filesystem here keeps such a time";

  const Ran text = Run({"ls", root});

  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("\n1     -     "));
  EXPECT_TRUE(Run({"ls", root, "--json"}).parsed()[0]["time"].is_null());
}

TEST_F(StepsTest, LsLeavesOutColumnsThatSayNothing) {
  EXPECT_THAT(Run({"ls", root_}).out, AllOf(HasSubstr("RANKS\n"), Not(HasSubstr("METRICS")), Not(HasSubstr("NOTE"))));
}

TEST_F(StepsTest, LinesAndCopiesAreNamedWhereTheyTellCheckpointsApart) {
  const std::string own = "9c3e4d5f-8a7b-4e2d-bc4b-5a694f2a6b1d";
  const std::string other = "4f2a6b1d-9c3e-4d5f-8a7b-1e2d3c4b5a69";
  const std::string of_other = "line 3 of root 4f2a6b1d..., a copy";
  WriteWholeFile(root_ + "/.writer", EncodeWriter({.epoch = 1, .id = "i", .host = "h", .process = 1, .root = own}));
  EXPECT_THAT(Run({"ls", root_}).out, Not(HasSubstr("LINE")));
  EXPECT_THAT(Run({"show", root_}).out, Not(HasSubstr("line")));

  WriteCheckpoint(root_, {.step = 500, .line = 2, .root = own, .shards = {{.tensors = {bias_}}}});
  WriteCheckpoint(root_, {.step = 70, .line = 3, .root = other, .shards = {{.tensors = {bias_}}}});
  std::filesystem::copy(StepFolder(500), directory_ / "published");

  EXPECT_THAT(Run({"ls", root_}).out, AllOf(::testing::StartsWith("STEP  LINE  TIME"), HasSubstr("\n500   2     "),
                                            HasSubstr(of_other + "\n")));
  EXPECT_THAT(Run({"show", root_, "70"}).out, HasSubstr("  " + of_other + "  world 1"));
  EXPECT_THAT(Run({"show", root_, "500"}).out, HasSubstr("  line 2  world 1"));
  EXPECT_THAT(Run({"show", directory_ / "published"}).out, HasSubstr("  line 2 of root 9c3e4d5f..., a copy  world 1"));
  EXPECT_EQ(Run({"diff", root_, "500", "70"}).out, "the second: step 70, " + of_other + "\n1 tensor identical\n");
  const json last = Run({"ls", root_, "--json"}).parsed()[3];
  EXPECT_EQ(last["line"], 3);
  EXPECT_EQ(last["root"], other);
  EXPECT_EQ(last["copy"], true);

  const std::string twin = directory_ / "twin";
  std::filesystem::copy(root_, twin, std::filesystem::copy_options::recursive);
  EXPECT_THAT(Run({"ls", root_, twin}).out, AllOf(::testing::StartsWith(root_ + ":\n"),
                                                  HasSubstr("\n" + twin + " (root 9c3e4d5f..., as " + root_ + "):\n")));
}

TEST_F(StepsTest, LsNamesTheDamageOfTheShardWithTheMetrics) {
  std::filesystem::remove(StepFolder(1000) + "/shard-00000.safetensors");

  const Ran text = Run({"ls", root_});

  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, HasSubstr("Corrupt: " + StepFolder(1000) + "/shard-00000.safetensors"));
  EXPECT_EQ(Run({"ls", root_, "--json"}).parsed()[0]["ok"], false);
}

TEST_F(StepsTest, RmRemovesStepsAndRanges) {
  for (const std::uint64_t step : {3000, 4000, 5000}) Write(step);

  const Ran range = Run({"rm", root_, "1000-2500", "4000"});
  const std::vector<std::uint64_t> left = StepsLeft();
  const Ran newest = Run({"rm", root_, "5000"});
  const Ran all = Run({"rm", root_, "3000", "--json", "--yes"});

  EXPECT_EQ(range.code, 0) << range.err;
  EXPECT_THAT(range.out,
              AllOf(HasSubstr("removed step 1000, "), HasSubstr("removed step 4000, "), Not(HasSubstr("newest"))));
  EXPECT_THAT(left, ElementsAre(3000, 5000));
  EXPECT_THAT(newest.out, HasSubstr("Step 3000 is then the newest: a job resumes from it."));
  EXPECT_EQ(all.parsed()["removed"], (json{3000}));
  EXPECT_THAT(StepsLeft(), IsEmpty());
}

TEST_F(StepsTest, RmTakesTheLastGoodStepOnlyIfToldTo) {
  Write(3000);
  std::filesystem::resize_file(StepFolder(3000) + "/shard-00001.safetensors", 10);

  const Ran asked = RunAtTerminal("n", "rm '" + root_ + "' 1000 2000");
  const Ran refused = Run({"rm", root_, "1000", "2000"});
  const std::vector<std::uint64_t> kept = StepsLeft();
  const Ran one_of_them = Run({"rm", root_, "2000"});
  const Ran told = Run({"rm", root_, "1000", "--yes"});

  EXPECT_THAT(asked.out, HasSubstr("No good checkpoint remains: a job cannot resume."));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("step 3000 is not counted: Corrupt: " + StepFolder(3000) + "/shard-00001"),
                                 HasSubstr("no good checkpoint would remain under " + root_), HasSubstr("--yes")));
  EXPECT_THAT(kept, ElementsAre(1000, 2000, 3000));
  EXPECT_THAT(one_of_them.out, HasSubstr("Step 1000 is then the newest")) << one_of_them.err;
  EXPECT_THAT(told.out, HasSubstr("No good checkpoint remains")) << told.err;
  EXPECT_THAT(StepsLeft(), ElementsAre(3000));
}

TEST_F(StepsTest, RmRemovesADamagedStep) {
  WriteWholeFile(StepFolder(2000) + "/manifest.json", "{}");

  EXPECT_THAT(Run({"rm", root_, "2000"}).out, HasSubstr("removed step 2000, damaged"));
  EXPECT_FALSE(std::filesystem::exists(StepFolder(2000)));
}

TEST_F(StepsTest, RmRemovesNothingIfAStepIsPinnedOrUnknown) {
  PinByHand(2000, "");

  const Ran pinned = Run({"rm", root_, "1000", "2000"});
  const Ran unknown = Run({"rm", root_, "1000", "7"});

  EXPECT_EQ(pinned.code, 2);
  EXPECT_THAT(pinned.err, HasSubstr("pinned: 2000; nothing was removed. First run: cairn unpin " + root_ + " 2000"));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("there is no step 7 under " + root_ + "; there are 1000, 2000"));
  EXPECT_THAT(Run({"rm", root_, "30-10"}).err, HasSubstr("expected a step such as 35 or a range such as 10-40"));
  EXPECT_THAT(StepsLeft(), ElementsAre(1000, 2000));
  EXPECT_EQ(Run({"unpin", root_, "2000"}).code, 0);
  EXPECT_EQ(Run({"rm", root_, "2000"}).code, 0);
}

TEST_F(StepsTest, UnpinNamesWhatWasPinnedAndRmNamesItInRanges) {
  for (const std::uint64_t step : {3000, 4000, 5000, 6000, 7000}) Write(step);
  for (const std::uint64_t step : {1000, 2000, 4000, 5000, 7000}) PinByHand(step, "");

  const Ran refused = Run({"rm", root_, "1000-4000", "6000-7000"});
  const Ran unpinned = Run({"unpin", root_, "1000-3000"});
  const Ran again = Run({"unpin", root_, "1000-3000"});

  EXPECT_THAT(refused.err, HasSubstr("cairn unpin " + root_ + " 1000-4000 7000\n"));
  EXPECT_EQ(unpinned.out, "unpinned step 1000\nunpinned step 2000\n");
  EXPECT_EQ(again.out, "none of these steps was pinned\n");
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(Run({"unpin", root_, "4000-6000", "--json"}).parsed()["unpinned"], (json{4000, 5000}));
}

TEST_F(StepsTest, PinsWhileAJobHasTheRootOpenButRemovesNothing) {
  const auto choice = ChooseIoQueue(IoQueueKind::kThreads, 1);
  const auto queue = choice->factory();
  const auto writer = Root::Open(**queue, {.path = root_});
  ASSERT_TRUE(writer.ok()) << writer.status();

  const Ran pinned = Run({"pin", root_, "1000-2000", "--json"});
  const Ran unpinned = Run({"unpin", root_, "2000"});
  const Ran removed = Run({"rm", root_, "2000"});

  EXPECT_EQ(pinned.parsed()["pinned"], (json{1000, 2000})) << pinned.err;
  EXPECT_EQ(unpinned.out, "unpinned step 2000\n") << unpinned.err;
  EXPECT_EQ(removed.code, 2);
  EXPECT_THAT(removed.err, AllOf(HasSubstr("already open for writing in"), HasSubstr("call remove(step)")));
  EXPECT_EQ(Run({"ls", root_, "--json"}).parsed()[0]["pinned"], true);
  EXPECT_THAT(StepsLeft(), ElementsAre(1000, 2000));
}

TEST_F(StepsTest, AsksAtATerminal) {
  Write(3000);
  const std::string gc = "gc '" + root_ + "' --keep-last 2";

  const Ran refused = RunAtTerminal("", gc);
  const Ran also = RunAtTerminal("n", "rm '" + root_ + "' 3000");
  const std::vector<std::uint64_t> kept = StepsLeft();
  const Ran agreed = RunAtTerminal("y", gc);
  const Ran silent = RunAtTerminal("", "rm --yes '" + root_ + "' 3000");

  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.out, AllOf(HasSubstr("  step 1000, 20"), HasSubstr("MiB"), HasSubstr("Remove 1 checkpoint, "),
                                 HasSubstr("nothing was removed")));
  EXPECT_EQ(also.code, 2);
  EXPECT_THAT(also.out, HasSubstr("Step 2000 is then the newest"));
  EXPECT_THAT(kept, ElementsAre(1000, 2000, 3000));
  EXPECT_EQ(agreed.code, 0) << agreed.out;
  EXPECT_EQ(silent.code, 0) << silent.out;
  EXPECT_THAT(silent.out, Not(HasSubstr("[y/N]")));
  EXPECT_THAT(StepsLeft(), ElementsAre(2000));
}

TEST_F(StepsTest, ATypingErrorNamesTheCommandOrOptionThatIsNearest) {
  EXPECT_THAT(Run({"sl", root_}).err, HasSubstr("unknown command \"sl\"; did you mean ls?"));
  EXPECT_THAT(Run({"verfy", root_, "--step=1"}).err, HasSubstr("unknown command \"verfy\"; did you mean verify?"));
  EXPECT_THAT(Run({"frobnicate"}).err, HasSubstr("unknown command \"frobnicate\"; there are ls, show, verify"));
  EXPECT_THAT(Run({"gc", "--keeplast=3"}).err, HasSubstr("unknown option \"--keeplast\"; did you mean --keep-last?"));
  EXPECT_THAT(Run({"--verson"}).err, HasSubstr("unknown option \"--verson\"; did you mean --version?"));
  EXPECT_EQ(Run({"sl"}).code, 2);
}

TEST_F(StepsTest, RangesReadAsAPersonWritesThem) {
  EXPECT_THAT(Run({"gc", root_, "--keep-last=0"}).err, HasSubstr("expected a whole number from 1 on, found 0"));
  EXPECT_THAT(Run({"show", root_, "--step=-1"}).err, HasSubstr("expected a whole number from 0 on, found -1"));
  EXPECT_THAT(Run({"place", root_, "--evaluations=0"}).err, HasSubstr("from 1 to 100 million, found 0"));
  EXPECT_THAT(Run({"profile", "--timeout=2d", "--", "true"}).err, HasSubstr("--timeout: expected 0 to 1d, found 2d"));
  EXPECT_THAT(Run({"doctor", root_, "--probe-time=1h"}).err, HasSubstr("expected 100ms to 5m, found 1h"));
}

}  // namespace
}  // namespace cairn
