#include "store/held_entry.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "base/status_macros.h"
#include "format/manifest.h"
#include "store/locks.h"
#include "store/paths.h"

namespace cairn {
namespace {

/// Whether the open folder has a manifest of Cairn, damaged or not: every version starts with format_version.
bool HoldsCheckpoint(const UniqueFd& folder) {
  const UniqueFd manifest(
      ::openat(folder.get(), std::string(kManifestName).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat found {};
  if (!manifest.valid() || ::fstat(manifest.get(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
  std::array<char, 64> bytes{};
  const ssize_t got = ::pread(manifest.get(), bytes.data(), bytes.size(), 0);
  std::string begin(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  std::erase_if(begin, [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; });
  return begin.starts_with("{\"format_version\":");
}

}  // namespace

IoTask<Status> HeldEntry::Open() {
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(directory_, /*follow=*/true, fd_));
  parent_ = PathAt(fd_.get(), directory_.text());
  at_ = JoinPath(parent_, name_);
  co_return Status::Ok();
}

Status HeldEntry::LookAtName() {
  struct stat found {};
  kind_ = EntryKind::kNothing;
  if (::fstatat(at_.directory(), at_.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? Status::Ok() : ErrnoStatus(errno, "stat of " + at_.text());
  }
  kind_ = S_ISLNK(found.st_mode)   ? EntryKind::kLink
          : S_ISDIR(found.st_mode) ? EntryKind::kCheckpoint
                                   : EntryKind::kOther;
  return Status::Ok();
}

IoTask<Status> HeldEntry::Look() {
  while (true) {
    old_ = {};
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(at_.text(), [this] { return LookAtName(); }));
    if (kind_ != EntryKind::kCheckpoint) co_return Status::Ok();
    const Status held = co_await HoldFolder(at_, old_);
    if (held.code() == StatusCode::kNotFound) continue;
    CAIRN_CO_RETURN_IF_ERROR(held);
    bool there = false;
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(at_.text(), [this, &there] {
      if (!HoldsCheckpoint(old_.fd)) kind_ = EntryKind::kOther;
      there = IsSameFile(at_, old_.fd);
      return Status::Ok();
    }));
    if (there) co_return Status::Ok();
  }
}

Status HeldEntry::WaitUntilUnread(IoQueue& queue, Deadline deadline) {
  const auto begun = Deadline::Clock::now();
  while (true) {
    Status looked = RunTaskBlocking(queue, Look());
    if (looked.code() != StatusCode::kFailedPrecondition) return looked;
    if (deadline.passed()) return StillRead(at_, Deadline::Clock::now() - begun);
    const Deadline again = Deadline::At(std::min(Deadline::In(kLockInterval).when(), deadline.when()));
    CAIRN_RETURN_IF_ERROR(queue.RunOnce(again).status());
  }
}

IoTask<bool> HeldEntry::Has(const PathAt& path) const {
  bool has = false;
  const Status checked = co_await io::OnThread(path.text(), [this, &path, &has] {
    struct stat found {};
    has = kind_ == EntryKind::kLink
              ? ::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode)
              : IsSameFile(path, old_.fd);
    return Status::Ok();
  });
  co_return checked.ok() && has;
}

IoTask<Status> HeldEntry::Fsync() const { co_return co_await io::Fsync(fd_, parent_.text()); }

Result<HeldEntry> MakeHeldEntry(const std::string& path) {
  std::string_view text = path;
  while (text.size() > 1 && text.ends_with('/')) text.remove_suffix(1);
  const std::size_t slash = text.rfind('/');
  const std::string name(text.substr(slash == std::string_view::npos ? 0 : slash + 1));
  const bool whole = text.starts_with('/') && text.find('\0') == std::string_view::npos;
  if (!whole || name.empty() || name == "." || name == "..") {
    return Error(StatusCode::kInvalidArgument, "{}: expected an absolute path that ends in a name", path);
  }
  return HeldEntry(slash == 0 ? std::string("/") : std::string(text.substr(0, slash)), name);
}

}  // namespace cairn
