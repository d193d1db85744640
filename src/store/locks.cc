#include "store/locks.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGURG
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/uuid.h"
#include "format/manifest.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {

namespace {

/// Descriptors of this process that forked children close: of its locks, and of files that shall not outlive it.
/// Global, because the fork handler is.
class OwnDescriptors {
 public:
  static OwnDescriptors& Get() {
    static OwnDescriptors* const list = [] {
      auto* made = new OwnDescriptors;  // Never freed: the process may fork at any time.
      ::pthread_atfork(BeforeFork, InParent, InChild);
      return made;
    }();
    return *list;
  }
  /// Locked, like Close, so that a forked child has no copy that is missing from its list.
  Result<UniqueFd> Open(const PathAt& path, int more_flags, unsigned file_mode) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    UniqueFd fd(::openat(path.directory(), path.c_str(), kFlags | more_flags, file_mode));
    if (!fd.valid()) return ErrnoStatus(errno, "opening " + path.text());
    fds_.push_back(fd.get());
    return fd;
  }
  [[nodiscard]] WriterLock::Here Find(const PathAt& path) const CAIRN_EXCLUDES(mutex_) {
    struct stat found {};
    struct stat held {};
    if (::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return WriterLock::Here::kNo;
    const auto is_on_it = [&](int fd) {
      return ::fstat(fd, &held) == 0 && held.st_dev == found.st_dev && held.st_ino == found.st_ino;
    };
    MutexLock lock(mutex_);
    if (std::any_of(leaving_.begin(), leaving_.end(), is_on_it)) return WriterLock::Here::kLeaving;
    return std::any_of(fds_.begin(), fds_.end(), is_on_it) ? WriterLock::Here::kOpen : WriterLock::Here::kNo;
  }
  void Leave(const UniqueFd& fd) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    leaving_.push_back(fd.get());
  }
  /// Of a descriptor that a child may have all the same if it is forked just now.
  void Add(int fd) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    fds_.push_back(fd);
  }
  /// False in a forked child, which has closed it.
  bool Remove(int fd) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::erase(fds_, fd) != 0;
  }
  void Close(UniqueFd& fd) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::erase(fds_, fd.get());
    std::erase(leaving_, fd.get());
    fd.Reset();
  }

 private:
  // Held during a fork, and released in both processes afterwards.
  static void BeforeFork() CAIRN_NO_ANALYSIS { Get().mutex_.Lock(); }
  static void InParent() CAIRN_NO_ANALYSIS { Get().mutex_.Unlock(); }
  static void InChild() CAIRN_NO_ANALYSIS {
    for (const int fd : Get().fds_) ::close(fd);
    Get().fds_.clear();
    Get().leaving_.clear();
    Get().mutex_.Unlock();
  }

  mutable Mutex mutex_;
  std::vector<int> fds_ CAIRN_GUARDED_BY(mutex_);
  std::vector<int> leaving_ CAIRN_GUARDED_BY(mutex_);  // Those of fds_ whose owners have been closed.
};

enum class Taken : std::uint8_t { kYes, kNo, kNoLocks };

Result<Taken> TakeWhole(const UniqueFd& fd, const std::string& path) {
  struct flock wanted {};
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  while (::fcntl(fd.get(), F_OFD_SETLK, &wanted) != 0) {
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
      case EACCES:
        return Taken::kNo;
      case ENOLCK:
      case ENOSYS:
      case EOPNOTSUPP:
      case EINVAL:  // Some sandboxes support only the older locks.
        return Taken::kNoLocks;
      default:
        return ErrnoStatus(errno, "locking " + path);
    }
  }
  return Taken::kYes;
}

/// Whether an open file other than this one has a lock on the whole file. None if that cannot be told.
std::optional<bool> LockedThroughAnother(const UniqueFd& fd) {
  struct flock asked {};
  asked.l_type = F_WRLCK;
  asked.l_whence = SEEK_SET;
  if (::fcntl(fd.get(), F_OFD_GETLK, &asked) != 0) return std::nullopt;
  return asked.l_type != F_UNLCK;
}

}  // namespace

std::shared_ptr<const UniqueFd> HideFromChildren(UniqueFd fd) {
  OwnDescriptors::Get().Add(fd.get());
  return std::shared_ptr<UniqueFd>(new UniqueFd(std::move(fd)), [](UniqueFd* hidden) {
    if (!OwnDescriptors::Get().Remove(hidden->get())) static_cast<void>(hidden->Release());
    // Not under the lock: closing the last descriptor of a file that has no name any more may take long.
    delete hidden;
  });
}

