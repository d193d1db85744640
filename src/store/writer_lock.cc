#include "store/writer_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
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

}  // namespace cairn
