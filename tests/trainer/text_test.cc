// Training language models on text: the contents of the checkpoints, and what is refused before training starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "testing/temp_dir.h"
#include "trainer/training_process.h"
#include "trainer/write_text.h"

namespace cairn::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// 300 tokens with a vocabulary of 40, and an OPT just large enough for them in sequences of 16.
class TextTrainer : public ::testing::Test {
 protected:
  TextTrainer() { WriteText(text_, MakeTokens(300, 40), 40); }

  /// The flags of a short training, overridden by `flags`; the last of two equal `sizes` counts.
  [[nodiscard]] std::vector<std::string> Arguments(std::map<std::string, std::string> flags,
                                                   const std::vector<std::string>& sizes = {}) const {
    flags.insert({{"--model", "opt-125m"}, {"--data", text_}, {"--sequence", "16"}, {"--steps", "2"}});
    std::vector<std::string> all;
    for (const auto& [flag, value] : flags) all.insert(all.end(), {flag, value});
    all.insert(all.end(), {"--size", "hidden=8", "layers=2", "heads=2", "ffn=16", "vocabulary=40", "positions=16"});
    all.insert(all.end(), sizes.begin(), sizes.end());
    return all;
  }
  /// Like Arguments, with checkpoints, resuming from the newest.
  [[nodiscard]] std::vector<std::string> Resuming(std::map<std::string, std::string> flags = {}) const {
    flags.insert({"--checkpoint-dir", root_ / "run"});
    std::vector<std::string> all = Arguments(flags);
    all.push_back("--resume");
    return all;
  }
  [[nodiscard]] std::string WriteConfig(const std::string& config) const {
    std::filesystem::create_directories(root_ / "weights");
    std::ofstream(root_ / "weights/config.json") << config;
    return root_ / "weights";
  }

  const TempDir root_;
  const std::string text_ = root_ / "text";
};

