#include "store/spare.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "store/locks.h"
#include "store/memory_folder.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
namespace {

// O_NONBLOCK: neither a FIFO nor somebody else's lease may block the open.
constexpr int kOpenFlags = O_WRONLY | O_DIRECT | O_NOFOLLOW | O_NONBLOCK;
constexpr std::uint64_t kStatBlock = 512;  // The unit of st_blocks, on every filesystem.

Status CheckFile(const UniqueFd& fd, const std::string& path, unsigned file_mode) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path);
  if (!S_ISREG(found.st_mode)) return Error(StatusCode::kFailedPrecondition, "{}: not a regular file", path);
  if (found.st_nlink != 1) {
    return Error(StatusCode::kFailedPrecondition, "{}: it has {} names", path, found.st_nlink);
  }
  if (found.st_uid != ::geteuid()) {
    return Error(StatusCode::kFailedPrecondition, "{}: it is the file of user {}", path, found.st_uid);
  }
  const unsigned mode = found.st_mode & 07777U;
  if ((mode & ~file_mode) != 0) {
    return Error(StatusCode::kFailedPrecondition, "{}: its mode is {:#o}, wider than {:#o}", path, mode, file_mode);
  }
  return Status::Ok();
}

}  // namespace

Status CheckRecyclable(const PathAt& path, unsigned file_mode, const MappedFiles* mapped) {
  UniqueFd fd = mapped != nullptr ? mapped->Open(path) : UniqueFd();
  if (!fd.valid() && mapped != nullptr && mapped->cleared()) {
    return Error(StatusCode::kFailedPrecondition, "{}: a slot of another length", path);
  }
  if (!fd.valid()) fd = UniqueFd(::openat(path.directory(), path.c_str(), kOpenFlags | O_CLOEXEC));
  // tmpfs before Linux 6.6.
  if (!fd.valid() && errno == EINVAL) {
    fd = UniqueFd(::openat(path.directory(), path.c_str(), (kOpenFlags & ~O_DIRECT) | O_CLOEXEC));
  }
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + path.text());
  CAIRN_RETURN_IF_ERROR(CheckFile(fd, path.text(), file_mode));
  Status alone = TakeLease(fd, path.text());
  ReleaseLease(fd);  // Not always with the descriptor: a mapping's goes on.
  return alone;
}

Spare::Spare(const PathAt& root, std::uint64_t folders, std::string name, unsigned mode, OnNotRecycled not_recycled,
             const MappedFiles* mapped, std::uint64_t bytes)
    : name_(std::move(name)), file_mode_(mode), not_recycled_(std::move(not_recycled)), mapped_(mapped), bytes_(bytes) {
  // Removals fill the first folders first, so search from the last.
  for (std::uint64_t number = folders; number-- > 0;) folders_.push_back(JoinPath(root, SpareName(number)));
}

void Spare::ReportNotRecycled(const Status& why) const {
  if (not_recycled_) not_recycled_(why.message());
}

Status Spare::FindFolders() {
  // Never follow a link.
  std::erase_if(folders_, [this](const PathAt& folder) {
    struct stat found {};
    // In memory there are far more names than folders. On the disk one may become a spare while the save is in flight.
    if (::fstatat(folder.directory(), folder.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
      return mapped_ != nullptr && errno == ENOENT;
    }
    return S_ISLNK(found.st_mode);
  });
  for (const PathAt& folder : folders_) {
    room_.paths.push_back(JoinPath(folder, name_));
    const PathAt& path = room_.paths.back();
    struct stat found {};
    if (mapped_ == nullptr || ::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) continue;
    // Rank 0, which has made it a spare, knows no other rank's lengths.
    if (!IsSlotFor(static_cast<std::uint64_t>(found.st_size), bytes_)) ::unlinkat(path.directory(), path.c_str(), 0);
  }
  room_.folders = folders_;
  return Status::Ok();
}

Status Spare::CheckClaimed(const UniqueFd& fd) {
  // A folder with a file in it is not replaced; but it may have been between the two opens.
  if (!IsSameFile(folder_, folder_fd_)) return Error(StatusCode::kNotFound, "{} was replaced", folder_);
  CAIRN_RETURN_IF_ERROR(CheckFile(fd, path_.text(), file_mode_));
  CAIRN_RETURN_IF_ERROR(TakeLease(fd, path_.text()));
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path_.text());
  allocated_ = static_cast<std::uint64_t>(found.st_blocks) * kStatBlock;
  length_ = static_cast<std::uint64_t>(found.st_size);
  if (mapped_ != nullptr && allocated_ < bytes_) {
    return Error(StatusCode::kFailedPrecondition, "{}: expected {} bytes to be allocated, found {}", path_, bytes_,
                 allocated_);
  }
  // Clear O_NONBLOCK: with it a ring fails writes that it cannot start at once.
  ::fcntl(fd.get(), F_SETFL, O_DIRECT);
  return Status::Ok();
}

