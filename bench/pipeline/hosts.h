#pragma once

#include "bench/pipeline/pipeline_flags.h"
#include "cairn/status.h"

namespace cairn::bench {

/// This host's node of a run on two hosts (--network hosts), as torchrun's environment says: RANK is the stage, and
/// rank 0 listens at MASTER_PORT of MASTER_ADDR, or at the next one where torchrun's own store has that.
///
/// InvalidArgument if the environment is no such, if the other host was started with another command, or if cairn's
/// directory is not on storage that both share; DeadlineExceeded if the other host does not answer. Nothing has begun
/// then. Later the error is this node's own, with what the other one says.
Status RunHost(PipelineFlags flags);

}  // namespace cairn::bench
