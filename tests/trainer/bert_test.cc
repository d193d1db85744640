// Training BERT: the contents of the checkpoints, and what is refused before training starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
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

using Shape = std::vector<std::int64_t>;

/// 300 tokens with a vocabulary of 40, and a BERT just large enough for them in pairs of 16.
class BertTrainer : public ::testing::Test {
 protected:
  BertTrainer() { WriteText(text_, MakeTokens(300, 40), 40, kSpecialTokens); }

  /// The flags of a short training, overridden by `flags`; the last of two equal `sizes` counts.
  [[nodiscard]] std::vector<std::string> Arguments(std::map<std::string, std::string> flags = {},
                                                   const std::vector<std::string>& sizes = {}) const {
    flags.insert({{"--model", "bert-base"}, {"--data", text_}, {"--sequence", "16"}, {"--steps", "2"}});
    std::vector<std::string> all;
    for (const auto& [flag, value] : flags) all.insert(all.end(), {flag, value});
    all.insert(all.end(),
               {"--size", "hidden=8", "layers=2", "heads=2", "intermediate=16", "vocabulary=40", "positions=16"});
    all.insert(all.end(), sizes.begin(), sizes.end());
    return all;
  }
  /// The shapes of the newest checkpoint's weights.
  [[nodiscard]] std::map<std::string, Shape> Shapes() const {
    const auto details = NewestCheckpoint(root_ / "run");
    EXPECT_TRUE(details.ok()) << details.status();
    std::map<std::string, Shape> shapes;
    for (const TensorInfo& tensor : details->tensors) {
      if (!tensor.name.starts_with("optimizer.") && !tensor.name.starts_with("rng."))
        shapes[tensor.name] = tensor.shape;
    }
    return shapes;
  }

  const TempDir root_;
  const std::string text_ = root_ / "text";
};

TEST_F(BertTrainer, CheckpointUsesTheReferenceNames) {
  TrainingProcess training(Arguments({{"--checkpoint-dir", root_ / "run"}}));
  ASSERT_EQ(training.Finish(), 0) << training.output();

  auto shapes = Shapes();

  EXPECT_EQ(shapes["bert.embeddings.word_embeddings.weight"], (Shape{40, 8}));
  EXPECT_EQ(shapes["bert.embeddings.position_embeddings.weight"], (Shape{16, 8}));
  EXPECT_EQ(shapes["bert.embeddings.token_type_embeddings.weight"], (Shape{2, 8}));
  EXPECT_EQ(shapes["bert.encoder.layer.1.attention.self.query.weight"], (Shape{8, 8}));
  EXPECT_EQ(shapes["bert.encoder.layer.1.attention.output.LayerNorm.weight"], (Shape{8}));
  EXPECT_EQ(shapes["bert.encoder.layer.1.intermediate.dense.weight"], (Shape{16, 8}));
  EXPECT_EQ(shapes["bert.encoder.layer.1.output.dense.weight"], (Shape{8, 16}));
  EXPECT_EQ(shapes["bert.pooler.dense.weight"], (Shape{8, 8}));
  EXPECT_EQ(shapes["cls.predictions.bias"], (Shape{40}));
  EXPECT_EQ(shapes["cls.seq_relationship.weight"], (Shape{2, 8}));
  EXPECT_EQ(shapes.size(), 5U + 2 * 16 + 9);
}

TEST_F(BertTrainer, CheckpointHasTheQuestionHeadForQuestions) {
  WriteQuestions(root_ / "questions", MakeTokens(300, 40), 40, 16);
  TrainingProcess training(Arguments({{"--data", root_ / "questions"}, {"--checkpoint-dir", root_ / "run"}}));
  ASSERT_EQ(training.Finish(), 0) << training.output();

  auto shapes = Shapes();

  EXPECT_EQ(shapes["qa_outputs.weight"], (Shape{2, 8}));
  EXPECT_EQ(shapes["qa_outputs.bias"], (Shape{2}));
  EXPECT_EQ(shapes.size(), 5U + 2 * 16 + 2);
}

