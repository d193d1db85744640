#include "base/utf8.h"

#include <cstdint>

namespace cairn {

bool IsUtf8(std::string_view text) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = s + text.size();
  while (s < end) {
    if (*s < 0x80) {
      ++s;
      continue;
    }
    int more = 0;
    std::uint32_t code = 0;
    if ((*s & 0xe0) == 0xc0) {
      more = 1;
      code = *s & 0x1f;
    } else if ((*s & 0xf0) == 0xe0) {
      more = 2;
      code = *s & 0x0f;
    } else if ((*s & 0xf8) == 0xf0) {
      more = 3;
      code = *s & 0x07;
    } else {
      return false;
    }
    if (end - s <= more) return false;
    for (int i = 1; i <= more; ++i) {
      if (!ContinuesCharacter(static_cast<char>(s[i]))) return false;
      code = code << 6 | (s[i] & 0x3f);
    }
    constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    s += more + 1;
  }
  return true;
}

}  // namespace cairn
