#include "data/tokens.h"

#include <memory>

#include "data/synthetic.h"
#include "data/token_file.h"

namespace cairn::trainer {

Tokens PreparedTokens(const std::string& folder) {
  const auto file = std::make_shared<const TokenFile>(folder);
  return {.name = "text " + file->checksum(),
          .path = folder + "/data.json",
          .size = file->size(),
          .vocabulary = file->vocabulary(),
          .read = [file](std::uint64_t first, std::span<std::int64_t> out) { file->Read(first, out); }};
}

Tokens SyntheticTokens() {
  constexpr std::uint64_t kTokens = std::uint64_t{1} << 22;
  constexpr std::uint64_t kVocabulary = 256;  // Small, so that every model has it.
  const auto read = [](std::uint64_t first, std::span<std::int64_t> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(Noise(first + i) % kVocabulary);
  };
  return {.name = "synthetic text", .path = "synthetic", .size = kTokens, .vocabulary = kVocabulary, .read = read};
}

}  // namespace cairn::trainer
