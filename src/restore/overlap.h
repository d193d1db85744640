#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "restore/reshard.h"

namespace cairn {

/// Two pieces that share elements, by index, the lower first. All boxes are non-empty, of one tensor, and different.
/// Takes n log^d n steps for n pieces cut in d dimensions, whatever the boxes: headers are untrusted. `steps` (may be
/// null) receives their number.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> FindOverlap(std::span<const SavedPiece> pieces,
                                                                             std::uint64_t* steps = nullptr);

}  // namespace cairn
