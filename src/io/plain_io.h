#pragma once

#include <cstdint>
#include <string>

#include "io/io_queue.h"

namespace cairn {

/// The kernel's limit for one read or write. The rest of a longer one appears as a short transfer.
inline constexpr std::uint64_t kMaxTransfer = 0x7ffff000;

/// Runs the operation's system call on this thread, blocking. Returns its value or -errno.
[[nodiscard]] std::int64_t RunPlain(const IoRequest& request);

/// What linkat(2) follows to the file of a descriptor.
[[nodiscard]] std::string PathOfDescriptor(int fd);

/// The flags of renameat2(2).
[[nodiscard]] unsigned RenameFlags(RenameMode mode);

}  // namespace cairn