HiddenFromChildren::HiddenFromChildren(const UniqueFd& fd) : fd_(fd.get()) { OwnDescriptors::Get().Add(fd_); }

HiddenFromChildren::~HiddenFromChildren() { OwnDescriptors::Get().Remove(fd_); }

Result<WriterLock> WriterLock::Open(const PathAt& path, int more_flags, unsigned file_mode) {
  CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, OwnDescriptors::Get().Open(path, more_flags, file_mode));
  return WriterLock(std::move(fd));
}

WriterLock::~WriterLock() {
  if (!fd_.valid()) return;
  if (owner_ == ::getpid()) {
    OwnDescriptors::Get().Close(fd_);
  } else {
    static_cast<void>(fd_.Release());  // Closed by the fork handler.
  }
}

Result<std::optional<WriterLock>> WriterLock::TryTake(const PathAt& root, unsigned file_mode) {
  const PathAt path = JoinPath(root, kLockName);
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(WriterLock lock, Open(path, 0, file_mode));
    CAIRN_ASSIGN_OR_RETURN(const Taken taken, TakeWhole(lock.fd_, path.text()));
    if (taken == Taken::kNo) return std::optional<WriterLock>();
    lock.locks_ = taken == Taken::kYes;
    // If the file was replaced between open and lock, the lock is on the wrong file.
    if (!lock.Named(root)) continue;
    lock.Watch(path);
    return std::optional(std::move(lock));
  }
}

