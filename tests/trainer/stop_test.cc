// SIGTERM and SIGINT: a last checkpoint within the grace period, or the reason why there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "testing/temp_dir.h"
#include "trainer/training_process.h"

namespace cairn::trainer {
namespace {

using ::testing::HasSubstr;

constexpr int kStopped = 3;

class StoppedTrainer : public testing::TestWithParam<int> {};

TEST_P(StoppedTrainer, ResumesBitExactFromItsLastStep) {
  const TempDir root;
  const std::vector<std::string> common = {"--accumulate", "3", "--resume", "--every", "1000000"};
  const auto arguments = [&](const std::string& folder, const std::string& steps) {
    std::vector<std::string> all = {"--steps", steps, "--checkpoint-dir", root / folder};
    all.insert(all.end(), common.begin(), common.end());
    return all;
  };
  TrainingProcess stopped(arguments("stopped", "1000000"));
  ASSERT_TRUE(stopped.NextLine("step=2 ")) << stopped.output();

  stopped.Signal(GetParam());

  EXPECT_EQ(stopped.Finish(), kStopped) << stopped.output();
  EXPECT_THAT(stopped.output(), HasSubstr(GetParam() == SIGINT ? "SIGINT: ending after" : "SIGTERM: ending after"));
  const std::uint64_t last = stopped.losses().rbegin()->first;
  const auto newest = NewestCheckpoint(root / "stopped");
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->info.step, last);
  EXPECT_THAT(stopped.output(), HasSubstr("stopped step=" + std::to_string(last) + " "));
  const std::string steps = std::to_string(last + 3);
  TrainingProcess resumed(arguments("stopped", steps));
  ASSERT_EQ(resumed.Finish(), 0) << resumed.output();
  TrainingProcess whole(arguments("whole", steps));
  ASSERT_EQ(whole.Finish(), 0) << whole.output();
  EXPECT_EQ(resumed.losses().size(), 3U);
  for (const auto& [step, loss] : resumed.losses()) EXPECT_EQ(loss, whole.losses().at(step)) << step;
}

INSTANTIATE_TEST_SUITE_P(Signals, StoppedTrainer, testing::Values(SIGTERM, SIGINT),
                         [](const testing::TestParamInfo<int>& signal) {
                           return signal.param == SIGINT ? "SIGINT" : "SIGTERM";
                         });

TEST(Trainer, TwoSignalsAtOnceAreOneRequest) {
  const TempDir root;
  TrainingProcess training({"--steps", "1000000", "--checkpoint-dir", root.path()});
  ASSERT_TRUE(training.NextLine("step=")) << training.output();

  training.Signal(SIGTERM);
  training.Signal(SIGTERM);

  EXPECT_EQ(training.Finish(), kStopped) << training.output();
}

TEST(Trainer, EndsBySignalIfTheGracePeriodIsTooShort) {
  const TempDir root;
  TrainingProcess training({"--steps", "1000000", "--every", "1", "--grace", "0", "--checkpoint-dir", root.path()});
  // At most two saves are in flight, so the loop has recorded the first one's end by then.
  ASSERT_TRUE(training.NextLine("durable step=4")) << training.output();

  training.Signal(SIGTERM);

  EXPECT_EQ(training.Finish(), -SIGTERM);
  EXPECT_THAT(training.output(), HasSubstr("SIGTERM: ending at once: no checkpoint is possible within --grace 0 s"));
}

TEST(Trainer, ReportsAStopWithoutACheckpointFolder) {
  const TempDir root;
  TrainingProcess training({"--steps", "1000000", "--report", root / "report.json"});
  ASSERT_TRUE(training.NextLine("step=")) << training.output();

  training.Signal(SIGTERM);

  EXPECT_EQ(training.Finish(), 1);
  EXPECT_THAT(training.output(), HasSubstr("nothing is saved without --checkpoint-dir"));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(root / "report.json"))["stopped_by"], "SIGTERM");
}

/// A trainer whose first step never ends, after a signal to end after that step.
class EndlessStep : public testing::Test {
 protected:
  void Start(const std::string& grace) {
    bool waits = false;
    // A signal before the step has begun ends the process at once.
    for (int attempts = 0; attempts < 20 && !waits; ++attempts) {
      training_ = std::make_unique<TrainingProcess>(std::vector<std::string>{
          "--accumulate", "1000000000", "--grace", grace, "--checkpoint-dir", root_.path(), "--resume"});
      ASSERT_TRUE(training_->NextLine("fresh start")) << training_->output();
      training_->Signal(SIGINT);
      const auto line = training_->NextLine("SIGINT: ");
      waits = line && line->find("after a checkpoint") != std::string::npos;
    }
    ASSERT_TRUE(waits) << training_->output();
  }

  const TempDir root_;
  std::unique_ptr<TrainingProcess> training_;
};

TEST_F(EndlessStep, IsEndedByASecondSignal) {
  Start("1000");
  EXPECT_FALSE(training_->NextLine(std::chrono::milliseconds(1100)));  // Later than what counts as the same request.

  training_->Signal(SIGTERM);

  EXPECT_EQ(training_->Finish(), -SIGTERM) << training_->output();
  EXPECT_EQ(NewestCheckpoint(root_.path()).status().code(), StatusCode::kNotFound);
}

TEST_F(EndlessStep, IsEndedAfterTheGracePeriod) {
  Start("1");

  EXPECT_EQ(training_->Finish(), -SIGINT) << training_->output();
  EXPECT_THAT(training_->output(), HasSubstr("SIGINT: the grace period is over"));
}

}  // namespace
}  // namespace cairn::trainer
