// What the trainer reports and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "cairn/cairn.h"
#include "testing/temp_dir.h"
#include "trainer/training_process.h"

namespace cairn::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Trainer, CheckpointUsesTheReferenceNames) {
  const TempDir root;
  TrainingProcess training({"--steps", "2", "--every", "2", "--checkpoint-dir", root.path()});
  ASSERT_EQ(training.Finish(), 0) << training.output();

  const auto details = NewestCheckpoint(root.path());

  ASSERT_TRUE(details.ok()) << details.status();
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const TensorInfo& tensor : details->tensors) shapes[tensor.name] = tensor.shape;
  // torchvision's names for VGG-16, with width 2 instead of 64.
  EXPECT_EQ(shapes["features.0.weight"], (std::vector<std::int64_t>{2, 3, 3, 3}));
  EXPECT_EQ(shapes["features.28.weight"], (std::vector<std::int64_t>{16, 16, 3, 3}));
  EXPECT_EQ(shapes["classifier.0.weight"], (std::vector<std::int64_t>{128, 16 * 49}));
  EXPECT_EQ(shapes["classifier.6.bias"], (std::vector<std::int64_t>{10}));
  EXPECT_EQ(shapes["optimizer.momentum.classifier.6.bias"], (std::vector<std::int64_t>{10}));
  EXPECT_EQ(shapes.size(), 32U * 2);
  const Values& values = details->values.at(0);
  EXPECT_EQ(values.at("step"), Value(std::int64_t{2}));
  EXPECT_EQ(values.at("position"), Value(std::int64_t{8}));
  EXPECT_EQ(values.at("epoch"), Value(std::int64_t{0}));
}

TEST(Trainer, ReportHasEachStepAndSave) {
  const TempDir root;
  TrainingProcess training(
      {"--steps", "5", "--every", "2", "--checkpoint-dir", root / "ckpt", "--report", root / "report.json"});
  ASSERT_EQ(training.Finish(), 0) << training.output();

  const auto report = nlohmann::json::parse(std::ifstream(root / "report.json"));

  ASSERT_EQ(report["steps"].size(), 5U);
  ASSERT_EQ(report["saves"].size(), 3U);  // Steps 2 and 4, and 5 as the last.
  EXPECT_EQ(report["saves"][2]["step"], 5);
  EXPECT_EQ(report["saves"][2]["phase"], "durable");
  EXPECT_GT(report["saves"][2]["durable_seconds"], 0);
  EXPECT_EQ(report["first_loss"], report["steps"][0]["loss"]);
  EXPECT_GE(report["stall_seconds"], 0);
  EXPECT_GE(report["engine_cpu_seconds"], 0);
  EXPECT_GT(report["steps"][4]["model_seconds"], 0);
  EXPECT_LT(report["steps"][4]["model_seconds"], report["steps"][4]["seconds"]);
  EXPECT_EQ(report["steps"][0]["saves_in_flight"], 0);
  EXPECT_EQ(report["weights_crc64"].get<std::string>().size(), 16U);
}

TEST(Trainer, Bf16WeightsHaveFp32MastersAndMoments) {
  const TempDir root;
  TrainingProcess training(
      {"--steps", "1", "--precision", "bf16", "--optimizer", "adamw", "--checkpoint-dir", root.path()});
  ASSERT_EQ(training.Finish(), 0) << training.output();

  const auto details = NewestCheckpoint(root.path());

  ASSERT_TRUE(details.ok()) << details.status();
  std::map<std::string, DType> dtypes;
  for (const TensorInfo& tensor : details->tensors) dtypes[tensor.name] = tensor.dtype;
  EXPECT_EQ(dtypes.at("classifier.6.weight"), DType::kBF16);
  for (const char* what : {"master", "exp_avg", "exp_avg_sq"}) {
    EXPECT_EQ(dtypes.at(std::string("optimizer.") + what + ".classifier.6.weight"), DType::kF32) << what;
  }
  TrainingProcess other({"--steps", "2", "--optimizer", "adamw", "--checkpoint-dir", root.path(), "--resume"});
  EXPECT_EQ(other.Finish(), 1);
  EXPECT_THAT(other.output(), HasSubstr("the checkpoint's precision is \"bf16\", this run's \"fp32\""));
}

TEST(Trainer, LearningRateFollowsTheSchedule) {
  const TempDir root;
  TrainingProcess training(
      {"--steps", "4", "--lr", "0.5", "--warmup", "2", "--decay", "linear", "--report", root / "report.json"});
  ASSERT_EQ(training.Finish(), 0) << training.output();

  const auto report = nlohmann::json::parse(std::ifstream(root / "report.json"));

  std::vector<double> rates;
  for (const auto& step : report["steps"]) rates.push_back(step["learning_rate"]);
  EXPECT_EQ(rates, (std::vector<double>{0.25, 0.5, 0.5, 0.25}));
}

TEST(Trainer, ClippingScalesOnlyGradientsAboveTheLimit) {
  const auto losses = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"--steps", "4", "--lr", "0.1"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    TrainingProcess training(all);
    EXPECT_EQ(training.Finish(), 0) << training.output();
    return training.losses();
  };

  const auto free = losses({});

  EXPECT_EQ(losses({"--clip", "1e9"}), free);
  EXPECT_NE(losses({"--clip", "1e-3"}), free);
}

