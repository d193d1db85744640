#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cairn/status.h"

namespace cairn {

/// The whole text of a file that a command reads. `what` names its content in messages: "a topology".
///
/// InvalidArgument if it is empty or has more than `most` bytes.
[[nodiscard]] Result<std::string> ReadInputFile(const std::string& path, std::string_view what, std::size_t most);

}  // namespace cairn
