#pragma once

#include "device/cuda_context.h"
#include "device/cuda_copy_plan.h"

namespace cairn {

/// Enqueues the plan's copies in a stream of the context, which is current: in one batch where the driver takes
/// batches. The driver may change the plan's arrays. On failure, some of the copies may be under way.
[[nodiscard]] Status EnqueueCopies(const CudaContext& context, CudaCopyPlan& plan, CopyDirection direction,
                                   CUstream lane);

}  // namespace cairn
