#pragma once

#include <cstdint>

#include "device/device.h"
#include "device/rate_limit.h"

namespace cairn {

[[nodiscard]] std::uint64_t BatchBytes(const CopyBatch& batch);

/// InvalidArgument for a batch that no device can run: an unknown lane, a range outside its tensor, no memory, or
/// checksums of pieces that do not lie back to back.
[[nodiscard]] Status CheckBatch(const CopyBatch& batch, int lanes);

/// Copies bytes [begin, end) of the batch, counted over its pieces, between tensors and memory that the CPU can access.
/// If the batch asks for checksums, computes those of what it stored; `begin` must then be a multiple of
/// kChecksumBlock, and `end` too unless it is the batch's end. `link` (may be null) limits the rate.
void CopyOnHost(const CopyBatch& batch, std::uint64_t begin, std::uint64_t end, RateLimit* link);

}  // namespace cairn
