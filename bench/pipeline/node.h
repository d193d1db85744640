#pragma once

#include "bench/pipeline/pipeline_flags.h"
#include "cairn/status.h"

namespace cairn::bench {

/// One node's run: trains its stage, then restores what both nodes saved last, and compares. Stage 0 also prints the
/// row; on hosts of their own both do. Corrupt if what was restored is not what was saved; another error soon after the
/// other node has gone.
Status RunNode(const PipelineFlags& flags);

}  // namespace cairn::bench
