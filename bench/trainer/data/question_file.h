#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace cairn::trainer {

/// A question and what of its context goes with it: [CLS] question [SEP] context [SEP]. Places count from [CLS] on.
struct Feature {
  std::uint32_t length = 0;   ///< Tokens.
  std::uint32_t context = 0;  ///< Where the context begins.
  std::uint32_t start = 0;    ///< The answer's first token; 0, and the last as well, where it is not in this context.
  std::uint32_t end = 0;      ///< The answer's last token.
};

/// A folder that `scripts/prepare-data squad` wrote: the features' tokens as TokenFile has them, features.bin, mapped,
/// and data.json, which says what is in both.
class QuestionFile {
 public:
  /// Reads everything once: throws std::runtime_error, naming file and field, where a size, a checksum, a token or a
  /// feature is not as it must be.
  explicit QuestionFile(const std::string& folder);

  [[nodiscard]] const TokenFile& tokens() const { return tokens_; }
  [[nodiscard]] std::uint64_t size() const { return features_.size(); }
  /// The most tokens that a feature may have.
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  /// Of features.bin.
  [[nodiscard]] const std::string& checksum() const { return checksum_; }
  [[nodiscard]] const Feature& feature(std::uint64_t number) const { return features_[number]; }
  /// A feature's tokens, as many as it has.
  void Read(std::uint64_t number, std::span<std::int64_t> out) const { tokens_.Read(begins_[number], out); }

 private:
  QuestionFile(const JsonFile& about, const std::string& folder);
  void CheckFeatures(const std::string& path);

  TokenFile tokens_;
  MappedFile file_;
  std::uint64_t sequence_;
  std::string checksum_;
  std::span<const Feature> features_;
  std::vector<std::uint64_t> begins_;  ///< Of each feature's tokens.
};

}  // namespace cairn::trainer
