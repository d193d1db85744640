#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/tokens.h"
#include "json_file.h"
#include "mapped_file.h"

namespace cairn::trainer {

/// A folder that `scripts/prepare-data` wrote: tokens.bin, mapped, and data.json, which says what is in it.
class TokenFile {
 public:
  /// Reads every token once: throws std::runtime_error, naming file and field, where kind, size, checksum or one
  /// token's number is not as data.json says.
  explicit TokenFile(const std::string& folder, const char* kind = "text");

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t vocabulary() const { return vocabulary_; }
  /// Of tokens.bin.
  [[nodiscard]] const std::string& checksum() const { return checksum_; }
  /// As data.json has them; none where it has not the field.
  [[nodiscard]] const SpecialTokens& special() const { return special_; }
  /// The tokens from the `first` on, as many as `out` takes; all of them must be there.
  void Read(std::uint64_t first, std::span<std::int64_t> out) const;

 private:
  TokenFile(const JsonFile& about, const std::string& path, const std::string& kind);
  void CheckBytes(const JsonFile& about, const std::string& path) const;
  /// Calls `with` with the tokens, a span of what they are stored as.
  template <typename With>
  auto WithTokens(const With& with) const;

  MappedFile file_;
  std::uint64_t size_;
  std::uint64_t vocabulary_;
  std::uint64_t width_;  ///< Bytes of a token, 2 or 4.
  std::string checksum_;
  SpecialTokens special_;
};

}  // namespace cairn::trainer
