// Kills the trainer at random moments. Checkpoints reported as durable must exist, and a resumed run must be bit-exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <set>

#include "cairn/cairn.h"
#include "support/points.h"
#include "testing/temp_dir.h"
#include "trainer/training_process.h"
#include "trainer/write_text.h"

namespace cairn::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::set<std::uint64_t> ListedSteps(const std::string& root) {
  const auto reader = Checkpointer::Open({.root = root, .read_only = true, .host_memory_bytes = 64_MiB});
  if (!reader.ok()) {
    ADD_FAILURE() << reader.status();
    return {};
  }
  std::set<std::uint64_t> steps;
  const auto listed = reader.value()->List();
  EXPECT_TRUE(listed.ok()) << listed.status();
  for (const CheckpointInfo& checkpoint : *listed) {
    EXPECT_TRUE(checkpoint.status.ok()) << checkpoint.path << ": " << checkpoint.status;
    steps.insert(checkpoint.step);
  }
  const Status whole = reader.value()->Verify(Latest());
  EXPECT_TRUE(whole.ok()) << whole;
  return steps;
}

TEST(KilledTrainer, StepReportedDurableExists) {
  const TempDir root;
  std::mt19937 random(cairn::SeedOfRun(20260101));

  for (int round = 0; round < SomeRounds(5); ++round) {
    TrainingProcess training(
        {"--steps", "1000000", "--every", "1", "--keep", "0", "--checkpoint-dir", root.path(), "--resume"});
    std::optional<std::string> durable;
    for (auto lines = 1 + random() % 12; lines > 0; --lines) durable = training.NextLine("durable ");
    ASSERT_TRUE(durable) << training.output();

    training.Kill();

    EXPECT_TRUE(ListedSteps(root.path()).contains(NumberAfter(*durable, "step"))) << *durable;
    EXPECT_EQ(training.Finish(), -SIGKILL);
  }
}

TEST(KilledTrainer, GoesOnWithTheLastStepThatItKept) {
  const TempDir root;
  const TempDir memory{"/dev/shm"};
  const std::vector<std::string> arguments = {"--steps",   "1000000",       "--every",
                                              "1",         "--resume",      "--checkpoint-dir",
                                              root.path(), "--memory-root", memory.path()};
  TrainingProcess training(arguments);
  std::optional<std::string> kept;
  for (int lines = 0; lines < 5; ++lines) kept = training.NextLine("kept ");
  ASSERT_TRUE(kept) << training.output();
  training.Kill();
  EXPECT_EQ(training.Finish(), -SIGKILL);

  TrainingProcess again(arguments);

  const std::optional<std::string> resumed = again.NextLine("resumed ");
  ASSERT_TRUE(resumed) << again.output();
  EXPECT_GE(NumberAfter(*resumed, "step"), NumberAfter(*kept, "step"));
}

struct Training {
  const char* name;
  std::vector<std::string> arguments;

  friend std::ostream& operator<<(std::ostream& out, const Training& training) { return out << training.name; }
};

const std::vector<Training>& Trainings() {
  static const std::vector<Training> all = {
      Training{"VggSgd", {"--optimizer", "sgd"}}, Training{"VggAdamw", {"--optimizer", "adamw"}},
      Training{"VggSgdBf16", {"--optimizer", "sgd", "--precision", "bf16"}},
      Training{"VggAdamwBf16WithAllOptions",
               {"--optimizer", "adamw", "--precision", "bf16", "--accumulate", "2", "--clip", "1", "--warmup", "10",
                "--decay", "cosine"}},
      Training{"OptAdamw",
               {"--optimizer", "adamw", "--model", "opt-350m", "--data", "TEXT", "--sequence", "64", "--size",
                "hidden=64", "layers=3", "heads=4", "ffn=256", "embedding=32", "vocabulary=500", "positions=64"}},
      Training{"BloomAdamw",
               {"--optimizer", "adamw", "--model", "bloom-560m", "--data", "TEXT", "--sequence", "64", "--size",
                "hidden=72", "layers=3", "heads=6", "vocabulary=500"}},
      Training{"TransformerXlAdamw",
               {"--optimizer", "adamw", "--model", "transformer-xl-base", "--data", "TEXT", "--sequence", "32",
                "--size", "hidden=64", "layers=3", "heads=4", "head_size=16", "ffn=128", "memory=48", "vocabulary=500",
                "cutoff1=100", "cutoff2=200", "cutoff3=300"}},
      // Reaches its second epoch, where the memory is reset.
      Training{"TransformerXlBf16WithAllOptions",
               {"--optimizer", "adamw",          "--precision", "bf16",        "--accumulate",
                "2",           "--clip",         "1",           "--model",     "transformer-xl-large",
                "--data",      "TEXT",           "--sequence",  "80",          "--size",
                "hidden=64",   "layers=2",       "heads=4",     "head_size=4", "ffn=32",
                "memory=48",   "vocabulary=500", "cutoff1=100", "cutoff2=200", "cutoff3=300"}},
      Training{"OptSgdWithOneSaveInFlight",
               {"--in-flight", "1", "--model", "opt-125m", "--data", "TEXT", "--sequence", "64", "--size", "hidden=16",
                "layers=2", "heads=4", "ffn=32", "vocabulary=500", "positions=64"}},
      Training{"OptBf16WithAllOptions", {"--threads",    "2",
                                         "--optimizer",  "adamw",
                                         "--precision",  "bf16",
                                         "--accumulate", "2",
                                         "--clip",       "1",
                                         "--warmup",     "10",
                                         "--decay",      "cosine",
                                         "--model",      "opt-125m",
                                         "--data",       "TEXT",
                                         "--sequence",   "64",
                                         "--size",       "hidden=16",
                                         "layers=2",     "heads=4",
                                         "ffn=32",       "vocabulary=500",
                                         "positions=64"}},
      Training{"BloomBf16WithAllOptions",
               {"--threads",  "2",      "--optimizer", "adamw",     "--precision", "bf16",    "--accumulate",
                "2",          "--clip", "1",           "--model",   "bloom-560m",  "--data",  "TEXT",
                "--sequence", "64",     "--size",      "hidden=16", "layers=2",    "heads=4", "vocabulary=500"}},
      Training{"BertBf16WithAllOptions", {"--threads",       "2",
                                          "--optimizer",     "adamw",
                                          "--precision",     "bf16",
                                          "--accumulate",    "2",
                                          "--clip",          "1",
                                          "--model",         "bert-base",
                                          "--data",          "TEXT",
                                          "--sequence",      "64",
                                          "--size",          "hidden=16",
                                          "layers=2",        "heads=4",
                                          "intermediate=32", "vocabulary=500",
                                          "positions=64"}},
      Training{"BertAdamwOnPairs",
               {"--optimizer", "adamw", "--model", "bert-base", "--data", "TEXT", "--sequence", "64", "--size",
                "hidden=64", "layers=3", "heads=4", "intermediate=256", "vocabulary=500", "positions=64"}},
      Training{"BertAdamwOnQuestions",
               {"--optimizer", "adamw", "--model", "bert-base", "--data", "QUESTIONS", "--size", "hidden=64",
                "layers=3", "heads=4", "intermediate=256", "vocabulary=500", "positions=64"}}};
  return all;
}