TEST(Trainer, AccumulationUsesSeveralBatchesInOneStep) {
  const TempDir root;
  TrainingProcess training({"--steps", "2", "--accumulate", "3", "--checkpoint-dir", root.path()});
  ASSERT_EQ(training.Finish(), 0) << training.output();

  const auto details = NewestCheckpoint(root.path());

  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->values.at(0).at("position"), Value(std::int64_t{2 * 3 * 4}));
}

TEST(Trainer, RefusesARootWithCheckpointsWithoutResume) {
  const TempDir root;
  TrainingProcess first({"--steps", "1", "--checkpoint-dir", root.path()});
  ASSERT_EQ(first.Finish(), 0) << first.output();

  TrainingProcess second({"--steps", "2", "--checkpoint-dir", root.path()});

  EXPECT_EQ(second.Finish(), 1);
  EXPECT_THAT(second.output(), HasSubstr("--resume"));
}

TEST(Trainer, RefusesTheCheckpointOfAnotherOptimizer) {
  const TempDir root;
  TrainingProcess first({"--steps", "1", "--checkpoint-dir", root.path()});
  ASSERT_EQ(first.Finish(), 0) << first.output();

  TrainingProcess second({"--steps", "2", "--optimizer", "adamw", "--checkpoint-dir", root.path(), "--resume"});

  EXPECT_EQ(second.Finish(), 1);
  EXPECT_THAT(second.output(), HasSubstr("the checkpoint's optimizer is \"sgd\", this run's \"adamw\""));
}

TEST(Trainer, NamesUnknownModelsDataAndSizes) {
  TrainingProcess model({"--model", "resnet"});
  EXPECT_EQ(model.Finish(), 1);
  EXPECT_THAT(model.output(), HasSubstr("resnet: unknown; known are: vgg16 transformer-xl "));

  TrainingProcess data({"--data", "/no/such/folder"});
  EXPECT_EQ(data.Finish(), 1);
  EXPECT_THAT(data.output(), HasSubstr("/no/such/folder"));

  TrainingProcess size({"--size", "depth=3"});
  EXPECT_EQ(size.Finish(), 1);
  EXPECT_THAT(size.output(), HasSubstr("depth: unknown size; this model has: width"));

  TrainingProcess flag({"--no-such-flag"});
  EXPECT_EQ(flag.Finish(), 2);
}

TEST(Trainer, NeverSavesADivergedStep) {
  const TempDir root;
  TrainingProcess training({"--steps", "20", "--every", "1", "--lr", "1e30", "--checkpoint-dir", root.path()});
  EXPECT_EQ(training.Finish(), 1);
  EXPECT_THAT(training.output(), HasSubstr("the loss is not finite"));

  const auto details = NewestCheckpoint(root.path());

  ASSERT_TRUE(details.ok()) << details.status();
  EXPECT_EQ(details->info.step, training.losses().size());
  for (const auto& [step, loss] : training.losses()) EXPECT_THAT(loss, Not(HasSubstr("nan"))) << step;
}

TEST(Trainer, WarnsIfResumingIsNotBitExact) {
  const TempDir root;
  TrainingProcess first({"--steps", "1", "--checkpoint-dir", root.path()});
  ASSERT_EQ(first.Finish(), 0) << first.output();

  TrainingProcess second({"--steps", "2", "--threads", "2", "--checkpoint-dir", root.path(), "--resume"});

  EXPECT_EQ(second.Finish(), 0) << second.output();
  EXPECT_THAT(second.output(),
              HasSubstr("warning: the checkpoint's threads is \"1\", this run's \"2\": the resumed run will "
                        "not be bit-exact"));
}

TEST(Trainer, TakesThePublishedSizesOfModelsByAnyOfTheirNames) {
  for (const auto& [model, why] : {std::pair{"bert-huge-uncased", "of heads, 7, found 2048"},
                                   {"bloom-7b", "of heads, 7, found 4096"},
                                   {"opt-350m", "of heads, 7, found 1024"},
                                   {"gpt3-xl", "--model gpt3-xl: a state only, for cairn plan and bench_training"}}) {
    ExpectRefused({"--steps", "1", "--data", "synthetic", "--model", model, "--size", "heads=7"}, why);
  }
}

TEST(Trainer, RefusesTheCheckpointOfAnotherModel) {
  const TempDir root;
  TrainingProcess first({"--steps", "1", "--checkpoint-dir", root.path()});
  ASSERT_EQ(first.Finish(), 0) << first.output();

  ExpectRefused({"--steps", "2", "--size", "width=3", "--model", "vgg16", "--checkpoint-dir", root.path(), "--resume"},
                "the checkpoint's sizes is \"width=2\", this run's \"width=3\"");
  ExpectRefused({"--steps", "2", "--model", "opt-125m", "--data", "synthetic", "--size", "hidden=8", "layers=1",
                 "heads=1", "ffn=8", "vocabulary=300", "--checkpoint-dir", root.path(), "--resume"},
                "the checkpoint's model is \"vgg16\", this run's \"opt-125m\"");
}

TEST(Trainer, NamesAnUnavailableDevice) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has a GPU";

  ExpectRefused({"--device", "cuda"}, "--device cuda: ");
}

TEST(Trainer, ReportsAModelTooLargeForMemory) {
  TrainingProcess training({"--size", "width=1000000"});

  EXPECT_EQ(training.Finish(), 1);
  EXPECT_THAT(training.output(), HasSubstr("can't allocate memory: you tried to allocate"));
  EXPECT_THAT(training.output(), Not(HasSubstr("frame #")));
}

}  // namespace
}  // namespace cairn::trainer
