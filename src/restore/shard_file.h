#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "format/shard_header.h"
#include "io/io_task.h"
#include "restore/file_view.h"
#include "store/list.h"

namespace cairn {

/// With more shards than this, each file is open only while it is read.
inline constexpr std::size_t kOpenFiles = 16;

/// A safetensors file to read, which may be closed between reads. Always a regular file, and always the same one.
struct ShardFile {
  std::string name;
  UniqueFd fd;
  /// Reads go through the page cache: see UsePageCache.
  bool page_cache = false;
  /// Reads bypass the page cache.
  bool direct = false;
  /// In the root in memory. Then it is mapped rather than read, where it can be.
  bool in_memory = false;
  std::shared_ptr<const FileView> view;
  /// Its header was read and checked.
  bool has_header = false;
  /// The manifest's length until it is opened; then the file's.
  std::uint64_t length = 0;
  /// Identify the file; 0 until it is opened.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  /// The digest of the header that was read.
  std::uint32_t digest = 0;
  ShardHeader header;
  /// Long values are read with the header.
  bool with_values = true;
  /// What an earlier call read, or null. Its header is taken, and not decoded again, if the file and the digest of the
  /// bytes that were read are the same.
  std::unique_ptr<ShardFile> before;
};

/// From now on reads go through the page cache, also once it is opened again.
void UsePageCache(ShardFile& file);

/// From now on reads of this open file bypass it. False if the filesystem cannot.
bool BypassPageCache(ShardFile& file);

/// Closes it and drops its header.
void Forget(ShardFile& file);

/// Opens the file if it is closed. Corrupt if it is missing, not a regular file, or no longer the same one.
IoTask<Status> OpenShardFile(ShardFile& file);

/// Opens a shard of the checkpoint and reads its header. Corrupt if the file is missing, is not a regular file, or has
/// another length or header digest than in the manifest, or if the header belongs to another step, attempt or shard
/// than the manifest's, or, for a kept file, than the manifest says of it.
/// All arguments outlive the task.
IoTask<Status> ReadShardHeader(const StoredCheckpoint& checkpoint, const ManifestShard& shard, ShardFile& file);

/// The same of a header that was read in another way. Long values are not read.
[[nodiscard]] Status DecodeHeaderOf(const StoredCheckpoint& checkpoint, const ManifestShard& shard, Bytes header,
                                    ShardFile& file);
/// Adds one of its long values to the others, which was read in another way. Corrupt if the text is another one.
[[nodiscard]] Status AddLongValue(ShardFile& file, const LongValue& value, Bytes text);

/// Opens one safetensors file: a plain one, or a single shard. NotFound if there is none. Blocking; needs exclusive use
/// of the queue.
[[nodiscard]] Result<ShardFile> OpenTensorFile(IoQueue& queue, const std::string& path);

/// Reads file bytes [offset, offset + length) of an open file into `buffer`; for O_DIRECT all three are multiples of
/// kBlock. A range that reaches beyond the file's end is filled up to it. Corrupt if the file is truncated or the
/// medium fails (see ReadErrnoStatus). Short reads, EINTR and EAGAIN are retried; if O_DIRECT is rejected, reads are
/// buffered. `file` and `buffer` outlive the task.
IoTask<Status> ReadAt(ShardFile& file, std::byte* buffer, std::uint64_t offset, std::uint64_t length);

/// Bytes [begin, end) of a file with a view, which are there. Corrupt if they are not.
[[nodiscard]] Result<const std::byte*> ViewedAt(const ShardFile& file, std::uint64_t begin, std::uint64_t end);

/// Checks one checksum block, from data byte `begin` on. Corrupt names the place, and the `tensor` unless that is
/// empty.
[[nodiscard]] Status VerifyBlock(const ShardFile& file, std::uint64_t begin, Bytes block, std::string_view tensor);

}  // namespace cairn
