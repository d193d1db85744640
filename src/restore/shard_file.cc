#include "restore/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/crc32c.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "format/fields.h"
#include "store/names.h"

namespace cairn {
namespace {

using AlignedBytes = std::shared_ptr<std::byte[]>;

Result<AlignedBytes> AllocateAligned(std::uint64_t bytes, const std::string& what) {
  AlignedBytes memory(static_cast<std::byte*>(std::aligned_alloc(kBlock, AlignUp(bytes, kBlock))), std::free);
  if (memory == nullptr) return Error(StatusCode::kResourceExhausted, "{}: no {} bytes for its header", what, bytes);
  return memory;
}

/// The raw operation, because its caller handles some errors itself.
IoOperation ReadSome(const ShardFile& file, std::byte* buffer, std::uint64_t offset, std::uint64_t length) {
  return IoOperation({.op = IoOp::kRead,
                      .fd = file.fd.get(),
                      .buffer = buffer,
                      .length = length,
                      .offset = offset,
                      .name = file.name});
}

// For a filesystem that accepts O_DIRECT at open but rejects the reads.
bool GoBuffered(ShardFile& file) {
  const int flags = ::fcntl(file.fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file.fd.get(), F_SETFL, flags & ~O_DIRECT) != 0) return false;
  file.direct = false;
  return true;
}

// Accepts only a regular file, and clears O_NONBLOCK (with it io_uring returns EAGAIN).
Status Adopt(ShardFile& file) {
  struct stat facts {};
  if (::fstat(file.fd.get(), &facts) != 0) return ReadErrnoStatus(errno, "fstat of " + file.name);
  if (!S_ISREG(facts.st_mode)) {
    return Error(StatusCode::kCorrupt, "{}: expected a regular file, found file type {:#o}", file.name,
                 facts.st_mode & S_IFMT);
  }
  const int flags = ::fcntl(file.fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file.fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "fcntl of " + file.name);
  }
  const bool again = file.inode != 0;
  const auto length = static_cast<std::uint64_t>(facts.st_size);
  if (again && (file.device != facts.st_dev || file.inode != facts.st_ino || file.length != length)) {
    return Error(StatusCode::kCorrupt, "{}: replaced while it was being read", file.name);
  }
  file.device = facts.st_dev;
  file.inode = facts.st_ino;
  file.length = length;
  return Status::Ok();
}

// O_NONBLOCK, so that a FIFO in a shard's place does not block.
IoTask<IoResult> OpenDescriptor(ShardFile& file, int flags) {
  const PathAt path(file.name);
  const int wanted = O_RDONLY | O_NONBLOCK | flags;
  file.direct = !file.page_cache;
  if (file.direct) {
    IoResult opened = co_await io::Open(path, wanted | O_DIRECT, file.fd);
    if (opened.error != EINVAL) co_return opened;
    file.direct = false;
  }
  co_return co_await io::Open(path, wanted, file.fd);
}

bool IsSameFile(const ShardFile& a, const ShardFile& b) {
  return a.name == b.name && a.device == b.device && a.inode == b.inode && a.length == b.length;
}

// Adds the long values of the file to the others.
IoTask<Status> ReadLongValues(ShardFile& file) {
  const ShardHeader& header = file.header;
  for (const LongValue& value : header.long_values) {
    const std::uint64_t begin = header.data_begin + value.begin;
    const std::uint64_t from = AlignDown(begin, kBlock);
    const std::uint64_t length = AlignUp(header.data_begin + value.end, kBlock) - from;
    Result<AlignedBytes> block = AllocateAligned(length, file.name);
    CAIRN_CO_RETURN_IF_ERROR(block.status());
    CAIRN_CO_RETURN_IF_ERROR(co_await ReadAt(file, block->get(), from, length));
    const Bytes text(block->get() + (begin - from), value.end - value.begin);
    CAIRN_CO_RETURN_IF_ERROR(AddLongValue(file, value, text));
  }
  co_return Status::Ok();
}

Status CheckDigest(Bytes header, std::uint32_t expected, const std::string& file) {
  const std::uint32_t found = Crc32c(header);
  if (found == expected) return Status::Ok();
  return Error(StatusCode::kCorrupt, "{}: header digest: expected {:08x}, found {:08x}", file, expected, found);
}

