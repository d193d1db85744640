#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/tokens.h"
#include "json_file.h"
#include "mapped_file.h"

namespace cairn::trainer {

/// A folder written by `scripts/prepare-data`: tokens.bin (mapped), and data.json, which describes it.
class TokenFile {
 public:
  /// Reads every token once. Throws std::runtime_error, naming file and field, if the kind, the size, the checksum or a
  /// token's number does not match data.json.
  explicit TokenFile(const std::string& folder, const char* kind = "text");

  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t vocabulary() const { return vocabulary_; }
  /// The checksum of tokens.bin.
  [[nodiscard]] const std::string& checksum() const { return checksum_; }
  /// From data.json; empty if the field is missing.
  [[nodiscard]] const SpecialTokens& special() const { return special_; }
  /// Reads out.size() tokens from `first` on; all of them must exist.
  void Read(std::uint64_t first, std::span<std::int64_t> out) const;

 private:
  TokenFile(const JsonFile& about, const std::string& path, const std::string& kind);
  void CheckBytes(const JsonFile& about, const std::string& path) const;
  /// Calls `with` with a span of the tokens in their stored type.
  template <typename With>
  auto WithTokens(const With& with) const;

  MappedFile file_;
  std::uint64_t size_;
  std::uint64_t vocabulary_;
  /// Bytes per token, 2 or 4.
  std::uint64_t width_;
  std::string checksum_;
  SpecialTokens special_;
};

}  // namespace cairn::trainer
