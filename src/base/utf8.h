#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

/// How many bytes the first character of a text has that is not empty; 0 if it is not well-formed UTF-8.
[[nodiscard]] std::size_t CharacterBytes(std::string_view text);

/// Whether `text` is well-formed UTF-8 (no surrogates, no overlong forms, nothing above U+10FFFF).
[[nodiscard]] bool IsUtf8(std::string_view text);

/// Appends a character. False, with nothing done, if there is none of this code: a surrogate, or beyond U+10FFFF.
[[nodiscard]] bool AppendUtf8(std::string& out, std::uint32_t code);

/// Whether this byte of a UTF-8 text is not the first of its character.
[[nodiscard]] constexpr bool ContinuesCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

/// Whether this byte is an ASCII control character.
[[nodiscard]] constexpr bool IsControl(char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f; }

}  // namespace cairn
