#pragma once

#include "device/cuda_context.h"
#include "device/cuda_copy_plan.h"

namespace cairn {

/// Enqueues the plan's copies in a stream of the context, which must be current; in one batch if the driver supports
/// it. The driver may change the plan's arrays. On failure some of the copies may be in flight.
[[nodiscard]] Status EnqueueCopies(const CudaContext& context, CudaCopyPlan& plan, CopyDirection direction,
                                   CUstream lane);

}  // namespace cairn