TEST_F(BertTrainer, TrainsOnSyntheticPairs) {
  TrainingProcess base(Arguments({{"--data", "synthetic"}}, {"vocabulary=256"}));
  TrainingProcess large(Arguments({{"--data", "synthetic"}, {"--model", "bert-large"}}, {"vocabulary=256"}));

  EXPECT_EQ(base.Finish(), 0) << base.output();
  EXPECT_EQ(large.Finish(), 0) << large.output();
  EXPECT_EQ(large.losses().size(), 2U);
}

TEST_F(BertTrainer, TrainsWithBatchesWithoutAMaskedToken) {
  // With four samples of two words each, about one batch in three has no masked token.
  TrainingProcess training(Arguments({{"--sequence", "5"}, {"--steps", "30"}}));

  EXPECT_EQ(training.Finish(), 0) << training.output();
  EXPECT_EQ(training.losses().size(), 30U);
}

TEST_F(BertTrainer, NamesTheMissingSpecialToken) {
  for (const char* name : {"[CLS]", "[SEP]", "[MASK]"}) {
    auto special = kSpecialTokens;
    special.erase(name);
    WriteText(text_, MakeTokens(300, 40), 40, special);
    ExpectRefused(Arguments(), text_ + "/data.json: special_tokens: expected " + name + ", which the model needs");
  }
  WriteText(text_, MakeTokens(300, 40), 40);
  ExpectRefused(Arguments(), text_ + "/data.json: special_tokens: expected [MASK]");
}

TEST_F(BertTrainer, RefusesQuestionsThatDoNotFit) {
  const std::string questions = root_ / "questions";
  WriteQuestions(questions, MakeTokens(300, 40), 40, 17);
  ExpectRefused(Arguments({{"--data", questions}}),
                "the data's samples have 17 tokens (--sequence), the model 16 positions");
  ExpectRefused(Arguments({{"--data", questions}, {"--model", "opt-125m"}}),
                "expected text for this model, found questions");

  WriteQuestions(questions, MakeTokens(300, 40), 40, 16);
  auto about = nlohmann::json::parse(std::ifstream(questions + "/data.json"));
  about["special_tokens"].erase("[PAD]");
  std::ofstream(questions + "/data.json") << about;
  ExpectRefused(Arguments({{"--data", questions}}),
                questions + "/data.json: special_tokens: expected [PAD], found none");
}

TEST_F(BertTrainer, RefusesAModelThatTheDataDoesNotFit) {
  ExpectRefused(Arguments({{"--data", "digits"}}), "expected text or questions for this model, found pictures");
  ExpectRefused(Arguments({{"--sequence", "17"}}),
                "the data's samples have 17 tokens (--sequence), the model 16 positions");
  ExpectRefused(Arguments({{"--sequence", "4"}}), "--sequence 4: expected at least 5, [CLS] A [SEP] B [SEP]");
  ExpectRefused(Arguments({{"--sequence", "200"}}), "data.json: tokens: expected at least 394, two samples of");
  ExpectRefused(Arguments({}, {"vocabulary=39"}), "the data's vocabulary has 40 tokens, the model's 39");
  ExpectRefused(Arguments({}, {"heads=3"}), "size hidden: expected a multiple of heads, 3, found 8");
  ExpectRefused(Arguments({}, {"types=1"}), "size types: expected at least 2");
  ExpectRefused(Arguments({}, {"ffn=2"}), "--size ffn: unknown size; this model has: hidden");
}

TEST_F(BertTrainer, RefusesACheckpointWithOtherPairs) {
  TrainingProcess first(Arguments({{"--checkpoint-dir", root_ / "run"}}));
  ASSERT_EQ(first.Finish(), 0) << first.output();
  auto arguments = Arguments({{"--checkpoint-dir", root_ / "run"}, {"--sequence", "8"}});
  arguments.push_back("--resume");

  ExpectRefused(arguments, "in pairs of 16\", this run's \"text crc32:");
}

}  // namespace
}  // namespace cairn::trainer
