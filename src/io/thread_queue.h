#pragma once

#include <memory>

#include "io/io_queue.h"

namespace cairn {

/// A queue of threads that call pread, pwrite, fsync, ..., for kernels and containers without io_uring.
///
/// `depth` data operations run at once. Two more threads prevent an fsync or a rename from waiting for them.
[[nodiscard]] Result<std::unique_ptr<IoQueue>> MakeThreadQueue(int depth);

}  // namespace cairn
