#include "format/fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/json_text.h"
#include "base/utf8.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{1} << 62;
constexpr std::size_t kLongestQuote = 200;
constexpr std::size_t kLongestList = 16;

}  // namespace

void AppendHex32(std::string& out, std::uint32_t value) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (int shift = 28; shift >= 0; shift -= 4) out += kHex[value >> shift & 15U];
}

std::optional<std::uint32_t> ParseHex32(std::string_view text) {
  if (text.size() != 8) return std::nullopt;
  std::uint32_t value = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      value = value << 4 | static_cast<std::uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value << 4 | static_cast<std::uint32_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

void AppendDecimal(std::string& out, std::uint64_t value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

std::optional<std::uint64_t> ParseDecimal(std::string_view text) {
  if (text.empty() || (text[0] == '0' && text.size() > 1)) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool IsAttemptId(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
}

std::optional<std::uint64_t> TensorBytes(DType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = DTypeSize(dtype);
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) ||
        bytes > kMaxTensorBytes) {
      return std::nullopt;
    }
  }
  return bytes;
}

std::string PartProblem(DType dtype, std::span<const std::int64_t> shape, const TensorPart& part) {
  if (part.global_shape.size() != shape.size() || part.offset.size() != shape.size()) {
    return fmt::format("expected {} dimensions as in its shape, found {} in the global shape and {} in the offset",
                       shape.size(), part.global_shape.size(), part.offset.size());
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::int64_t end = 0;
    if (part.offset[d] < 0 || __builtin_add_overflow(part.offset[d], shape[d], &end) || end > part.global_shape[d]) {
      return fmt::format("expected a part within {}, found offset {} and shape {}", Listed(part.global_shape),
                         Listed(part.offset), Listed(shape));
    }
  }
  if (!TensorBytes(dtype, part.global_shape)) {
    return fmt::format("expected a global shape of at most 2^62 bytes, found {}", Listed(part.global_shape));
  }
  return {};
}

std::string Quoted(std::string_view name) {
  const bool cut = name.size() > kLongestQuote;
  if (cut) {
    std::size_t end = kLongestQuote;
    while (end > 0 && ContinuesCharacter(name[end])) --end;
    name = name.substr(0, end);
  }
  std::string out;
  AppendJsonString(out, name);
  if (cut) out += "...";
  return out;
}

std::string Listed(std::span<const std::int64_t> numbers) {
  const bool cut = numbers.size() > kLongestList;
  return fmt::format("[{}{}]", fmt::join(cut ? numbers.first(kLongestList) : numbers, ", "), cut ? ", ..." : "");
}

}  // namespace cairn