TEST_F(TextTrainer, CheckpointUsesOptsReferenceNames) {
  TrainingProcess training(Arguments({{"--checkpoint-dir", root_ / "run"}}, {"embedding=4", "pre_norm=0"}));
  ASSERT_EQ(training.Finish(), 0) << training.output();

  const auto details = NewestCheckpoint(root_ / "run");
  ASSERT_TRUE(details.ok()) << details.status();
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const TensorInfo& tensor : details->tensors) {
    if (tensor.name.starts_with("model.")) shapes[tensor.name] = tensor.shape;
  }
  EXPECT_EQ(shapes["model.decoder.embed_tokens.weight"], (std::vector<std::int64_t>{40, 4}));
  EXPECT_EQ(shapes["model.decoder.embed_positions.weight"], (std::vector<std::int64_t>{18, 8}));
  EXPECT_EQ(shapes["model.decoder.project_in.weight"], (std::vector<std::int64_t>{8, 4}));
  EXPECT_EQ(shapes["model.decoder.project_out.weight"], (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(shapes["model.decoder.layers.1.self_attn.q_proj.weight"], (std::vector<std::int64_t>{8, 8}));
  EXPECT_EQ(shapes["model.decoder.layers.1.fc1.weight"], (std::vector<std::int64_t>{16, 8}));
  EXPECT_EQ(shapes.size(), 4U + 2 * 16);
}

TEST_F(TextTrainer, TrainsOnSyntheticDataOfAnyShape) {
  const std::map<std::string, std::string> noise = {{"--data", "synthetic"}, {"--checkpoint-dir", root_ / "run"}};
  TrainingProcess text(Arguments(noise, {"vocabulary=256"}));
  TrainingProcess pictures({"--model", "vgg16", "--size", "width=1", "--data", "synthetic", "--steps", "1"});

  EXPECT_EQ(text.Finish(), 0) << text.output();
  EXPECT_EQ(text.losses().size(), 2U);
  EXPECT_EQ(pictures.Finish(), 0) << pictures.output();
  ExpectRefused(Arguments({{"--data", "synthetic"}}), "the data's vocabulary has 256 tokens, the model's 40");
}

TEST_F(TextTrainer, ResumesWithTheSameTextInAnotherFolder) {
  TrainingProcess first(Resuming());
  ASSERT_EQ(first.Finish(), 0) << first.output();
  std::filesystem::rename(text_, root_ / "elsewhere");

  TrainingProcess second(Resuming({{"--steps", "3"}, {"--data", root_ / "elsewhere"}}));

  EXPECT_EQ(second.Finish(), 0) << second.output();
  EXPECT_THAT(second.output(), HasSubstr("resumed step=2"));
}

TEST_F(TextTrainer, RefusesACheckpointMadeWithAnotherText) {
  TrainingProcess first(Resuming());
  ASSERT_EQ(first.Finish(), 0) << first.output();

  ExpectRefused(Resuming({{"--sequence", "8"}}), "in sequences of 16\", this run's \"text crc32:");
  WriteText(text_, MakeTokens(301, 40), 40);
  ExpectRefused(Resuming(), "the checkpoint's data is \"text crc32:");
}

TEST_F(TextTrainer, RefusesStreamsWithAnotherNumberOfRows) {
  const auto arguments = [&](const char* steps, const char* rows) {
    return std::vector<std::string>{"--model",     "transformer-xl-base",
                                    "--data",      text_,
                                    "--sequence",  "16",
                                    "--steps",     steps,
                                    "--batch",     rows,
                                    "--size",      "hidden=8",
                                    "layers=1",    "heads=2",
                                    "head_size=4", "ffn=8",
                                    "memory=8",    "vocabulary=40",
                                    "--resume",    "--checkpoint-dir",
                                    root_ / "run"};
  };
  TrainingProcess first(arguments("2", "3"));
  ASSERT_EQ(first.Finish(), 0) << first.output();

  ExpectRefused(arguments("3", "2"), "in 3 rows, by segments of 16\", this run's \"text crc32:");
}

TEST_F(TextTrainer, RefusesAModelThatTheDataDoesNotFit) {
  ExpectRefused(Arguments({{"--data", "digits"}}), "--data digits: expected text for this model, found pictures");
  ExpectRefused(Arguments({{"--model", "vgg16"}}), text_ + ": expected pictures for this model, found text");
  ExpectRefused(Arguments({{"--sequence", "17"}}),
                "the data's samples have 17 tokens (--sequence), the model 16 positions");
  ExpectRefused(Arguments({{"--sequence", "301"}}), "tokens: expected at least --sequence 301, found 300");
  ExpectRefused(Arguments({}, {"vocabulary=39"}), "the data's vocabulary has 40 tokens, the model's 39");
  ExpectRefused(Arguments({}, {"heads=3"}), "size hidden: expected a multiple of heads, 3, found 8");
  ExpectRefused(Arguments({}, {"positions=9223372036854775807"}),
                "--size positions: expected 1 to 268435456, found 92");
  ExpectRefused(Arguments({}, {"hidden=1048576", "vocabulary=268435456"}),
                "out of memory: model.decoder.embed_tokens.weight: expected 1125899 GB available, found ");
  ExpectRefused(Arguments({}, {"pre_norm=2"}), "--size pre_norm: expected 0 or 1, found 2");
  ExpectRefused(Arguments({}, {"width=2"}), "--size width: unknown size; this model has: hidden");
}

TEST_F(TextTrainer, RefusesDataWithAnInvalidToken) {
  WriteText(text_, {1, 2, 40, 3}, 40);

  ExpectRefused(Arguments({}), "tokens.bin: token 2: expected a number below data.json's vocabulary of 40, found 40");
}

TEST_F(TextTrainer, NamesTheInvalidFieldOfAConfig) {
  const auto refused_with = [&](const std::string& config, const std::string& why) {
    ExpectRefused({"--model", "opt-125m", "--data", text_, "--sequence", "16", "--init-from", WriteConfig(config)},
                  why);
  };
  const std::string whole =
      R"("model_type": "opt", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, )"
      R"("vocab_size": 40, "max_position_embeddings": 16, "word_embed_proj_dim": 8, "do_layer_norm_before": true)";

  refused_with("{" + whole, "weights/config.json: expected a JSON object");
  refused_with(R"({"model_type": "gpt2"})",
               "weights/config.json: model_type: expected \"opt\", as for --model, found \"gpt2\"");
  refused_with(R"({"model_type": "opt"})",
               "weights/config.json: hidden_size: expected an unsigned integer, found none");
  refused_with("{" + whole + R"(, "ffn_dim": "16"})",
               "config.json: ffn_dim: expected an unsigned integer, found \"16\"");
  refused_with("{" + whole + R"(, "do_layer_norm_before": 1})",
               "do_layer_norm_before: expected true or false, found 1");
  refused_with("{" + whole + R"(, "activation_function": "gelu"})",
               "activation_function: expected \"relu\", found \"gelu\"");
  refused_with("{" + whole + R"(, "dropout": 0.5})", "config.json: dropout: expected 0.1, found 0.5");
  refused_with("{" + whole + "}",
               "expected model.safetensors or model.safetensors.index.json in this folder, found neither");
  ExpectRefused(Arguments({{"--init-from", root_ / "weights"}}),
                "--size ffn: not allowed with --init-from, whose config.json has the sizes");
  ExpectRefused({"--model", "opt-125m", "--data", text_, "--init-from", root_ / "nowhere"},
                "nowhere/config.json: cannot read the file");
}

}  // namespace
}  // namespace cairn::trainer
