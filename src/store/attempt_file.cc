#include "store/attempt_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "store/paths.h"
#include "store/space.h"

namespace cairn {
namespace {

constexpr std::uint64_t kCopied = kChecksumBlock;  // At once.

}  // namespace

Status AttemptFile::CheckSize() const {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (spec_.bytes == 0 || spec_.bytes > AlignDown(kLargest, kBlock)) {
    return Error(StatusCode::kInvalidArgument, "{}: a shard of {} bytes", path(), spec_.bytes);
  }
  return CheckFileSizeLimit(path().text(), laid_out_);
}

IoTask<Status> AttemptFile::Make() {
  made_ = true;
  IoResult made = co_await io::Create(path(), O_DIRECT, spec_.mode, fd_, spec_.room);
  if (made.error == EINVAL) {
    direct_ = Direct::kRefused;
    // The kernel creates the file before it rejects O_DIRECT.
    IoResult removed = co_await io::Unlink(path());
    if (!removed.ok() && removed.error != ENOENT) co_return removed.status;
    made = co_await io::Create(path(), 0, spec_.mode, fd_, spec_.room);
  }
  if (made.error != EEXIST) co_return made.status;
  made_ = false;
  co_return Error(StatusCode::kInternal, "{} is there already: two ranks write the same shard", path());
}

IoTask<IoResult> AttemptFile::Allocate() { co_return co_await io::Allocate(fd_, path().text(), laid_out_, spec_.room); }

Status AttemptFile::CheckRange(std::uint64_t offset, Bytes memory) const {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (offset % kBlock == 0 && memory.size() % kBlock == 0 && address % kBlock == 0 && !memory.empty() &&
      memory.size() <= laid_out_ && offset <= laid_out_ - memory.size()) {
    return Status::Ok();
  }
  return Error(StatusCode::kInternal, "write of {} bytes at {} from {:#x} to {}: expected multiples of {} within {}",
               memory.size(), offset, address, path(), kBlock, laid_out_);
}

IoTask<Status> AttemptFile::WriteAt(std::uint64_t offset, Bytes memory) {
  const io::WriteOptions options{.room = spec_.room, .stop = spec_.stop};
  const bool direct = this->direct();
  IoResult written = co_await io::WriteAll(fd_, path().text(), offset, memory, kBlock, options);
  if (written.ok() && direct && direct_ == Direct::kUntried) direct_ = Direct::kTaken;
  if (written.error != EINVAL || !direct || direct_ == Direct::kTaken) co_return written.status;
  // The filesystem accepts O_DIRECT at open but rejects the writes; several writes may find out at once. A file size
  // limit also gives EINVAL, and kills the process if a buffered write exceeds it.
  CAIRN_CO_RETURN_IF_ERROR(CheckFileSizeLimit(path().text(), laid_out_));
  direct_ = Direct::kRefused;
  ::fcntl(fd_.get(), F_SETFL, 0);
  co_return co_await io::WriteAll(fd_, path().text(), offset, memory, kBlock, options);
}

IoTask<Status> AttemptFile::Write(std::uint64_t offset, Bytes memory) {
  CAIRN_CO_RETURN_IF_ERROR(co_await WriteAt(offset, memory));
  if (!direct()) CAIRN_CO_RETURN_IF_ERROR(co_await io::SyncRange(fd_, path().text(), offset, memory.size()));
  bytes_written_ += memory.size();
  co_return Status::Ok();
}

IoTask<Status> AttemptFile::WriteHeader(Bytes header) {
  CAIRN_CO_RETURN_IF_ERROR(co_await WriteAt(0, header));
  if (length_ != spec_.bytes) CAIRN_CO_RETURN_IF_ERROR(co_await io::Truncate(fd_, path().text(), spec_.bytes));
  bytes_written_ += header.size();
  co_return Status::Ok();
}

IoTask<Status> AttemptFile::CopyFrom(const UniqueFd& source) {
  CAIRN_CO_RETURN_IF_ERROR(co_await Copy(source, 0, 0, spec_.bytes, {}));
  co_return co_await io::Truncate(fd_, path().text(), spec_.bytes);
}

IoTask<Status> AttemptFile::Copy(const UniqueFd& source, std::uint64_t from, std::uint64_t to, std::uint64_t bytes,
                                 std::span<const std::uint32_t> sums) {
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kBlock, kCopied), &std::free);
  if (memory == nullptr) co_return Error(StatusCode::kResourceExhausted, "{}: no memory to copy it", path());
  const std::span<std::byte> piece(static_cast<std::byte*>(memory.get()), kCopied);
  for (std::uint64_t at = 0; at < bytes;) {
    if (spec_.stop != nullptr && !spec_.stop->ok()) co_return *spec_.stop;
    const std::uint64_t wanted = std::min(kCopied, bytes - at);
    std::uint64_t filled = 0;
    for (int retries = 0; filled < wanted;) {
      IoRequest request{.op = IoOp::kRead, .fd = source.get(), .buffer = piece.data() + filled};
      request.length = wanted - filled;
      request.offset = from + at + filled;
      request.name = path().text();
      IoResult read = co_await IoOperation(std::move(request));
      if ((read.error == EINTR || read.error == EAGAIN) && ++retries <= kMaxRetries) continue;
      CAIRN_CO_RETURN_IF_ERROR(std::move(read.status));
      if (read.value == 0) {
        co_return Error(StatusCode::kCorrupt, "{}: expected to copy {} bytes, found the end at {}", path(),
                        from + bytes, from + at + filled);
      }
      filled += static_cast<std::uint64_t>(read.value);
    }
    if (!sums.empty() && Crc32c(piece.first(wanted)) != sums[at / kCopied]) {
      co_return Error(StatusCode::kCorrupt,
                      "{}: what it is copied from is damaged: bytes {} to {} have another checksum than when they were "
                      "written",
                      path(), from + at, from + at + wanted);
    }
    std::ranges::fill(piece.subspan(wanted), std::byte{});
    CAIRN_CO_RETURN_IF_ERROR(co_await Write(to + at, piece.first(AlignUp(wanted, kBlock))));
    at += wanted;
  }
  co_return Status::Ok();
}

