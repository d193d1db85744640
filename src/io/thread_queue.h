#pragma once

#include <memory>

#include "io/io_queue.h"

namespace cairn {

/// A queue over threads that call pread, pwrite, fsync, ...: for kernels and containers without io_uring.
///
/// `depth` data operations run at once, and two more threads keep an fsync or a rename from waiting behind them.
[[nodiscard]] Result<std::unique_ptr<IoQueue>> MakeThreadQueue(int depth);

}  // namespace cairn
