#include "data/tokens.h"

#include <memory>
#include <stdexcept>

#include "data/synthetic.h"
#include "data/token_file.h"

namespace cairn::trainer {

std::int64_t Tokens::Special(const std::string& of) const {
  const auto at = special.find(of);
  if (at != special.end()) return at->second;
  throw std::runtime_error(path + ": special_tokens: expected " + of +
                           ", which the model needs, found none: does the tokenizer have BERT's special tokens?");
}

Tokens PreparedTokens(const std::string& folder) {
  const auto file = std::make_shared<const TokenFile>(folder);
  return {.name = "text " + file->checksum(),
          .path = folder + "/data.json",
          .size = file->size(),
          .vocabulary = file->vocabulary(),
          .special = file->special(),
          .read = [file](std::uint64_t first, std::span<std::int64_t> out) { file->Read(first, out); }};
}

Tokens SyntheticTokens() {
  constexpr std::uint64_t kTokens = std::uint64_t{1} << 22;
  constexpr std::uint64_t kVocabulary = 256;  // Small enough for every model.
  const SpecialTokens special = {{"[PAD]", 0}, {"[UNK]", 1}, {"[CLS]", 2}, {"[SEP]", 3}, {"[MASK]", 4}};
  const auto read = [first_word = special.size()](std::uint64_t first, std::span<std::int64_t> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::int64_t>(first_word + Noise(first + i) % (kVocabulary - first_word));
    }
  };
  return {.name = "synthetic text",
          .path = "synthetic",
          .size = kTokens,
          .vocabulary = kVocabulary,
          .special = special,
          .read = read};
}

}  // namespace cairn::trainer