// `digest` is the manifest's, or null.
IoTask<Status> ReadHeader(ShardFile& file, const std::uint32_t* digest) {
  Result<AlignedBytes> block = AllocateAligned(kBlock, file.name);
  CAIRN_CO_RETURN_IF_ERROR(block.status());
  AlignedBytes bytes = *std::move(block);
  CAIRN_CO_RETURN_IF_ERROR(co_await ReadAt(file, bytes.get(), 0, kBlock));
  const auto first = std::min<std::uint64_t>(8, file.length);
  const Result<std::uint64_t> length = ShardHeaderLength(Bytes(bytes.get(), first), file.length, file.name);
  CAIRN_CO_RETURN_IF_ERROR(length.status());
  if (*length > kBlock) {
    Result<AlignedBytes> whole = AllocateAligned(*length, file.name);
    CAIRN_CO_RETURN_IF_ERROR(whole.status());
    std::copy_n(bytes.get(), kBlock, whole->get());
    bytes = *std::move(whole);
    CAIRN_CO_RETURN_IF_ERROR(co_await ReadAt(file, bytes.get() + kBlock, kBlock, AlignUp(*length, kBlock) - kBlock));
  }
  const Bytes header(bytes.get(), *length);
  if (digest != nullptr) CAIRN_CO_RETURN_IF_ERROR(CheckDigest(header, *digest, file.name));
  const std::unique_ptr<ShardFile> before = std::move(file.before);
  if (digest != nullptr && before != nullptr && before->digest == *digest && IsSameFile(*before, file)) {
    file.header = std::move(before->header);
  } else {
    Result<ShardHeader> decoded = DecodeShardHeader(header, file.length, file.name);
    CAIRN_CO_RETURN_IF_ERROR(decoded.status());
    file.header = *std::move(decoded);
    if (file.with_values) CAIRN_CO_RETURN_IF_ERROR(co_await ReadLongValues(file));
  }
  if (digest != nullptr) file.digest = *digest;
  file.has_header = true;
  co_return Status::Ok();
}

Status CheckPlace(const Manifest& manifest, const ManifestShard& shard, const ShardFile& file) {
  const ShardHeader& header = file.header;
  const std::uint64_t step = shard.kept ? shard.kept->step : manifest.step;
  const std::string& attempt = shard.kept ? shard.kept->attempt : manifest.attempt;
  const std::string found = shard.kept ? KeptName(header.shard, header.attempt) : ShardName(header.shard);
  if (!header.cairn || header.step != step || header.attempt != attempt || found != shard.file ||
      (shard.kept && header.shard != shard.kept->rank)) {
    return Error(StatusCode::kCorrupt, "{}: expected {} of step {}, attempt {}; found {} of step {}, attempt {}",
                 file.name, shard.file, step, attempt, found, header.step, header.attempt);
  }
  if (header.shard >= manifest.world) {
    return Error(StatusCode::kCorrupt, "{}: expected a rank below the world size {}, found {}", file.name,
                 manifest.world, header.shard);
  }
  return Status::Ok();
}

IoTask<Status> OpenTensorFileTask(ShardFile& file) {
  IoResult opened = co_await OpenDescriptor(file, 0);
  if (!opened.ok()) co_return ReadErrnoStatus(opened.error, "opening " + file.name);
  CAIRN_CO_RETURN_IF_ERROR(Adopt(file));
  co_return co_await ReadHeader(file, nullptr);
}

}  // namespace

void UsePageCache(ShardFile& file) {
  file.page_cache = true;
  if (file.fd.valid()) GoBuffered(file);  // Where that fails, reads bypass it: they give the same bytes.
}

bool BypassPageCache(ShardFile& file) {
  file.page_cache = false;
  const int flags = ::fcntl(file.fd.get(), F_GETFL);
  file.direct = flags >= 0 && ::fcntl(file.fd.get(), F_SETFL, flags | O_DIRECT) == 0;
  return file.direct;
}

void Forget(ShardFile& file) {
  file.fd.Reset();
  file.header = {};
  file.has_header = false;
}

