// The completions of bash and zsh, as the shells call them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "support/checkpoint_writer.h"
#include "support/run_program.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

/// "bash" or "zsh", with a root of steps 35 and 40, and a folder and a file beside it.
class CompletionTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (RunShell(GetParam() + " -c true").code != 0) GTEST_SKIP() << GetParam() << " is not installed";
    std::filesystem::create_directory(root_);
    for (const std::uint64_t step : {35, 40}) {
      WriteCheckpoint(root_, {.step = step, .shards = {{.tensors = {MakeTensor("w", DType::kF32, {4}, 1)}}}});
    }
    WriteWholeFile(directory_ / "file", "");
  }

  /// What the shell offers for the last of these words after "cairn".
  [[nodiscard]] std::vector<std::string> Complete(const std::vector<std::string>& words) const {
    std::string line = "'" CAIRN_CLI "'";
    for (const std::string& word : words) line += " '" + word + "'";
    std::string script = "cd '" + directory_.path() + "'\n";
    if (GetParam() == "bash") {
      script +=
          "set -u\nsource '" CAIRN_COMPLETIONS "/cairn.bash'\nCOMP_WORDS=(" + line +
          ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
          "_cairn \"$COMP_WORDS\" \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
    } else {
      // The completion system's functions, as far as they are used.
      script +=
          "_describe() { print -l -- ${(P)2} }\ncompadd() { print -l -- $@ }\n_files() { print -l -- *(N${1:+/}) }\n"
          "words=(" +
          line + ")\nCURRENT=$#words\nsource '" CAIRN_COMPLETIONS "/_cairn'\n";
    }
    const std::string path = directory_ / ".script";
    WriteWholeFile(path, script);
    const Ran ran = RunShell(GetParam() + (GetParam() == "zsh" ? " -f '" : " '") + path + "'");
    EXPECT_EQ(ran.err, "");
    std::vector<std::string> offered;
    std::istringstream lines(ran.out);
    for (std::string word; std::getline(lines, word);) offered.push_back(word.substr(0, word.find(':')));
    return offered;
  }

  TempDir directory_;
  const std::string root_ = directory_ / "run";
};

TEST_P(CompletionTest, OffersEachSubcommand) {
  EXPECT_THAT(Complete({""}), IsSupersetOf({"ls", "show", "verify", "diff", "export", "gc", "rm", "pin", "unpin",
                                            "tune", "profile", "doctor", "place", "plan", "slack", "--version"}));
}

TEST_P(CompletionTest, OffersTheOptionsOfASubcommand) {
  EXPECT_THAT(Complete({"export", "--"}),
              IsSupersetOf({"--help", "--json", "--out", "--model-folder", "--force", "--names", "--strip-prefix"}));
  EXPECT_THAT(Complete({"gc", "--"}), AllOf(IsSupersetOf({"--keep-last", "--dry-run"}), Not(Contains("--force"))));
}

TEST_P(CompletionTest, OffersFilesForAModel) { EXPECT_THAT(Complete({"plan", ""}), Contains("file")); }

TEST_P(CompletionTest, OffersWhatAProfileNeeds) {
  EXPECT_THAT(Complete({"profile", "--"}), IsSupersetOf({"--pattern", "--least-cores", "--check"}));
  EXPECT_THAT(Complete({"profile", "--means", ""}), IsSupersetOf({"line", "counter", "rate"}));
  EXPECT_THAT(Complete({"tune", "run", "--profile", ""}), Contains("file"));
  EXPECT_THAT(Complete({"profile", "--", ""}), AllOf(Contains("sh"), Not(Contains("run"))));
}

TEST_P(CompletionTest, OffersTheStepsOfARoot) {
  for (const std::string command : {"show", "verify", "export", "diff", "rm", "pin", "unpin"}) {
    EXPECT_THAT(Complete({command, "run", ""}), IsSupersetOf({"35", "40"})) << command;
  }
  EXPECT_THAT(Complete({"show", "run", "--step", ""}), IsSupersetOf({"35", "40"}));
  EXPECT_THAT(Complete({"rm", "run", "35", ""}), AllOf(Contains("40"), Not(Contains("file"))));
  EXPECT_THAT(Complete({"show", "run", ""}), Not(Contains("file")));
  EXPECT_THAT(Complete({"diff", "run", ""}), Contains("file"));
  EXPECT_THAT(Complete({"diff", "run", "35", ""}), AllOf(Contains("40"), Not(Contains("file"))));
  EXPECT_THAT(Complete({"export", "run", "--out", ""}), Contains("file"));
}

TEST_P(CompletionTest, OffersFoldersWhereARootIsExpected) {
  EXPECT_THAT(Complete({"rm", ""}), AllOf(Contains("run"), Not(Contains("file"))));
  EXPECT_THAT(Complete({"ls", ""}), AllOf(Contains("run"), Not(Contains("file"))));
  EXPECT_THAT(Complete({"show", ""}), IsSupersetOf({"run", "file"}));
  EXPECT_THAT(Complete({"place", ""}), IsSupersetOf({"run", "file"}));
}

INSTANTIATE_TEST_SUITE_P(Shells, CompletionTest, ::testing::Values("bash", "zsh"),
                         [](const auto& shell) { return shell.param; });

}  // namespace
}  // namespace cairn
