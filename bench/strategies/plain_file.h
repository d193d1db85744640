#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Makes a file of `bytes` zeros, durably, and opens it. What overwrites it meets blocks that are laid out and pages
/// that the kernel holds already: a run measures no first touch of either.
[[nodiscard]] Result<UniqueFd> LayOut(const std::string& path, std::uint64_t bytes);
/// Writes all of `bytes` at `offset`. `path` is for the message.
Status WriteAt(int fd, std::uint64_t offset, Bytes bytes, const std::string& path);
/// Has the kernel give what was written there to the disk, without a wait.
void StartWriteBack(int fd, std::uint64_t offset, std::uint64_t bytes);
/// Corrupt where the file ends too soon.
Status ReadAt(int fd, std::uint64_t offset, MutableBytes bytes, const std::string& path);
/// Makes names in the directory durable.
Status SyncDirectory(const std::string& directory);

}  // namespace cairn::bench
