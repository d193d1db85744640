#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/io_queue.h"

namespace cairn {

/// What an older kernel lacks. Tests use it to emulate one.
struct UringLimits {
  /// A helper thread runs their system calls. Not for reads, writes and fsyncs.
  std::vector<IoOp> without_opcodes;
  /// Uses no setup flag that is newer than kernel 5.15.
  bool without_setup_flags = false;
};

/// A queue on one io_uring, for the calling thread. At most `depth` + 16 operations are in the kernel at once; the
/// others wait in the queue.
///
/// Unsupported, with the failed call and its likely cause, if the kernel or the sandbox offers no io_uring.
[[nodiscard]] Result<std::unique_ptr<IoQueue>> MakeUringQueue(int depth, const UringLimits& limits = {});

/// Makes such a queue and closes it. Returns, for people, whether it runs all operations, or which a thread runs.
[[nodiscard]] Result<std::string> ProbeUring(int depth);

}  // namespace cairn
