#include "restore/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "store/names.h"

namespace cairn {
namespace {

using AlignedBytes = std::shared_ptr<std::byte[]>;

Result<AlignedBytes> AllocateAligned(std::uint64_t bytes, const std::string& what) {
  AlignedBytes memory(static_cast<std::byte*>(std::aligned_alloc(kBlock, AlignUp(bytes, kBlock))), std::free);
  if (memory == nullptr) return Error(StatusCode::kResourceExhausted, "no {} bytes for the header of {}", bytes, what);
  return memory;
}

// Unlike RunBlocking it keeps the errno apart: some mean damage, some another way of opening.
Result<std::int64_t> RunRaw(IoQueue& queue, IoRequest request) {
  bool finished = false;
  std::int64_t value = 0;
  queue.Submit(std::move(request), [&](std::int64_t result) {
    value = result;
    finished = true;
  });
  while (!finished) CAIRN_RETURN_IF_ERROR(queue.RunOnce(Deadline::Infinite()).status());
  return value;
}

// Fills `memory`, which begins at the file's byte 0, from `offset` on. The callback holds the memory: where the queue
// breaks, the kernel may still be writing to it.
Status ReadBlocking(IoQueue& queue, ShardFile& file, const AlignedBytes& memory, std::uint64_t offset,
                    std::uint64_t length) {
  bool finished = false;
  Status outcome;
  ReadAt(queue, file, memory.get() + offset, offset, length, [&, memory](Status status) {
    outcome = std::move(status);
    finished = true;
  });
  while (!finished) CAIRN_RETURN_IF_ERROR(queue.RunOnce(Deadline::Infinite()).status());
  return outcome;
}

struct Read {
  IoQueue* queue;
  ShardFile* file;
  std::byte* buffer;
  std::uint64_t offset;
  std::uint64_t length;
  std::uint64_t expected;  // Bytes until the file's end, where that comes first.
  std::function<void(Status)> done;
  std::uint64_t filled = 0;
  int retries = 0;
};

void Continue(std::shared_ptr<Read> read);

void Completed(const std::shared_ptr<Read>& read, std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) {
    if (++read->retries <= kMaxRetries) return Continue(read);
  } else if (result == -EINVAL && read->file->direct) {
    // A filesystem that takes the flag and then refuses the reads.
    const int flags = ::fcntl(read->file->fd.get(), F_GETFL);
    if (flags >= 0 && ::fcntl(read->file->fd.get(), F_SETFL, flags & ~O_DIRECT) == 0) {
      read->file->direct = false;
      return Continue(read);
    }
  }
  if (result < 0) {
    read->done(ReadErrnoStatus(static_cast<int>(-result), fmt::format("reading {} bytes at {} of {}", read->length,
                                                                      read->offset, read->file->name)));
    return;
  }
  read->retries = 0;
  const std::uint64_t filled = read->filled + static_cast<std::uint64_t>(result);
  if (filled >= read->expected) {
    read->done(Status::Ok());
    return;
  }
  // O_DIRECT goes on at a whole block only; one that comes back short of a block is the file's end.
  const std::uint64_t resume = read->file->direct ? AlignDown(filled, kBlock) : filled;
  if (resume <= read->filled) {
    read->done(Error(StatusCode::kCorrupt, "{} is truncated: expected {} bytes, found the end at {}", read->file->name,
                     read->file->length, read->offset + filled));
    return;
  }
  read->filled = resume;
  Continue(read);
}

void Continue(std::shared_ptr<Read> read) {
  Read& r = *read;
  IoRequest request{.op = IoOp::kRead,
                    .fd = r.file->fd.get(),
                    .buffer = r.buffer + r.filled,
                    .length = r.length - r.filled,
                    .offset = r.offset + r.filled};
  r.queue->Submit(std::move(request), [read = std::move(read)](std::int64_t result) { Completed(read, result); });
}

// A result below zero is -errno. O_NONBLOCK: a FIFO in a shard's place must not hold the reader up.
Result<std::int64_t> OpenDescriptor(IoQueue& queue, const std::string& path, int flags, bool* direct) {
  IoRequest request{.op = IoOp::kOpen, .path = path, .flags = O_RDONLY | O_NONBLOCK | O_DIRECT | flags};
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t first, RunRaw(queue, request));
  *direct = first >= 0;
  if (first != -EINVAL) return first;
  request.flags &= ~O_DIRECT;
  return RunRaw(queue, std::move(request));
}

// Takes over a descriptor: regular files only, and reads of it may block again (io_uring answers EAGAIN otherwise).
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
  file.length = static_cast<std::uint64_t>(facts.st_size);
  return Status::Ok();
}

