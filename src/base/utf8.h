#pragma once

#include <string_view>

namespace cairn {

/// Whether `text` is well-formed UTF-8 (no surrogates, no overlong forms, nothing above U+10FFFF).
[[nodiscard]] bool IsUtf8(std::string_view text);

/// Whether this byte of a UTF-8 text is not the first of its character.
[[nodiscard]] constexpr bool ContinuesCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

/// Whether this byte is an ASCII control character.
[[nodiscard]] constexpr bool IsControl(char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f; }

}  // namespace cairn
