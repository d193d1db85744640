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

/// The inputs of a model's loss, by name: "image" and "label" for pictures, "input_ids" for text, also "labels" and
/// "begins" for text streams; see PairsDataset and QuestionsDataset for theirs. On the CPU until the loop moves them.
using Batch = std::map<std::string, at::Tensor>;

enum class DataKind : std::uint8_t {
  kPictures,
  /// Independent samples of text, in any order.
  kText,
  /// Text in which each row of a batch continues the same row of the previous batch.
  kTextStreams,
  /// Pairs of pieces of text.
  kPairs,
  kQuestions,
};

/// The properties of data that a model must fit.
struct DataShape {
  DataKind kind = DataKind::kPictures;
  /// Number of labels; for text the vocabulary size: every token's number is below it.
  std::int64_t classes = 0;
  /// For text: tokens in a sample.
  std::int64_t sequence = 0;
  /// For text streams: number of rows, equal to the batch size.
  std::int64_t rows = 0;
  /// For text: the special tokens.
  SpecialTokens special;
};

/// Numbered samples. `read` always returns the same batch for the same numbers.
struct Dataset {
  /// A run resumes only with data of the same name.
  std::string name;
  DataShape shape;
  std::uint64_t size = 0;
  Order order = Order::kShuffled;
  std::function<Batch(std::span<const std::uint64_t> samples)> read;
};

/// What training requires of its data.
struct DataRequest {
  /// The value of --data.
  std::string what;
  /// The kinds that the model accepts, at least one. The data decides which is used.
  std::span<const DataKind> kinds;
  /// For text: tokens in a sample.
  std::int64_t sequence = 0;
  /// Samples in one read.
  std::uint64_t batch = 1;
};

/// Opens "digits", "synthetic" (of the first kind), or a folder made by scripts/prepare-data. Throws
/// std::runtime_error, naming expected and found.
Dataset OpenDataset(const DataRequest& request);

/// The handwritten digits: "image" [n, 3, 32, 32], "label" [n].
Dataset DigitsDataset();
/// A folder made by `scripts/prepare-data pictures`: "image" [n, 3, 224, 224], "label" [n].
Dataset PicturesDataset(const std::string& folder);
/// Noise in ImageNet's shapes: "image" [n, 3, 224, 224], "label" [n], 1000 classes.
Dataset SyntheticPictures();
/// "input_ids" [n, sequence]. Tokens after the last whole sample are left out.
Dataset TextDataset(const Tokens& tokens, std::int64_t sequence);
/// The text in `rows` rows of equal length, one for each row of the batch: sample r + i * rows is the i-th segment of
/// row r. "input_ids" and, shifted by one token, "labels", both [n, sequence]; "begins" [n], whether the segment is its
/// row's first. Tokens after the last whole segments are left out.
Dataset TextStreams(const Tokens& tokens, std::int64_t sequence, std::uint64_t rows);
/// [CLS] A [SEP] B [SEP]: "input_ids" and "token_type_ids" (0 to the first [SEP], then 1), both [n, sequence], and
/// "next_sentence_label" [n]: 0 if B is the text that follows A, 1 if B comes from elsewhere, as in every other sample.
/// The sample's number decides where A ends and where B comes from.
Dataset PairsDataset(const Tokens& tokens, std::int64_t sequence);
/// A folder made by `scripts/prepare-data squad`: [CLS] question [SEP] context [SEP], padded with [PAD] to its sequence
/// length. "input_ids", "token_type_ids" (1 from the context to the last [SEP]) and "attention_mask" (false for [PAD]),
/// all [n, sequence]; "start_positions" and "end_positions" [n], the answer's first and last token, or 0 ([CLS]) if
/// there is no answer.
Dataset QuestionsDataset(const std::string& folder);

}  // namespace cairn::trainer
