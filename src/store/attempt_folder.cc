#include "store/attempt_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "store/late_name.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/remove.h"

namespace cairn {
AttemptFolder::AttemptFolder(PathAt root, std::string uuid, unsigned mode)
    : root_(std::move(root)),
      uuid_(std::move(uuid)),
      path_(JoinPath(root_, AttemptName(uuid_))),
      retired_(JoinPath(root_, RetiredName(uuid_))),
      mode_(mode) {}

IoTask<Status> AttemptFolder::Make() {
  if (open()) co_return Status::Ok();
  const bool again = std::exchange(made_, true);
  IoResult made = co_await io::MakeDirectory(path_, mode_);
  if (made.error == ENOSPC || made.error == EDQUOT) {
    // Files may be what is missing, and each spare is one, of whichever rank.
    static_cast<void>(co_await RemoveSparesTask(root_));
    made = co_await io::MakeDirectory(path_, mode_);
  }
  // On a full disk this is called twice, and the first time may have made it, but not opened it.
  if (made.error != EEXIST || !again) {
    if (made.error == EEXIST) made_ = false;
    CAIRN_CO_RETURN_IF_ERROR(std::move(made));
  }
  co_return co_await io::OpenDirectory(path_, /*follow=*/false, fd_);
}

IoTask<Status> AttemptFolder::Open() {
  co_return co_await OpenLateName(root_, path_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, /*again=*/false, fd_);
}

IoTask<Status> AttemptFolder::OpenAgain() {
  co_return co_await OpenLateName(root_, path_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, /*again=*/true, fd_);
}

Status AttemptFolder::LookWhere(bool& elsewhere) const {
  struct stat named {};
  struct stat held {};
  if (::fstat(fd_.get(), &held) != 0) return ErrnoStatus(errno, "stat of " + path_.text());
  const bool there = ::fstatat(path_.directory(), path_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0;
  if (!there && errno != ENOENT) return ErrnoStatus(errno, "stat of " + path_.text());
  elsewhere = !there || named.st_dev != held.st_dev || named.st_ino != held.st_ino;
  return Status::Ok();
}

IoTask<Status> AttemptFolder::CheckThere(const Status& found) const {
  bool elsewhere = false;
  const Status looked = co_await io::OnThread(path_.text(), [&] { return LookWhere(elsewhere); });
  if (!looked.ok() || !elsewhere) co_return Status::Ok();
  co_return Error(StatusCode::kFailedPrecondition, "{} is gone: rank 0 or another rank has given the attempt up ({})",
                  path_, found.message());
}

IoTask<AttemptFolder::Taken> AttemptFolder::RenameToRetired(Status& why) {
  // After an exchange, the name is that of the replaced checkpoint.
  bool elsewhere = false;
  why = co_await io::OnThread(path_.text(), [&] { return LookWhere(elsewhere); });
  if (!why.ok() || elsewhere) co_return why.ok() ? Taken::kGone : Taken::kStays;
  IoResult renamed = co_await io::Rename(path_, retired_, RenameMode::kPlain);
  // Check even after an error: the reply may have been lost.
  if (co_await IsStillSameFile(retired_, fd_)) co_return Taken::kHere;
  if (renamed.ok() || renamed.error == ENOENT) co_return Taken::kGone;
  why = renamed.status;
  co_return Taken::kStays;
}

IoTask<Status> AttemptFolder::MarkGivenUp() {
  co_return co_await io::OnThread(path_.text(), [this] {
    if (::fchmod(fd_.get(), mode_ | kGivenUpMark) == 0) return Status::Ok();
    return ErrnoStatus(errno, "marking " + path_.text());
  });
}

IoTask<bool> AttemptFolder::IsGivenUp() {
  bool given_up = false;
  static_cast<void>(co_await io::OnThread(path_.text(), [&] {
    struct stat found {};
    // In this order: the folder loses the name only after it has the mark.
    given_up = IsSameFile(retired_, fd_) || (::fstat(fd_.get(), &found) == 0 && (found.st_mode & kGivenUpMark) != 0);
    return Status::Ok();
  }));
  co_return given_up;
}

IoTask<Status> AttemptFolder::Remove() {
  if (!made_) co_return Status::Ok();
  // Renamed, so that no rank that has not heard of the failure creates another file in it.
  Status why;
  const Taken taken = open() ? co_await RenameToRetired(why) : Taken::kStays;
  if (taken == Taken::kGone) co_return Status::Ok();
  // If it could not be renamed: only this rank's own commit could still rename it, and that does not happen any more.
  if (open()) static_cast<void>(co_await MarkGivenUp());
  Leftovers left;
  const PathAt& found = taken == Taken::kHere ? retired_ : path_;
  static_cast<void>(co_await RemoveFolder(found, left));
  if (left.empty()) co_return Status::Ok();
  co_return Error(StatusCode::kIoError, "{}", fmt::join(left, "; "));
}

}  // namespace cairn
