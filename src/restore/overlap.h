#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "restore/reshard.h"

namespace cairn {

/// Two pieces that share some elements, by index, the lower first. The boxes have elements, are of one tensor, and no
/// two are the same. n pieces cut in d dimensions take n log^d n steps, whatever their boxes: headers may be hostile.
/// `steps` (may be null) is told how many there were.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> FindOverlap(std::span<const SavedPiece> pieces,
                                                                             std::uint64_t* steps = nullptr);

}  // namespace cairn
