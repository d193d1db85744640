#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "data/tokens.h"

namespace cairn::trainer {

/// What a model's loss takes, by name: "image" and "label" for pictures, "input_ids" for text. On the CPU until the
/// loop moves it.
using Batch = std::map<std::string, at::Tensor>;

/// Pairs are cut out of text.
enum class DataKind : std::uint8_t { kPictures, kText, kPairs, kQuestions };

/// What a model must fit.
struct DataShape {
  DataKind kind = DataKind::kPictures;
  std::int64_t classes = 0;   ///< Of labels; of text the vocabulary: every token's number lies below it.
  std::int64_t sequence = 0;  ///< Of text: tokens in a sample.
  SpecialTokens special;      ///< Of text, by their names.
};

/// Samples by number. `read` gives the same batch for the same numbers, always.
struct Dataset {
  std::string name;  ///< A checkpoint goes on only with data of the same name.
  DataShape shape;
  std::uint64_t size = 0;
  std::function<Batch(std::span<const std::uint64_t> samples)> read;
};

/// What a training asks of its data.
struct DataRequest {
  std::string what;                 ///< As --data has it.
  std::span<const DataKind> kinds;  ///< What the model learns from, at least one: of several, the one that is there.
  std::int64_t sequence = 0;        ///< Of text: tokens in a sample.
};

/// "digits", "synthetic" (of the first kind), a folder in the ImageNet layout, or one that scripts/prepare-data made.
/// Throws std::runtime_error that names what was looked for and found.
Dataset OpenDataset(const DataRequest& request);

/// The handwritten digits: "image" [n, 3, 32, 32], "label" [n].
Dataset DigitsDataset();
/// FOLDER/CLASS/PICTURE.JPEG, or the same under FOLDER/train: classes are numbered by name. "image" [n, 3, 224, 224].
Dataset ImageFolderDataset(const std::string& folder);
/// Noise in ImageNet's shapes: "image" [n, 3, 224, 224], "label" [n], 1000 classes.
Dataset SyntheticPictures();
/// "input_ids" [n, sequence]. Tokens after the last whole sample are left out.
Dataset TextDataset(const Tokens& tokens, std::int64_t sequence);
/// [CLS] A [SEP] B [SEP]: "input_ids" and "token_type_ids" (0 to the first [SEP], then 1), both [n, sequence], and
/// "next_sentence_label" [n]: 0 where B is the text that follows A, 1 where it is from elsewhere, as in every other
/// sample. Where A ends, and whence a foreign B comes, follows from the sample's number.
Dataset PairsDataset(const Tokens& tokens, std::int64_t sequence);
/// What `scripts/prepare-data squad` made: [CLS] question [SEP] context [SEP], filled up with [PAD] to its own longest.
/// "input_ids", "token_type_ids" (1 from the context to the last [SEP]) and "attention_mask" (false for [PAD]), all [n,
/// sequence]; "start_positions" and "end_positions" [n], the answer's first and last token, or those of [CLS].
Dataset QuestionsDataset(const std::string& folder);

}  // namespace cairn::trainer
