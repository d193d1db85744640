#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace cairn::trainer {

/// The numbers of a tokenizer's special tokens, by name, for example "[CLS]".
using SpecialTokens = std::map<std::string, std::int64_t>;

/// A long sequence of tokens, from which a data set cuts samples.
struct Tokens {
  /// Identifies the content, not the path: the same tokens elsewhere have the same name.
  std::string name;
  /// For error messages.
  std::string path;
  std::uint64_t size = 0;
  /// Every token's number is below it.
  std::uint64_t vocabulary = 0;
  /// Those of BERT's special tokens that the tokenizer has.
  SpecialTokens special;
  /// Reads out.size() tokens from `first` on; all of them must exist.
  std::function<void(std::uint64_t first, std::span<std::int64_t> out)> read;

  /// The number of the special token of this name. Throws std::runtime_error if there is none.
  [[nodiscard]] std::int64_t Special(const std::string& of) const;
};

/// The tokens of a folder made by `scripts/prepare-data text`. Throws std::runtime_error, naming file and field, if it
/// is damaged.
Tokens PreparedTokens(const std::string& folder);
/// Noise: 4 Mi tokens with a vocabulary of 256. The first five are BERT's special tokens and do not occur.
Tokens SyntheticTokens();

}  // namespace cairn::trainer
