#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "cairn/status.h"
#include "io/path_at.h"

namespace cairn {

/// NoSpace if RLIMIT_FSIZE forbids a file of that many bytes. Call it before the first write: beyond the limit O_DIRECT
/// fails with EINVAL, and a buffered write raises SIGXFSZ, which kills the process.
[[nodiscard]] Status CheckFileSizeLimit(const std::string& path, std::uint64_t bytes);
/// Bytes free on the filesystem of `root`; nothing if it does not say.
[[nodiscard]] Result<std::optional<std::uint64_t>> FindFreeSpace(const PathAt& root);
/// NoSpace if the filesystem of `root` has fewer bytes free than the file `path` needs. Says in `found`, if it is not
/// null, how many are free.
[[nodiscard]] Status CheckFreeSpace(const PathAt& root, const std::string& path, std::uint64_t bytes,
                                    std::atomic<std::int64_t>* found = nullptr);

}  // namespace cairn
