#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

void AppendBase64(std::string& out, std::span<const unsigned char> bytes);

/// How many bytes the text stands for; none if it cannot be base64.
[[nodiscard]] std::optional<std::size_t> Base64Bytes(std::string_view text);

/// False if it is not base64. `to` has Base64Bytes of room.
[[nodiscard]] bool DecodeBase64(std::string_view text, unsigned char* to);

}  // namespace cairn