IoTask<Status> ReadAt(ShardFile& file, std::byte* buffer, std::uint64_t offset, std::uint64_t length) {
  // Less at the file's end.
  const std::uint64_t expected = std::min(length, file.length - std::min(file.length, offset));
  std::uint64_t filled = 0;
  int retries = 0;
  while (true) {
    IoResult read = co_await ReadSome(file, buffer + filled, offset + filled, length - filled);
    const bool interrupted = read.error == EINTR || read.error == EAGAIN;
    if (interrupted && ++retries <= kMaxRetries) continue;
    if (read.error == EINVAL && file.direct && GoBuffered(file)) continue;
    if (!read.ok()) {
      co_return ReadErrnoStatus(read.error, fmt::format("reading {} bytes at {} of {}", length, offset, file.name));
    }
    retries = 0;
    const std::uint64_t end = filled + static_cast<std::uint64_t>(read.value);
    if (end >= expected) co_return Status::Ok();
    // O_DIRECT can continue only at a whole block; a read that ends within a block is the file's end.
    const std::uint64_t resume = file.direct ? AlignDown(end, kBlock) : end;
    if (resume <= filled) {
      co_return Error(StatusCode::kCorrupt, "{} is truncated: expected {} bytes, found the end at {}", file.name,
                      file.length, offset + end);
    }
    filled = resume;
  }
}

IoTask<Status> OpenShardFile(ShardFile& file) {
  if (file.fd.valid()) co_return Status::Ok();
  IoResult opened = co_await OpenDescriptor(file, O_NOFOLLOW);
  if (opened.error == ENOENT) {
    co_return Error(StatusCode::kCorrupt, "{}: expected a file of {} bytes, found none", file.name, file.length);
  }
  if (opened.error == ELOOP) {
    co_return Error(StatusCode::kCorrupt, "{}: expected a regular file, found a symbolic link", file.name);
  }
  if (!opened.ok()) co_return ReadErrnoStatus(opened.error, "opening " + file.name);
  co_return Adopt(file);
}

Status AddLongValue(ShardFile& file, const LongValue& value, Bytes text) {
  if (const std::uint32_t found = Crc32c(text); found != value.crc32c) {
    return Error(StatusCode::kCorrupt, "{}: value {}: expected the digest {:08x}, found {:08x}", file.name,
                 Quoted(value.name), value.crc32c, found);
  }
  Json json{.text = {reinterpret_cast<const char*>(text.data()), text.size()}, .vouched = true};
  if (!IsJson(json.text)) {
    return Error(StatusCode::kCorrupt, "{}: value {}: expected JSON, found others of {} bytes", file.name,
                 Quoted(value.name), json.text.size());
  }
  file.header.values.insert_or_assign(value.name, std::move(json));
  return Status::Ok();
}

Status DecodeHeaderOf(const StoredCheckpoint& checkpoint, const ManifestShard& shard, Bytes header, ShardFile& file) {
  CAIRN_RETURN_IF_ERROR(CheckDigest(header, shard.header_digest, file.name));
  CAIRN_ASSIGN_OR_RETURN(file.header, DecodeShardHeader(header, shard.length, file.name));
  return CheckPlace(checkpoint.manifest, shard, file);
}

IoTask<Status> ReadShardHeader(const StoredCheckpoint& checkpoint, const ManifestShard& shard, ShardFile& file) {
  CAIRN_CO_RETURN_IF_ERROR(co_await OpenShardFile(file));
  if (file.length != shard.length) {
    co_return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", file.name, shard.length, file.length);
  }
  CAIRN_CO_RETURN_IF_ERROR(co_await ReadHeader(file, &shard.header_digest));
  co_return CheckPlace(checkpoint.manifest, shard, file);
}

Result<const std::byte*> ViewedAt(const ShardFile& file, std::uint64_t begin, std::uint64_t end) {
  const int error = file.view->Require(begin, end);
  if (error == 0) return file.view->data() + begin;
  // Lost pages, or a shorter file.
  const bool damaged = error == EHWPOISON || error == EFAULT;
  return ReadErrnoStatus(damaged ? EIO : error,
                         fmt::format("reading {} bytes at {} of {}", end - begin, begin, file.name));
}

Status VerifyBlock(const ShardFile& file, std::uint64_t begin, Bytes block, std::string_view tensor) {
  const std::uint32_t expected = file.header.sums[begin / kChecksumBlock];
  const std::uint32_t found = Crc32c(block);
  if (found == expected) return Status::Ok();
  return Error(StatusCode::kCorrupt,
               "{}: CRC32C of data bytes {} to {} (file offset {}): expected {:08x}, found {:08x}{}", file.name, begin,
               begin + block.size(), file.header.data_begin + begin, expected, found,
               tensor.empty() ? "" : fmt::format(", of tensor \"{}\"", tensor));
}

Result<ShardFile> OpenTensorFile(IoQueue& queue, const std::string& path) {
  ShardFile file;
  file.name = path;
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, OpenTensorFileTask(file)));
  return file;
}

}  // namespace cairn
