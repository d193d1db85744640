// What paths and steps the command takes, and what it prints to a terminal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/io_queue.h"
#include "store/root.h"
#include "tools/tools_fixture.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using MannersTest = ToolsTest;

TEST_F(MannersTest, LsOfAFolderThatIsNoRootSaysSo) {
  WriteWholeFile(directory_ / "note", "mine");

  for (const std::string command : {"ls", "show", "verify"}) {
    const Ran ran = Run({command, directory_.path()});
    EXPECT_EQ(ran.code, 2) << command;
    EXPECT_THAT(ran.err, AllOf(HasSubstr(directory_.path() + " is not a directory of Cairn's checkpoints"),
                               HasSubstr("below it are roots: " + root_)));
    EXPECT_THAT(ran.out, IsEmpty());
  }
  EXPECT_THAT(Run({"ls", StepFolder(1000)}).err, HasSubstr("found a checkpoint's folder"));
  EXPECT_THAT(Run({"ls", directory_ / "note", "--json"}).err, HasSubstr("found a file"));
}

TEST_F(MannersTest, GcMakesNoRootOfAnotherFolder) {
  WriteWholeFile(directory_ / "note", "mine");

  const Ran ran = Run({"gc", directory_.path(), "--keep-last", "1"});

  EXPECT_EQ(ran.code, 2);
  EXPECT_FALSE(std::filesystem::exists(directory_ / ".lock"));
}

TEST_F(MannersTest, ARootOfWhichAllCheckpointsWereRemovedIsARoot) {
  const std::string empty = directory_ / "was";
  const auto choice = ChooseIoQueue(IoQueueKind::kThreads, 1);
  const auto queue = choice->factory();
  ASSERT_TRUE(Root::Open(**queue, {.path = empty}).ok());

  EXPECT_EQ(Run({"ls", empty}).out, "there is no checkpoint under " + empty + "\n");
}

TEST_F(MannersTest, LsListsManyRoots) {
  const std::string other = directory_ / "other";
  std::filesystem::create_directory(other);
  WriteCheckpoint(other, {.step = 7, .shards = {{.tensors = {bias_}}}});

  const Ran text = Run({"ls", root_, other});
  const Ran as_json = Run({"ls", root_, directory_ / "absent", other, "--json"});

  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_LT(text.out.find(root_ + ":\nSTEP"), text.out.find("\n\n" + other + ":\nSTEP"));
  EXPECT_EQ(as_json.code, 2);
  EXPECT_THAT(as_json.err, HasSubstr(directory_ / "absent"));
  ASSERT_EQ(as_json.parsed().size(), 3);
  EXPECT_EQ(as_json.parsed()[2]["step"], 7);
}

TEST_F(MannersTest, AStepBehindTheRootIsShort) {
  const Ran shown = Run({"show", root_, "1000", "--json"});
  const Ran verified = Run({"verify", root_, "1000", "--json"});
  const Ran exported = Run({"export", root_, "1000", "--out", directory_ / "out.safetensors"});

  EXPECT_EQ(shown.parsed()["step"], 1000) << shown.err;
  ASSERT_EQ(verified.parsed().size(), 1) << verified.err;
  EXPECT_EQ(verified.parsed()[0]["step"], 1000);
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(Run({"show", root_, "7"}).code, 2);
  EXPECT_EQ(Run({"show", StepFolder(1000), "7"}).code, 2);
  EXPECT_EQ(Run({"show", root_, "newest"}).code, 2);
}

TEST_F(MannersTest, DiffTakesStepsOfOneRootAndOfTwo) {
  weight_.bytes[0] = static_cast<char>(weight_.bytes[0] ^ 1);
  Write(3000);
  const std::string other = directory_ / "other";
  std::filesystem::copy(root_, other, std::filesystem::copy_options::recursive);
  const std::string file = StepFolder(3000) + "/shard-00000.safetensors";

  EXPECT_EQ(Run({"diff", root_, "1000", "2000"}).code, 0);
  EXPECT_EQ(Run({"diff", root_, "2000", "3000"}).code, 1);
  EXPECT_EQ(Run({"diff", root_, "2000"}).code, 1);  // Against the newest.
  EXPECT_EQ(Run({"diff", root_, "3000"}).code, 0);
  EXPECT_EQ(Run({"diff", root_, "--step", "1000", "--step", "2000"}).code, 0);
  EXPECT_EQ(Run({"diff", "--step", "2000", root_, other}).code, 0);
  EXPECT_EQ(Run({"diff", root_, other, "--step", "2000", "--step", "3000"}).code, 1);
  EXPECT_THAT(Run({"diff", root_, file, "--step", "3000"}).out, HasSubstr("3 tensors identical"));
  for (const std::vector<std::string>& wrong : {std::vector{root_},
                                                {root_, "--step", "1000"},
                                                {root_, "1000", other},
                                                {root_, "1000", "2000", "3000"},
                                                {root_, "1000", "--step", "2000"},
                                                {file, file, "--step", "1"},
                                                {root_, "1000", "7"}}) {
    std::vector<std::string> arguments{"diff"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(Run(arguments).code, 2) << ::testing::PrintToString(wrong);
  }
  EXPECT_THAT(Run({"diff", root_, other, "2000"}).err, HasSubstr("for that step of both give --step 2000"));
}

TEST_F(MannersTest, ProgressAndColoursAppearOnATerminalOnly) {
  const auto run = [&](const std::string& environment, const std::string& to) {
    return RunShell("script -qec \"env " + environment + " '" CAIRN_CLI "' verify '" + root_ + "' " + to +
                    "\" /dev/null")
        .out;
  };
  const std::string piped = Run({"verify", root_}).out;

  EXPECT_THAT(run("TERM=xterm", ""), AllOf(HasSubstr("[####"), HasSubstr("\x1b[32mok\x1b[0m")));
  EXPECT_THAT(run("TERM=xterm NO_COLOR=1", ""), AllOf(HasSubstr("[####"), HasSubstr(": ok")));
  EXPECT_THAT(run("TERM=dumb", "2>/dev/null"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(run("TERM=xterm", "2>/dev/null | cat"), AllOf(HasSubstr(": ok"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(piped, AllOf(HasSubstr(": ok\n"), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace cairn
