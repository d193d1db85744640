#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "format/shard_header.h"
#include "io/io_queue.h"
#include "store/list.h"

namespace cairn {

/// A safetensors file open for reading, its header read and checked. Only ever a regular file.
struct ShardFile {
  std::string name;  ///< For messages: the file's path.
  UniqueFd fd;
  bool direct = false;  ///< Reads bypass the page cache.
  std::uint64_t length = 0;
  ShardHeader header;
};

/// Opens the shards of a checkpoint in the manifest's order. Blocking; the queue is the caller's alone. Corrupt where a
/// file is missing, no regular file, not of the manifest's length, its header not of the manifest's digest, or the
/// header does not belong to this step, attempt and place.
[[nodiscard]] Result<std::vector<ShardFile>> OpenShards(IoQueue& queue, const StoredCheckpoint& checkpoint);

/// Opens one safetensors file, a plain one or a shard on its own. NotFound where there is none.
[[nodiscard]] Result<ShardFile> OpenTensorFile(IoQueue& queue, const std::string& path);

/// Reads file bytes [offset, offset + length) into `buffer`; for O_DIRECT all three are multiples of kBlock. A range
/// that reaches beyond the file's end is filled up to it. `done` comes once, from RunOnce: Corrupt where the file ends
/// before its length, or the medium fails (see ReadErrnoStatus). Short reads, EINTR and EAGAIN are tried again; where
/// O_DIRECT is refused the file goes on buffered. `file` and `buffer` live until then.
void ReadAt(IoQueue& queue, ShardFile& file, std::byte* buffer, std::uint64_t offset, std::uint64_t length,
            std::function<void(Status)> done);

}  // namespace cairn
