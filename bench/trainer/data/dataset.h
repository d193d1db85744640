#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "data/tokens.h"
#include "sampler.h"

namespace cairn::trainer {

/// What a model's loss takes, by name: "image" and "label" for pictures, "input_ids" for text and, for streams of it,
/// "labels" and "begins" too; pairs and questions have what their makers below say. On the CPU until the loop moves it.
using Batch = std::map<std::string, at::Tensor>;

enum class DataKind : std::uint8_t {
  kPictures,
  kText,         ///< Samples of it, in any order.
  kTextStreams,  ///< Text of which each row of a batch goes on where that row of the batch before ended.
  kPairs,        ///< Pairs of pieces of text.
  kQuestions,
};

/// What a model must fit.
struct DataShape {
  DataKind kind = DataKind::kPictures;
  std::int64_t classes = 0;   ///< Of labels; of text the vocabulary: every token's number lies below it.
  std::int64_t sequence = 0;  ///< Of text: tokens in a sample.
  std::int64_t rows = 0;      ///< Of streams: how many, which is the batch.
  SpecialTokens special;      ///< Of text, by their names.
};

/// Samples by number. `read` gives the same batch for the same numbers, always.
struct Dataset {
  std::string name;  ///< A checkpoint goes on only with data of the same name.
  DataShape shape;
  std::uint64_t size = 0;
  Order order = Order::kShuffled;
  std::function<Batch(std::span<const std::uint64_t> samples)> read;
};

/// What a training asks of its data.
struct DataRequest {
  std::string what;                 ///< As --data has it.
  std::span<const DataKind> kinds;  ///< What the model learns from, at least one: of several, the one that is there.
  std::int64_t sequence = 0;        ///< Of text: tokens in a sample.
  std::uint64_t batch = 1;          ///< Samples that are read at once.
};

/// "digits", "synthetic" (of the first kind), or a folder that scripts/prepare-data made.
/// Throws std::runtime_error that names what was looked for and found.
Dataset OpenDataset(const DataRequest& request);

/// The handwritten digits: "image" [n, 3, 32, 32], "label" [n].
Dataset DigitsDataset();
/// What `scripts/prepare-data pictures` made: "image" [n, 3, 224, 224], "label" [n].
Dataset PicturesDataset(const std::string& folder);
/// Noise in ImageNet's shapes: "image" [n, 3, 224, 224], "label" [n], 1000 classes.
Dataset SyntheticPictures();
/// "input_ids" [n, sequence]. Tokens after the last whole sample are left out.
Dataset TextDataset(const Tokens& tokens, std::int64_t sequence);
/// The text in `rows` rows of equal length, which a batch continues side by side: sample r + i * rows is row r's i-th
/// segment. "input_ids" and the token after each, "labels", [n, sequence]; "begins" [n], whether the row begins here.
/// Tokens after the last whole segments are left out.
Dataset TextStreams(const Tokens& tokens, std::int64_t sequence, std::uint64_t rows);
/// [CLS] A [SEP] B [SEP]: "input_ids" and "token_type_ids" (0 to the first [SEP], then 1), both [n, sequence], and
/// "next_sentence_label" [n]: 0 where B is the text that follows A, 1 where it is from elsewhere, as in every other
/// sample. Where A ends, and whence a foreign B comes, follows from the sample's number.
Dataset PairsDataset(const Tokens& tokens, std::int64_t sequence);
/// What `scripts/prepare-data squad` made: [CLS] question [SEP] context [SEP], filled up with [PAD] to its own longest.
/// "input_ids", "token_type_ids" (1 from the context to the last [SEP]) and "attention_mask" (false for [PAD]), all [n,
/// sequence]; "start_positions" and "end_positions" [n], the answer's first and last token, or those of [CLS].
Dataset QuestionsDataset(const std::string& folder);

}  // namespace cairn::trainer
