#pragma once

#include <string>
#include <string_view>

namespace cairn {

/// Appends `text` as a JSON string, quotes included. `text` is UTF-8; non-ASCII characters are copied unchanged.
void AppendJsonString(std::string& out, std::string_view text);

/// Whether `text` is exactly one JSON value in UTF-8. Space around it is allowed.
[[nodiscard]] bool IsJson(std::string_view text);

/// Whether arrays and objects of this JSON are nested so deeply that printing or copying it could overflow the stack,
/// because nlohmann::json recurses there. It needs no valid JSON.
[[nodiscard]] bool IsNestedTooDeeply(std::string_view text);

/// Levels of JSON that are accepted.
inline constexpr int kMostJsonLevels = 100;

}  // namespace cairn
