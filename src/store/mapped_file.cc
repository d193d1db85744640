#include "store/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "store/paths.h"

namespace cairn {
namespace {

UniqueFd Duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

UniqueFd Open(const PathAt& path) {
  return UniqueFd(::openat(path.directory(), path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

}  // namespace

MappedFile::~MappedFile() {
  if (::getpid() != owner_) return;
  for (const std::shared_ptr<Device>& device : pinned_with_) device->UnpinMemory(memory_);
  ::munmap(memory_.data(), memory_.size());
}

Status MappedFile::PinWith(const std::shared_ptr<Device>& device) {
  CAIRN_RETURN_IF_ERROR(device->PinMemory(memory_));
  pinned_with_.push_back(device);
  return Status::Ok();
}

Result<std::shared_ptr<MappedFile>> MappedFiles::Map(const PathAt& path, std::uint64_t bytes) {
  UniqueFd open = cairn::Open(path);
  if (!open.valid()) return ErrnoStatus(errno, "opening " + path.text());
  MutexLock lock(mutex_);
  struct stat found {};
  if (::fstat(open.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path.text());
  return MapInode(path, found.st_ino, std::move(open), bytes);
}

Result<std::shared_ptr<MappedFile>> MappedFiles::Map(const PathAt& path, const UniqueFd& open, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  struct stat found {};
  // Slots that were removed.
  std::erase_if(files_, [&found](const auto& entry) {
    return ::fstat(entry.second->fd_.get(), &found) != 0 || found.st_nlink == 0;
  });
  if (!IsSameFile(path, open)) return Error(StatusCode::kCorrupt, "{}: replaced while it was written", path);
  if (::fstat(open.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path.text());
  return MapInode(path, found.st_ino, UniqueFd(), bytes);
}

Result<std::shared_ptr<MappedFile>> MappedFiles::MapInode(const PathAt& path, ino_t inode, UniqueFd fd,
                                                          std::uint64_t bytes) {
  // Not more than it has: there is nothing to pin behind its end.
  const std::uint64_t mapped = AlignUp(bytes, kBlock);
  if (const auto file = files_.find(inode); file != files_.end()) {
    if (file->second->memory_.size() == mapped) return file->second;
    fd = Duplicate(file->second->fd_);
    files_.erase(file);
  }
  // The one that an attempt has open may be for writing alone, which no mapping permits.
  if (!fd.valid()) fd = cairn::Open(path);
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + path.text());
  void* const at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "mapping " + path.text());
  std::shared_ptr<MappedFile> made(new MappedFile(std::move(fd), {static_cast<std::byte*>(at), mapped}));
  if (::madvise(at, mapped, MADV_DONTFORK) != 0) return ErrnoStatus(errno, "mapping " + path.text());
  for (const std::shared_ptr<Device>& device : devices_) CAIRN_RETURN_IF_ERROR(made->PinWith(device));
  files_.emplace(inode, made);
  return made;
}

Status MappedFiles::PinWith(const std::shared_ptr<Device>& device) {
  MutexLock lock(mutex_);
  for (const auto& [inode, file] : files_) CAIRN_RETURN_IF_ERROR(file->PinWith(device));
  devices_.push_back(device);
  return Status::Ok();
}

bool MappedFiles::IsPinnedWith(const std::shared_ptr<Device>& device) const {
  MutexLock lock(mutex_);
  return std::ranges::find(devices_, device) != devices_.end();
}

void MappedFiles::Clear() {
  MutexLock lock(mutex_);
  files_.clear();
  cleared_ = true;
}

bool MappedFiles::cleared() const {
  MutexLock lock(mutex_);
  return cleared_;
}

UniqueFd MappedFiles::Open(const PathAt& path) const {
  struct stat found {};
  if (::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return {};
  MutexLock lock(mutex_);
  const auto file = files_.find(found.st_ino);
  return file == files_.end() ? UniqueFd() : Duplicate(file->second->fd_);
}

}  // namespace cairn
