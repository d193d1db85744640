#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace cairn::trainer {

/// A question with a part of its context: [CLS] question [SEP] context [SEP]. Positions count from [CLS].
struct Feature {
  /// Number of tokens.
  std::uint32_t length = 0;
  /// The context's first token.
  std::uint32_t context = 0;
  /// The answer's first token. Like `end`, 0 if the answer is not in this part of the context.
  std::uint32_t start = 0;
  /// The answer's last token.
  std::uint32_t end = 0;
};

/// A folder written by `scripts/prepare-data squad`: the features' tokens as a TokenFile, features.bin (mapped), and
/// data.json, which describes both.
class QuestionFile {
 public:
  /// Reads and checks everything once. Throws std::runtime_error, naming file and field, for an invalid size, checksum,
  /// token or feature.
  explicit QuestionFile(const std::string& folder);

  [[nodiscard]] const TokenFile& tokens() const { return tokens_; }
  [[nodiscard]] std::uint64_t size() const { return features_.size(); }
  /// The maximum number of tokens in a feature.
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  /// The checksum of features.bin.
  [[nodiscard]] const std::string& checksum() const { return checksum_; }
  [[nodiscard]] const Feature& feature(std::uint64_t number) const { return features_[number]; }
  /// Reads a feature's tokens; `out` must have its length.
  void Read(std::uint64_t number, std::span<std::int64_t> out) const { tokens_.Read(begins_[number], out); }

 private:
  QuestionFile(const JsonFile& about, const std::string& folder);
  void CheckFeatures(const std::string& path);

  TokenFile tokens_;
  MappedFile file_;
  std::uint64_t sequence_;
  std::string checksum_;
  std::span<const Feature> features_;
  /// The position of each feature's first token.
  std::vector<std::uint64_t> begins_;
};

}  // namespace cairn::trainer
