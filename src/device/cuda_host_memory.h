#pragma once

#include <cstddef>

#include "device/cuda_context.h"

namespace cairn {

/// Whether the driver knows this address of the host's memory: it is pinned, by anybody, or managed. False if the
/// driver fails.
[[nodiscard]] bool IsDriversMemory(const CudaContext& context, const std::byte* at);

}  // namespace cairn
