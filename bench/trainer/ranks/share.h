#pragma once

#include <cstdint>
#include <vector>

#include "sampler.h"

namespace cairn::trainer {

/// One rank's share of a draw of all ranks.
struct Share {
  std::vector<std::uint64_t> samples;
  /// The position before it.
  DataPosition from;
};

/// Draws the next `world` * `count` samples and returns the share of `rank`, `count` in a row. All ranks draw at the
/// same time, so that their positions stay the same.
[[nodiscard]] Share NextShare(Sampler& sampler, std::uint64_t count, int rank, int world);

/// A seed for the random generators that differs for each position.
[[nodiscard]] std::uint64_t SeedOf(const DataPosition& position);

}  // namespace cairn::trainer