Status AttemptFile::CheckShard() const {
  struct stat written {};
  struct stat named {};
  if (::fstat(fd_.get(), &written) != 0) return ErrnoStatus(errno, "stat of " + path().text());
  const bool there = ::fstatat(path().directory(), path().c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0;
  if (!there && errno != ENOENT) return ErrnoStatus(errno, "stat of " + path().text());
  // Another rank's shard that still has a name is looked for by rank 0, which waits for names that are seen late.
  const bool late = !there && spec_.seen_late && written.st_nlink != 0;
  if (!late && (!there || named.st_dev != written.st_dev || named.st_ino != written.st_ino)) {
    return Error(StatusCode::kCorrupt, "{}: {} while it was written", path(), there ? "replaced" : "removed");
  }
  if (static_cast<std::uint64_t>(written.st_size) == spec_.bytes) return Status::Ok();
  return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", path(), spec_.bytes, written.st_size);
}

IoTask<Status> AttemptFile::Fsync() {
  std::vector<IoTask<Status>> tasks;
  tasks.push_back(io::FsyncTask(fd_, path().text()));
  tasks.push_back(io::OnThread(path().text(), [this] { return CheckShard(); }));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(tasks)));
  co_return co_await Close();
}

IoTask<Status> AttemptFile::Close() {
  hidden_.reset();
  co_return co_await io::Close(fd_, path().text());
}

IoTask<Status> AttemptFile::Remove() {
  Status first = co_await Close();
  if (!made_) co_return first;
  IoResult removed = co_await io::Unlink(path());
  if (first.ok() && removed.error != ENOENT) first = removed.status;
  co_return first;
}

}  // namespace cairn