/// A run that tries only some trains at least one of each of VGG, OPT and BERT, and one of the others.
bool IsTried(const Training& training) {
  const auto model = [](const Training& of) {
    const std::string name = std::string(of.name).substr(0, 3);
    return name == "Vgg" || name == "Opt" || name == "Ber" ? name : "";
  };
  std::uint64_t number = 0;
  std::uint64_t all = 0;
  for (const Training& other : Trainings()) {
    if (other.name == training.name) number = all;
    all += model(other) == model(training) ? 1 : 0;
  }
  return cairn::IsTried(number, all);
}

class ResumedTrainer : public testing::TestWithParam<Training> {
 protected:
  /// Trains in `root` / `run`, on the same data for every run.
  static std::vector<std::string> Arguments(const TempDir& root, const std::string& run) {
    std::vector<std::string> all = {"--steps", "60", "--every", "4", "--resume", "--checkpoint-dir", root / run};
    if (std::ranges::find(GetParam().arguments, "--in-flight") == GetParam().arguments.end()) {
      all.insert(all.end(), {"--in-flight", "3"});
    }
    for (const std::string& word : GetParam().arguments)
      all.push_back(word == "TEXT" ? root / "text" : word == "QUESTIONS" ? root / "questions" : word);
    return all;
  }
};

TEST_P(ResumedTrainer, EndsBitExactAfterKills) {
  if (!IsTried(GetParam())) GTEST_SKIP() << "not among the cases of this run";
  const TempDir root;
  WriteText(root / "text", MakeTokens(60'000, 500), 500, kSpecialTokens);
  WriteQuestions(root / "questions", MakeTokens(10'000, 500), 500, 64);
  TrainingProcess whole(Arguments(root, "whole"));
  ASSERT_EQ(whole.Finish(), 0) << whole.output();
  const auto seed = std::random_device{}();
  SCOPED_TRACE("random seed " + std::to_string(seed));
  std::mt19937 random(seed);

  int kills = 0;
  std::string output;
  for (int exit = -SIGKILL; exit != 0;) {
    TrainingProcess training(Arguments(root, "killed"));
    // Killed at a random moment between later steps; the tenth run may finish.
    training.NextLine("step=");
    for (auto lines = random() % 20; lines > 0; --lines) training.NextLine("step=");
    const auto span = kills < 10 ? milliseconds(random() % 50) : milliseconds(std::chrono::hours(1));
    const auto until = steady_clock::now() + span;
    while (training.NextLine(std::chrono::duration_cast<milliseconds>(until - steady_clock::now()))) {
    }
    training.Kill();
    exit = training.Finish();
    ASSERT_TRUE(exit == 0 || exit == -SIGKILL) << training.output();
    if (exit != 0) ++kills;
    for (const auto& [step, loss] : training.losses()) EXPECT_EQ(loss, whole.losses().at(step)) << "step " << step;
    output = training.output();
  }

  EXPECT_GT(kills, 0);
  // "done step=60 weights_crc64=...": the final weights' digest.
  const auto last_line = [](const std::string& text) { return text.substr(text.rfind("done ")); };
  EXPECT_EQ(last_line(output), last_line(whole.output()));
  EXPECT_TRUE(ListedSteps(root / "killed").contains(60));
}

INSTANTIATE_TEST_SUITE_P(Everything, ResumedTrainer, testing::ValuesIn(Trainings()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace cairn::trainer
