#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "format/shard_header.h"
#include "io/io_task.h"
#include "store/list.h"

namespace cairn {

/// Of more shards than these each file is open only while something is read from it.
inline constexpr std::size_t kOpenFiles = 16;

/// A safetensors file to read; it may be closed between reads. Only ever a regular file, and each time the same one.
struct ShardFile {
  /// Its path.
  std::string name;
  /// Where it is open.
  UniqueFd fd;
  /// Reads bypass the page cache.
  bool direct = false;
  /// Its header was read and checked.
  bool has_header = false;
  /// As the manifest has it, until it was opened; then the file's.
  std::uint64_t length = 0;
  /// Which file it is; 0 until it was opened.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  ShardHeader header;
};

/// Closes it and drops its header.
void Forget(ShardFile& file);

/// Opens the file where it is closed. Corrupt where it is missing, no regular file, or no longer the same one.
IoTask<Status> OpenShardFile(ShardFile& file);

/// Opens a shard of the checkpoint and reads its header. Corrupt where the file is missing, no regular file, not of the
/// manifest's length, its header not of the manifest's digest, or the header does not belong to this step, attempt and
/// place. All arguments outlive the task.
IoTask<Status> ReadShardHeader(const StoredCheckpoint& checkpoint, const ManifestShard& shard, ShardFile& file);

/// Opens one safetensors file, a plain one or a shard on its own. NotFound where there is none. Blocking; the queue is
/// the caller's alone.
[[nodiscard]] Result<ShardFile> OpenTensorFile(IoQueue& queue, const std::string& path);

/// Reads file bytes [offset, offset + length) of an open file into `buffer`; for O_DIRECT all three are multiples of
/// kBlock. A range that reaches beyond the file's end is filled up to it. Corrupt where the file ends before its
/// length, or the medium fails (see ReadErrnoStatus). Short reads, EINTR and EAGAIN are tried again; where O_DIRECT is
/// refused the file goes on buffered. `file` and `buffer` live until the end.
IoTask<Status> ReadAt(ShardFile& file, std::byte* buffer, std::uint64_t offset, std::uint64_t length);

}  // namespace cairn
