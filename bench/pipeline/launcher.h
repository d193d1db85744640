#pragma once

#include <string>

#include "bench/pipeline/pipeline_flags.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Makes the network, starts a process of this program for each node in its network namespace, and waits for both. Once
/// one has ended with an error or was killed, the other has half a minute to notice. Nodes die with this process.
///
/// The error is that of the nodes: Corrupt or Unsupported if one of them said so, and otherwise FailedPrecondition with
/// how both ended; their own messages are on the standard error.
Status Launch(const PipelineFlags& flags, int argc, char** argv);

/// NoSpace or ResourceExhausted, with the scale that fits, where the nodes of this machine need more than it has.
Status CheckRoomForNodes(const PipelineFlags& flags);
/// The nodes' own directories in one of a run, and that for both.
Status MakeNodeDirectories(const std::string& directory);

}  // namespace cairn::bench
