#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Makes a file of `bytes` zeros, durably, and opens it. Its blocks are then laid out and its pages in memory, so that
/// a run does not measure the first touch of either.
[[nodiscard]] Result<UniqueFd> LayOut(const std::string& path, std::uint64_t bytes);
/// Writes all of `bytes` at `offset`. `path` is for the message.
Status WriteAt(int fd, std::uint64_t offset, Bytes bytes, const std::string& path);
/// Makes the kernel start writing that range to the disk, without waiting.
void StartWriteBack(int fd, std::uint64_t offset, std::uint64_t bytes);
/// Corrupt where the file ends too soon.
Status ReadAt(int fd, std::uint64_t offset, MutableBytes bytes, const std::string& path);
/// Makes names in the directory durable.
Status SyncDirectory(const std::string& directory);

}  // namespace cairn::bench
