#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/status.h"

namespace cairn {

/// Indices of the table's wanted entries, ascending: those that a name or pattern of `names` matches, all where there
/// is none. InvalidArgument for one that matches nothing, or is no text.
[[nodiscard]] Result<std::vector<std::uint32_t>> SelectEntries(const TensorTable& table,
                                                               const std::vector<std::string>& names);

}  // namespace cairn
