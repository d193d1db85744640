#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/status.h"

namespace cairn {

/// Whether `name` matches `pattern`: * is any text, ? one character (a UTF-8 code point). A name always matches itself.
[[nodiscard]] bool MatchesPattern(std::string_view pattern, std::string_view name);

/// Indices of the table's entries that match a name or pattern of `names`, ascending; all if `names` is empty.
/// InvalidArgument for a pattern that matches nothing or is not valid UTF-8.
[[nodiscard]] Result<std::vector<std::uint32_t>> SelectEntries(const TensorTable& table,
                                                               const std::vector<std::string>& names);

}  // namespace cairn
