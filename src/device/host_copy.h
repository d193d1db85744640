#pragma once

#include <cstdint>

#include "device/device.h"
#include "device/rate_limit.h"

namespace cairn {

/// The sum of its pieces' sizes.
[[nodiscard]] std::uint64_t BatchBytes(const CopyBatch& batch);

/// InvalidArgument for a batch that no device can run: a lane of none, a range outside its tensor, no memory, or sums
/// asked of pieces that do not lie back to back.
[[nodiscard]] Status CheckBatch(const CopyBatch& batch, int lanes);

/// Copies bytes [begin, end) of the batch, counted over its pieces, between tensors and memory that the CPU sees; sums
/// them while they are in the cache where the batch asks for it. `begin` is then a multiple of kChecksumBlock, and
/// `end` one too or the batch's end. `link` (may be null) is what the bytes pass through.
void CopyOnHost(const CopyBatch& batch, std::uint64_t begin, std::uint64_t end, RateLimit* link);

}  // namespace cairn