bool WriterLock::IsTaken(const PathAt& root) {
  const PathAt path = JoinPath(root, kLockName);
  const UniqueFd fd(::openat(path.directory(), path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return fd.valid() && LockedThroughAnother(fd).value_or(true);
}

WriterLock::Here WriterLock::HeldHere(const PathAt& root) {
  return OwnDescriptors::Get().Find(JoinPath(root, kLockName));
}

void WriterLock::Leave() { OwnDescriptors::Get().Leave(fd_); }

Result<WriterLock> WriterLock::Replace(const PathAt& root, unsigned file_mode) {
  const PathAt path = JoinPath(root, kLockName);
  const PathAt draft = JoinPath(root, LockDraftName(MakeUuid()));
  CAIRN_ASSIGN_OR_RETURN(WriterLock lock, Open(draft, O_EXCL, file_mode));
  CAIRN_ASSIGN_OR_RETURN(const Taken taken, TakeWhole(lock.fd_, draft.text()));
  lock.locks_ = taken == Taken::kYes;
  if (::renameat(draft.directory(), draft.c_str(), path.directory(), path.c_str()) == 0) {
    lock.Watch(path);
    return lock;
  }
  const int error = errno;
  ::unlinkat(draft.directory(), draft.c_str(), 0);
  return ErrnoStatus(error, "taking over " + path.text());
}

void WriterLock::Watch(const PathAt& path) {
  if (!locks_) return;
  watch_ = UniqueFd(::openat(path.directory(), path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // So that reads reach an NFS server. Where it is refused they need not.
  static_cast<void>(::fcntl(fd_.get(), F_SETFL, O_NONBLOCK | O_DIRECT));
  tells_ = watch_.valid() && LooksHeld();
}

bool WriterLock::Held() const { return !tells_ || LooksHeld(); }

bool WriterLock::LooksHeld() const {
  // An NFS client that could not get its lock back from the server still lists it, but fails every read through it.
  alignas(kBlock) std::array<std::byte, kBlock> block{};
  if (::pread(fd_.get(), block.data(), block.size(), 0) < 0 && errno == EIO) return false;
  return LockedThroughAnother(watch_).value_or(true) && !LockedThroughAnother(fd_).value_or(false);
}

bool WriterLock::Named(const PathAt& root) const { return IsSameFile(JoinPath(root, kLockName), fd_); }

bool WriterLock::InPlace(const PathAt& root) const {
  const PathAt path = JoinPath(root, kLockName);
  struct stat found {};
  const bool there = ::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
  return !there || Named(root);
}

Flock::Flock(UniqueFd fd) : fd_(std::move(fd)), owner_(::getpid()) {}

Flock::~Flock() { Release(); }

Flock& Flock::operator=(Flock&& other) noexcept {
  if (this != &other) {
    Release();
    fd_ = std::move(other.fd_);
    owner_ = other.owner_;
  }
  return *this;
}

void Flock::Release() {
  if (fd_.valid() && owner_ == ::getpid()) ::flock(fd_.get(), LOCK_UN);
}

Result<Flock> Flock::TryTake(UniqueFd fd, Kind kind, const std::string& name) {
  if (::flock(fd.get(), (kind == Kind::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return Flock(std::move(fd));
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, fmt::format("locking {}", name));
  return Error(StatusCode::kFailedPrecondition, "{} is {}", name,
               kind == Kind::kShared ? "being removed" : "being read");
}

Result<ReadLock> ReadLock::Take(const PathAt& folder) {
  const PathAt at = JoinPath(folder, kManifestName);
  const std::string& path = at.text();
  while (true) {
    UniqueFd fd(::openat(at.directory(), at.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) return ReadErrnoStatus(errno, "opening " + path);
    Result<Flock> lock = Flock::TryTake(std::move(fd), Flock::Kind::kShared, folder.text());
    if (!lock.ok()) {
      if (lock.status().code() != StatusCode::kFailedPrecondition) return lock.status();
      return Error(StatusCode::kNotFound, "{}", lock.status().message());
    }
    // If the folder was retired or replaced between open and lock, the lock is on the wrong file.
    struct stat locked {};
    struct stat found {};
    if (::fstat(lock->fd(), &locked) != 0) return ReadErrnoStatus(errno, "stat of " + path);
    if (::fstatat(at.directory(), at.c_str(), &found, 0) != 0) return ReadErrnoStatus(errno, "stat of " + path);
    if (locked.st_dev == found.st_dev && locked.st_ino == found.st_ino) return ReadLock(*std::move(lock));
  }
}

std::string DescribeHolders(const PathAt& file) {
  struct stat found {};
  std::set<std::string> processes;
  std::ifstream locks("/proc/locks");
  if (::fstatat(file.directory(), file.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) {
    const std::string inode = fmt::format(":{}", found.st_ino);
    for (std::string line; std::getline(locks, line);) {
      std::istringstream fields(line);
      std::string number, kind, advisory, access, process, place;
      fields >> number >> kind >> advisory >> access >> process >> place;
      // 0 or -1: a process of another namespace.
      if (kind == "FLOCK" && place.ends_with(inode) && process != "0" && process != "-1") processes.insert(process);
    }
  }
  if (processes.empty()) return "a process that is not visible from here";
  return fmt::format("process {}", fmt::join(processes, ", "));
}

namespace {

constexpr long kXfsMagic = 0x58465342;  // No kernel header defines it.

/// Leases need a local filesystem, to see every opener. Recycling gains nothing with copy-on-write. An overlay counts
/// as the filesystem below it.
Status CheckFilesystem(const UniqueFd& fd, const std::string& name) {
  struct statfs found {};
  if (::fstatfs(fd.get(), &found) != 0) return ErrnoStatus(errno, "asking for the filesystem of " + name);
  switch (found.f_type) {
    case EXT4_SUPER_MAGIC:
    case kXfsMagic:
    case TMPFS_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
      return Status::Ok();
    default:
      return Error(StatusCode::kUnsupported,
                   "{}: its filesystem ({:#x}) is not known to be local and to overwrite in place", name, found.f_type);
  }
}

}  // namespace

Status TakeLease(const UniqueFd& fd, const std::string& name) {
  CAIRN_RETURN_IF_ERROR(CheckFilesystem(fd, name));
  // The kernel signals the holder when somebody opens the file. The default SIGIO would kill the process, so use
  // SIGURG, which is ignored by default, and send it to this thread only (the engine's blocks all signals).
  f_owner_ex owner{.type = F_OWNER_TID, .pid = ::gettid()};
  if (::fcntl(fd.get(), F_SETOWN_EX, &owner) != 0 || ::fcntl(fd.get(), F_SETSIG, SIGURG) != 0) {
    return ErrnoStatus(errno, "preparing a lease on " + name);
  }
  if (::fcntl(fd.get(), F_SETLEASE, F_WRLCK) == 0) return Status::Ok();
  if (errno == EAGAIN) {
    return Error(StatusCode::kFailedPrecondition, "{}: it is open or mapped elsewhere", name);
  }
  if (errno == EINVAL || errno == EOPNOTSUPP) {
    return Error(StatusCode::kUnsupported, "{}: its filesystem does not support leases", name);
  }
  return ErrnoStatus(errno, "taking a lease on " + name);
}

bool HoldsLease(const UniqueFd& fd) { return ::fcntl(fd.get(), F_GETLEASE) == F_WRLCK; }

void ReleaseLease(const UniqueFd& fd) { ::fcntl(fd.get(), F_SETLEASE, F_UNLCK); }

}  // namespace cairn
