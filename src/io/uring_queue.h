#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/io_queue.h"

namespace cairn {

/// What an older kernel lacks. Tests set these to meet such kernels on a newer one.
struct UringLimits {
  std::vector<IoOp> without_opcodes;  ///< Run by their system calls on a helper thread. Not reads, writes and fsyncs.
  bool without_setup_flags = false;   ///< None of those that came after kernel 5.15.
};

/// A queue over one io_uring, set up for the calling thread. Not more than about `depth` + 16 operations are given to
/// the kernel at once; the rest wait in the queue.
///
/// Unsupported, with the failed call and its likely cause, where the kernel or its sandbox has no io_uring for us.
[[nodiscard]] Result<std::unique_ptr<IoQueue>> MakeUringQueue(int depth, const UringLimits& limits = {});

/// Makes such a queue and closes it again. For a person: what of it works, "all operations" or which go the slow way.
[[nodiscard]] Result<std::string> ProbeUring(int depth);

}  // namespace cairn
