#pragma once

#include <cstdint>
#include <string>

#include "cairn/status.h"
#include "io/io_queue.h"
#include "io/path_at.h"

namespace cairn {

/// Whether there is a step-N, and whether it is pinned, by a look at the disk. Where that cannot be asked: yes.
[[nodiscard]] bool HoldsStep(const PathAt& root, std::uint64_t step);
[[nodiscard]] bool IsPinned(const PathAt& root, std::uint64_t step);
[[nodiscard]] bool IsPinned(const PathAt& folder);

/// Makes (or removes) the pin, fsyncs the folder. Blocking; the queue is the caller's alone.
[[nodiscard]] Status SetPin(IoQueue& queue, const PathAt& root, std::uint64_t step, bool pinned, unsigned file_mode);

}  // namespace cairn
