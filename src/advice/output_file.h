#pragma once

#include <string>
#include <string_view>

#include "cairn/status.h"

namespace cairn {

/// Whether WriteOutputFile could write there now. Commands that measure for long ask before they begin. Not in the
/// place of a device or a pipe.
[[nodiscard]] Status CheckWritable(const std::string& path);
/// By a rename, so that there is never half of one.
[[nodiscard]] Status WriteOutputFile(const std::string& path, std::string_view text);

}  // namespace cairn