IoTask<IoResult> Spare::Open(UniqueFd& fd) {
  if (mapped_ != nullptr) {
    static_cast<void>(co_await io::OnThread(path_.text(), [this, &fd] {
      fd = mapped_->Open(path_);
      return Status::Ok();
    }));
    if (fd.valid()) co_return IoResult();
  }
  IoResult found = co_await io::Open(path_, kOpenFlags, fd);
  if (found.error == EINVAL) found = co_await io::Open(path_, kOpenFlags & ~O_DIRECT, fd);
  co_return found;
}

IoTask<Status> Spare::Claim(UniqueFd& fd) {
  if (folders_.empty()) co_return Status::Ok();
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(folders_.front().text(), [this] { return FindFolders(); }));
  for (const PathAt& folder : folders_) {
    folder_ = folder;
    path_ = JoinPath(folder, name_);
    folder_fd_.Reset();
    IoResult opened = co_await io::OpenDirectory(folder_, /*follow=*/false, folder_fd_);
    if (!opened.ok()) {
      if (opened.error != ENOENT) ReportNotRecycled(opened.status);
      continue;
    }
    IoResult found = co_await Open(fd);
    if (found.error == ENOENT) continue;
    Status claimed = std::move(found.status);
    if (claimed.ok()) claimed = co_await io::OnThread(path_.text(), [this, &fd] { return CheckClaimed(fd); });
    if (claimed.ok()) {
      stage_ = Stage::kClaimed;
      break;
    }
    fd.Reset();
    if (claimed.code() == StatusCode::kNotFound) continue;
    ReportNotRecycled(claimed);
    // If it stayed, it would block the place of another checkpoint's file.
    static_cast<void>(co_await io::Unlink(path_));
  }
  co_return Status::Ok();
}

IoTask<Status> Spare::TakeOver(UniqueFd& fd, const PathAt& target) {
  if (!claimed()) co_return Status::Ok();
  IoResult renamed = co_await io::Rename(path_, target, RenameMode::kNoReplace);
  stage_ = renamed.ok() ? Stage::kTaken : Stage::kNone;
  if (!renamed.ok()) {
    fd.Reset();
    // ENOENT: another rank is closing the root. EEXIST: creating the new file reports it.
    if (renamed.error == ENOENT || renamed.error == EEXIST) co_return Status::Ok();
    if (!RefusesFlags(renamed)) co_return renamed.status;
    // Without the flag, the rename would replace an existing file.
    static_cast<void>(co_await io::Unlink(path_));
    co_return Status::Ok();
  }
  // From here on only the attempt's path leads to it. Anyone who opened or linked the old path did so before this
  // check.
  const Status alone = co_await io::OnThread(target.text(), [this, &fd, &target] {
    CAIRN_RETURN_IF_ERROR(CheckFile(fd, target.text(), file_mode_));
    if (HoldsLease(fd)) return Status::Ok();
    return Error(StatusCode::kFailedPrecondition, "{}: another process is waiting to open it", target);
  });
  if (alone.ok()) co_return alone;
  fd.Reset();
  stage_ = Stage::kNone;
  ReportNotRecycled(alone);
  co_return co_await io::Unlink(target);
}

}  // namespace cairn