// `digest` where a manifest says what the header's is.
Status ReadHeader(IoQueue& queue, ShardFile& file, const std::uint32_t* digest) {
  CAIRN_ASSIGN_OR_RETURN(AlignedBytes bytes, AllocateAligned(kBlock, file.name));
  CAIRN_RETURN_IF_ERROR(ReadBlocking(queue, file, bytes, 0, kBlock));
  const auto first = std::min<std::uint64_t>(8, file.length);
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t length,
                         ShardHeaderLength(Bytes(bytes.get(), first), file.length, file.name));
  if (length > kBlock) {
    CAIRN_ASSIGN_OR_RETURN(AlignedBytes whole, AllocateAligned(length, file.name));
    std::copy_n(bytes.get(), kBlock, whole.get());
    bytes = std::move(whole);
    CAIRN_RETURN_IF_ERROR(ReadBlocking(queue, file, bytes, kBlock, AlignUp(length, kBlock) - kBlock));
  }
  const Bytes header(bytes.get(), length);
  if (digest != nullptr) {
    const std::uint32_t found = Crc32c(header);
    if (found != *digest) {
      return Error(StatusCode::kCorrupt, "{}: its header's digest: expected {:08x}, found {:08x}", file.name, *digest,
                   found);
    }
  }
  CAIRN_ASSIGN_OR_RETURN(file.header, DecodeShardHeader(header, file.length, file.name));
  return Status::Ok();
}

Result<ShardFile> OpenShard(IoQueue& queue, const StoredCheckpoint& checkpoint, const ManifestShard& shard) {
  const Manifest& manifest = checkpoint.manifest;
  ShardFile file;
  file.name = checkpoint.info.path + "/" + shard.file;
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t fd, OpenDescriptor(queue, file.name, O_NOFOLLOW, &file.direct));
  if (fd == -ENOENT) {
    return Error(StatusCode::kCorrupt, "{}: expected a file of {} bytes, found none", file.name, shard.length);
  }
  if (fd == -ELOOP) {
    return Error(StatusCode::kCorrupt, "{}: expected a regular file, found a symbolic link", file.name);
  }
  if (fd < 0) return ReadErrnoStatus(static_cast<int>(-fd), "opening " + file.name);
  file.fd = UniqueFd(static_cast<int>(fd));
  CAIRN_RETURN_IF_ERROR(Adopt(file));
  if (file.length != shard.length) {
    return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", file.name, shard.length, file.length);
  }
  CAIRN_RETURN_IF_ERROR(ReadHeader(queue, file, &shard.header_digest));
  const ShardHeader& header = file.header;
  if (!header.cairn || header.step != manifest.step || header.attempt != manifest.attempt ||
      ShardName(header.shard) != shard.file) {
    return Error(StatusCode::kCorrupt, "{}: expected {} of step {}, attempt {}; found {} of step {}, attempt {}",
                 file.name, shard.file, manifest.step, manifest.attempt, ShardName(header.shard), header.step,
                 header.attempt);
  }
  if (header.shard >= manifest.world) {
    return Error(StatusCode::kCorrupt, "{}: expected a rank below its world of {}, found {}", file.name, manifest.world,
                 header.shard);
  }
  return file;
}

}  // namespace

void ReadAt(IoQueue& queue, ShardFile& file, std::byte* buffer, std::uint64_t offset, std::uint64_t length,
            std::function<void(Status)> done) {
  Continue(std::make_shared<Read>(Read{.queue = &queue,
                                       .file = &file,
                                       .buffer = buffer,
                                       .offset = offset,
                                       .length = length,
                                       .expected = std::min(length, file.length - std::min(file.length, offset)),
                                       .done = std::move(done)}));
}

Result<std::vector<ShardFile>> OpenShards(IoQueue& queue, const StoredCheckpoint& checkpoint) {
  std::vector<ShardFile> files;
  files.reserve(checkpoint.manifest.shards.size());
  for (const ManifestShard& shard : checkpoint.manifest.shards) {
    CAIRN_ASSIGN_OR_RETURN(ShardFile file, OpenShard(queue, checkpoint, shard));
    files.push_back(std::move(file));
  }
  return files;
}

Result<ShardFile> OpenTensorFile(IoQueue& queue, const std::string& path) {
  ShardFile file;
  file.name = path;
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t fd, OpenDescriptor(queue, path, 0, &file.direct));
  if (fd < 0) return ReadErrnoStatus(static_cast<int>(-fd), "opening " + path);
  file.fd = UniqueFd(static_cast<int>(fd));
  CAIRN_RETURN_IF_ERROR(Adopt(file));
  CAIRN_RETURN_IF_ERROR(ReadHeader(queue, file, nullptr));
  return file;
}

}  // namespace cairn
