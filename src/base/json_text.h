#pragma once

#include <string>
#include <string_view>

namespace cairn {

/// Appends `text` as a JSON string, quotes included. `text` is UTF-8; non-ASCII characters are copied unchanged.
void AppendJsonString(std::string& out, std::string_view text);

/// Whether `text` is exactly one JSON value in UTF-8. Space around it is allowed.
[[nodiscard]] bool IsJson(std::string_view text);

}  // namespace cairn
