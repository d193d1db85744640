#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace cairn::trainer {

/// A long row of tokens, for a data set to cut samples out of.
struct Tokens {
  std::string name;  ///< By what they are, not by where they lie: the same tokens elsewhere have the same name.
  std::string path;  ///< What an error about them names.
  std::uint64_t size = 0;
  std::uint64_t vocabulary = 0;  ///< Every token's number lies below it.
  /// The tokens from the `first` on, as many as `out` takes; all of them must be there.
  std::function<void(std::uint64_t first, std::span<std::int64_t> out)> read;
};

/// What `scripts/prepare-data text` made. Throws std::runtime_error, naming file and field, where it is broken.
Tokens PreparedTokens(const std::string& folder);
/// Noise: 4 Mi tokens of a vocabulary of 256.
Tokens SyntheticTokens();

}  // namespace cairn::trainer
