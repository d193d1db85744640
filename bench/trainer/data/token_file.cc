#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace cairn::trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are used in place");

std::uint64_t WidthOf(const JsonFile& about) {
  const std::string dtype = about.Text("dtype");
  if (dtype != "u16" && dtype != "u32") about.Reject("dtype", R"("u16" or "u32")");
  return dtype == "u16" ? 2 : 4;
}

SpecialTokens SpecialOf(const JsonFile& about, std::uint64_t vocabulary) {
  constexpr const char* kKey = "special_tokens";
  SpecialTokens special;
  if (!about.Has(kKey)) return special;
  for (const auto& [name, number] : about.Object(kKey).items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= vocabulary) {
      about.Reject(kKey, "for " + name + " a number below the vocabulary of " + std::to_string(vocabulary));
    }
    special[name] = number.get<std::int64_t>();
  }
  return special;
}

}  // namespace

TokenFile::TokenFile(const std::string& folder, const char* kind)
    : TokenFile(JsonFile(folder + "/data.json"), folder + "/tokens.bin", kind) {}

TokenFile::TokenFile(const JsonFile& about, const std::string& path, const std::string& kind)
    : file_(path),
      size_(about.Count("tokens")),
      vocabulary_(about.Count("vocabulary")),
      width_(WidthOf(about)),
      checksum_(about.Text("checksum")),
      special_(SpecialOf(about, vocabulary_)) {
  if (about.Text("kind") != kind) about.Reject("kind", "\"" + kind + "\"");
  if (vocabulary_ > std::uint64_t{1} << 32) about.Reject("vocabulary", "at most 4294967296");
  CheckBytes(about, path);
}

template <typename With>
auto TokenFile::WithTokens(const With& with) const {
  const void* const data = file_.bytes().data();
  return width_ == 2 ? with(std::span(static_cast<const std::uint16_t*>(data), size_))
                     : with(std::span(static_cast<const std::uint32_t*>(data), size_));
}

void TokenFile::CheckBytes(const JsonFile& about, const std::string& path) const {
  const auto bytes = file_.bytes();
  if (bytes.size() % width_ != 0 || bytes.size() / width_ != size_) {
    throw std::runtime_error(path + ": expected " + std::to_string(size_) + " tokens of " + std::to_string(width_) +
                             " bytes, according to data.json, found " + std::to_string(bytes.size()) + " bytes");
  }
  if (checksum_ != file_.Checksum()) about.Reject("checksum", file_.Checksum() + ", as of tokens.bin");
  WithTokens([&](const auto& tokens) {
    const auto wrong = std::find_if(tokens.begin(), tokens.end(), [&](auto token) { return token >= vocabulary_; });
    if (wrong == tokens.end()) return;
    throw std::runtime_error(path + ": token " + std::to_string(wrong - tokens.begin()) +
                             ": expected a number below data.json's vocabulary of " + std::to_string(vocabulary_) +
                             ", found " + std::to_string(*wrong));
  });
}

void TokenFile::Read(std::uint64_t first, std::span<std::int64_t> out) const {
  WithTokens([&](const auto& tokens) { std::ranges::copy(tokens.subspan(first, out.size()), out.begin()); });
}

}  // namespace cairn::trainer
