#include "base64.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace cairn {
namespace {

constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

void AppendBase64(std::string& out, std::span<const unsigned char> bytes) {
  static const auto pairs = [] {
    std::array<std::array<char, 2>, 4096> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {kBase64Digits[i >> 6], kBase64Digits[i & 63]};
    return all;
  }();
  const std::size_t begin = out.size();
  out.resize(begin + (bytes.size() + 2) / 3 * 4);
  char* to = out.data() + begin;
  std::size_t i = 0;
  for (; i + 3 <= bytes.size(); i += 3, to += 4) {
    const std::uint32_t three = std::uint32_t{bytes[i]} << 16 | std::uint32_t{bytes[i + 1]} << 8 | bytes[i + 2];
    std::memcpy(to, pairs[three >> 12].data(), 2);
    std::memcpy(to + 2, pairs[three & 0xfff].data(), 2);
  }
  if (i == bytes.size()) return;
  const bool two = i + 2 == bytes.size();
  const std::uint32_t last = std::uint32_t{bytes[i]} << 16 | (two ? std::uint32_t{bytes[i + 1]} << 8 : 0);
  std::memcpy(to, pairs[last >> 12].data(), 2);
  to[2] = two ? kBase64Digits[last >> 6 & 63] : '=';
  to[3] = '=';
}

std::optional<std::size_t> Base64Bytes(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  return text.size() / 4 * 3 - (text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
}

bool DecodeBase64(std::string_view text, unsigned char* to) {
  static const auto values = [] {
    std::array<std::uint8_t, 256> all{};
    all.fill(0xff);
    for (std::size_t i = 0; i < kBase64Digits.size(); ++i)
      all[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<std::uint8_t>(i);
    return all;
  }();
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const auto value = [&](std::size_t at) { return std::uint32_t{values[static_cast<unsigned char>(text[at])]}; };
  std::uint32_t bad = 0;
  std::size_t i = 0;
  for (const std::size_t whole = text.size() - (padding != 0 ? 4 : 0); i < whole; i += 4) {
    const std::uint32_t a = value(i);
    const std::uint32_t b = value(i + 1);
    const std::uint32_t c = value(i + 2);
    const std::uint32_t d = value(i + 3);
    bad |= a | b | c | d;
    const std::uint32_t three = a << 18 | b << 12 | c << 6 | d;
    *to++ = static_cast<unsigned char>(three >> 16);
    *to++ = static_cast<unsigned char>(three >> 8);
    *to++ = static_cast<unsigned char>(three);
  }
  if (padding != 0) {
    const std::uint32_t a = value(i);
    const std::uint32_t b = value(i + 1);
    const std::uint32_t c = padding == 2 ? 0 : value(i + 2);
    bad |= a | b | c;
    *to++ = static_cast<unsigned char>(a << 2 | b >> 4);
    if (padding == 1) *to++ = static_cast<unsigned char>(b << 4 | c >> 2);
  }
  return (bad & 0xc0) == 0;
}

}  // namespace cairn
