#pragma once

#include <cstdint>
#include <string>

#include "cairn/status.h"
#include "io/io_queue.h"
#include "io/path_at.h"

namespace cairn {

/// Whether step-N exists, and whether it is pinned, according to the disk. True if the disk cannot be read.
[[nodiscard]] bool StepExists(const PathAt& root, std::uint64_t step);
[[nodiscard]] bool IsPinned(const PathAt& root, std::uint64_t step);
[[nodiscard]] bool IsPinned(const PathAt& folder);

/// Creates or removes the pin and fsyncs the folder. Blocking; needs exclusive use of the queue.
[[nodiscard]] Status SetPin(IoQueue& queue, const PathAt& root, std::uint64_t step, bool pinned, unsigned file_mode);

}  // namespace cairn
