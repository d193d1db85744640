#include "base/utf8.h"

#include <cstdint>

namespace cairn {

std::size_t CharacterBytes(std::string_view text) {
  const auto at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (at(0) < 0x80) return 1;
  std::size_t more = 0;
  std::uint32_t code = 0;
  if ((at(0) & 0xe0) == 0xc0) {
    more = 1;
    code = at(0) & 0x1f;
  } else if ((at(0) & 0xf0) == 0xe0) {
    more = 2;
    code = at(0) & 0x0f;
  } else if ((at(0) & 0xf8) == 0xf0) {
    more = 3;
    code = at(0) & 0x07;
  } else {
    return 0;
  }
  if (text.size() <= more) return 0;
  for (std::size_t i = 1; i <= more; ++i) {
    if (!ContinuesCharacter(text[i])) return 0;
    code = code << 6 | (at(i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
  return more + 1;
}

bool IsUtf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = static_cast<unsigned char>(text[at]) < 0x80 ? 1 : CharacterBytes(text.substr(at));
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

bool AppendUtf8(std::string& out, std::uint32_t code) {
  if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
  const auto more = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    more(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    more(6);
    more(0);
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    more(12);
    more(6);
    more(0);
  }
  return true;
}

}  // namespace cairn
