#include "store/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "store/paths.h"

namespace cairn {
namespace {

// More is mapped than the file has, so that one that is a little longer the next time needs no other mapping.
std::uint64_t MappedBytes(std::uint64_t bytes) { return AlignUp(bytes + bytes / 8, std::uint64_t{2} << 20); }

UniqueFd Duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

}  // namespace

MappedFile::~MappedFile() { ::munmap(data_, bytes_); }

Result<std::shared_ptr<MappedFile>> MappedFiles::Map(const PathAt& path, const UniqueFd& open, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  struct stat found {};
  // Slots that were removed.
  std::erase_if(files_, [&found](const auto& entry) {
    return ::fstat(entry.second->fd_.get(), &found) != 0 || found.st_nlink == 0;
  });
  if (!IsSameFile(path, open)) return Error(StatusCode::kCorrupt, "{}: replaced while it was written", path);
  if (::fstat(open.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path.text());
  const auto file = files_.find(found.st_ino);
  if (file != files_.end() && file->second->bytes_ >= bytes) return file->second;
  // The open one may be for writing alone, which no mapping permits.
  const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  UniqueFd fd =
      file != files_.end() ? Duplicate(file->second->fd_) : UniqueFd(::openat(path.directory(), path.c_str(), flags));
  files_.erase(found.st_ino);
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + path.text());
  const std::uint64_t mapped = MappedBytes(bytes);
  void* const at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "mapping " + path.text());
  std::shared_ptr<MappedFile> made(new MappedFile(std::move(fd), static_cast<std::byte*>(at), mapped));
  if (::madvise(at, mapped, MADV_DONTFORK) != 0) return ErrnoStatus(errno, "mapping " + path.text());
  files_.emplace(found.st_ino, made);
  return made;
}

UniqueFd MappedFiles::Open(const PathAt& path) const {
  struct stat found {};
  if (::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return {};
  MutexLock lock(mutex_);
  const auto file = files_.find(found.st_ino);
  return file == files_.end() ? UniqueFd() : Duplicate(file->second->fd_);
}

}  // namespace cairn
