#pragma once

#include <string>
#include <string_view>

namespace cairn {

/// Appends `text` as a JSON string, quotes included. `text` is UTF-8; what is not ASCII is written as it is.
void AppendJsonString(std::string& out, std::string_view text);

/// Whether `text` is one JSON value in UTF-8 and nothing else but space around it.
[[nodiscard]] bool IsJson(std::string_view text);

}  // namespace cairn
