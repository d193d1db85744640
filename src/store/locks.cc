#include "store/locks.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): SIGURG
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "format/manifest.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {

// The writer's

namespace {

/// A root that a process has open for writing. The process is part of it because a forked child inherits the list.
struct OpenRoot {
  dev_t device;
  ino_t inode;
  pid_t process;
  friend bool operator==(const OpenRoot&, const OpenRoot&) = default;
};

/// The roots that this process writes. There can be one list alone, as the locks it stands in for are the process's.
class OpenRoots {
 public:
  [[nodiscard]] bool Add(const OpenRoot& root) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (std::find(roots_.begin(), roots_.end(), root) != roots_.end()) return false;
    roots_.push_back(root);
    return true;
  }
  void Remove(const OpenRoot& root) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::erase(roots_, root);
  }

 private:
  Mutex mutex_;
  std::vector<OpenRoot> roots_ CAIRN_GUARDED_BY(mutex_);
};

OpenRoots& Roots() {
  static OpenRoots roots;
  return roots;
}

/// "process 1234"; none where the lock was given back meanwhile.
std::optional<std::string> Holder(int fd) {
  struct flock asked {};
  asked.l_type = F_WRLCK;
  asked.l_whence = SEEK_SET;
  if (::fcntl(fd, F_GETLK, &asked) != 0) return "another process";
  if (asked.l_type == F_UNLCK) return std::nullopt;
  if (asked.l_pid <= 0) return "a process of another machine or container";
  return fmt::format("process {}", asked.l_pid);
}

}  // namespace

WriterLock::WriterLock(dev_t device, ino_t inode) : device_(device), inode_(inode), owner_(::getpid()) {}

WriterLock::WriterLock(WriterLock&& other) noexcept
    : device_(other.device_), inode_(other.inode_), owner_(std::exchange(other.owner_, 0)), fd_(std::move(other.fd_)) {}

WriterLock::~WriterLock() {
  if (owner_ == 0 || owner_ != ::getpid()) return;
  // In this order: a second writer that came in between would lose its lock by this close.
  fd_.Reset();
  Roots().Remove({device_, inode_, owner_});
}

void WriterLock::ForgetAfterFork() { owner_ = 0; }

Result<WriterLock> WriterLock::Take(const std::string& root, unsigned file_mode) {
  struct stat found {};
  if (::stat(root.c_str(), &found) != 0) return ErrnoStatus(errno, "looking for " + root);
  if (!Roots().Add({found.st_dev, found.st_ino, ::getpid()})) {
    return Error(StatusCode::kFailedPrecondition, "{} is open for writing already, in this process ({})", root,
                 ::getpid());
  }
  WriterLock lock(found.st_dev, found.st_ino);

  const std::string path = JoinPath(root, kLockName);
  lock.fd_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, file_mode));
  if (!lock.fd_.valid()) return ErrnoStatus(errno, "opening " + path);
  while (true) {
    struct flock wanted {};
    wanted.l_type = F_WRLCK;
    wanted.l_whence = SEEK_SET;
    if (::fcntl(lock.fd_.get(), F_SETLK, &wanted) == 0) return lock;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) return ErrnoStatus(errno, "locking " + path);
    if (const std::optional<std::string> holder = Holder(lock.fd_.get())) {
      return Error(StatusCode::kFailedPrecondition, "{} is open for writing already, in {}", root, *holder);
    }
  }
}

// Readers'

Flock::Flock(UniqueFd fd) : fd_(std::move(fd)), owner_(::getpid()) {}

Flock::~Flock() { GiveBack(); }

Flock& Flock::operator=(Flock&& other) noexcept {
  if (this != &other) {
    GiveBack();
    fd_ = std::move(other.fd_);
    owner_ = other.owner_;
  }
  return *this;
}

void Flock::GiveBack() {
  if (fd_.valid() && owner_ == ::getpid()) ::flock(fd_.get(), LOCK_UN);
}

Result<Flock> Flock::TryTake(UniqueFd fd, Kind kind, const std::string& name) {
  if (::flock(fd.get(), (kind == Kind::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return Flock(std::move(fd));
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, fmt::format("locking {}", name));
  return Error(StatusCode::kFailedPrecondition, "{} is {}", name,
               kind == Kind::kShared ? "being removed" : "being read");
}

Result<ReadLock> ReadLock::Take(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  while (true) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) return ReadErrnoStatus(errno, "opening " + path);
    Result<Flock> lock = Flock::TryTake(std::move(fd), Flock::Kind::kShared, folder);
    if (!lock.ok()) {
      if (lock.status().code() != StatusCode::kFailedPrecondition) return lock.status();
      return Error(StatusCode::kNotFound, "{}", lock.status().message());
    }
    // Between open and lock the folder may have been retired, or replaced: then the lock is on the wrong file.
    struct stat locked {};
    struct stat found {};
    if (::fstat(lock->fd(), &locked) != 0) return ReadErrnoStatus(errno, "stat of " + path);
    if (::stat(path.c_str(), &found) != 0) return ReadErrnoStatus(errno, "stat of " + path);
    if (locked.st_dev == found.st_dev && locked.st_ino == found.st_ino) return ReadLock(*std::move(lock));
  }
}

// A spare's

namespace {

constexpr long kXfsMagic = 0x58465342;  // No header of the kernel's has it.

/// Local, so that a lease knows of every opener, and no copy-on-write, so that there is something to be gained. An
/// overlay stands for the filesystem below it.
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
                   "{}: its filesystem ({:#x}) is not known to be local and to write in place", name, found.f_type);
  }
}

}  // namespace

Status TakeLease(const UniqueFd& fd, const std::string& name) {
  CAIRN_RETURN_IF_ERROR(CheckFilesystem(fd, name));
  // Who wants the file open is told to the holder by a signal, SIGIO, which ends a process that does not expect it.
  // It goes to this thread alone (the engine's blocks all signals), and as one that is ignored by default.
  f_owner_ex owner{.type = F_OWNER_TID, .pid = ::gettid()};
  if (::fcntl(fd.get(), F_SETOWN_EX, &owner) != 0 || ::fcntl(fd.get(), F_SETSIG, SIGURG) != 0) {
    return ErrnoStatus(errno, "preparing a lease on " + name);
  }
  if (::fcntl(fd.get(), F_SETLEASE, F_WRLCK) == 0) return Status::Ok();
  if (errno == EAGAIN) {
    return Error(StatusCode::kFailedPrecondition, "{}: somebody has it open or mapped", name);
  }
  if (errno == EINVAL || errno == EOPNOTSUPP) {
    return Error(StatusCode::kUnsupported, "{}: its filesystem gives no leases", name);
  }
  return ErrnoStatus(errno, "taking a lease on " + name);
}

bool HoldsLease(const UniqueFd& fd) { return ::fcntl(fd.get(), F_GETLEASE) == F_WRLCK; }

void GiveBackLease(const UniqueFd& fd) { ::fcntl(fd.get(), F_SETLEASE, F_UNLCK); }

}  // namespace cairn
