#pragma once

#include <cstdint>

#include "io/io_queue.h"

namespace cairn {

/// What one read or write asks of the kernel at most, as it would cut it anyway; the rest comes back as a short
/// transfer.
inline constexpr std::uint64_t kMaxTransfer = 0x7ffff000;

/// Runs the operation by its system call on this thread, and blocks as long as that does. The value, or -errno.
[[nodiscard]] std::int64_t RunPlain(const IoRequest& request);

/// The flags of renameat2(2).
[[nodiscard]] unsigned RenameFlags(RenameMode mode);

}  // namespace cairn
