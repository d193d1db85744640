#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace cairn::trainer {

/// The numbers of what a tokenizer adds to a text, by their names, as "[CLS]".
using SpecialTokens = std::map<std::string, std::int64_t>;

/// A long row of tokens, for a data set to cut samples out of.
struct Tokens {
  std::string name;  ///< By what they are, not by where they lie: the same tokens elsewhere have the same name.
  std::string path;  ///< What an error about them names.
  std::uint64_t size = 0;
  std::uint64_t vocabulary = 0;  ///< Every token's number lies below it.
  SpecialTokens special;         ///< Those of BERT's that the tokenizer has.
  /// The tokens from the `first` on, as many as `out` takes; all of them must be there.
  std::function<void(std::uint64_t first, std::span<std::int64_t> out)> read;

  /// The number of the special token of this name. Throws std::runtime_error where there is none.
  [[nodiscard]] std::int64_t Special(const std::string& of) const;
};

/// What `scripts/prepare-data text` made. Throws std::runtime_error, naming file and field, where it is broken.
Tokens PreparedTokens(const std::string& folder);
/// Noise: 4 Mi tokens of a vocabulary of 256, the first five of which are BERT's special ones, and do not occur.
Tokens SyntheticTokens();

}  // namespace cairn::trainer
