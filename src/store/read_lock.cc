#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "store/io_steps.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/root.h"

namespace cairn {

Result<ReadLock> ReadLock::Take(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  while (true) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, "opening " + path);
    Result<Flock> lock = Flock::TryTake(std::move(fd), Flock::Kind::kShared, folder);
    if (!lock.ok()) {
      if (lock.status().code() != StatusCode::kFailedPrecondition) return lock.status();
      return Error(StatusCode::kNotFound, "{}", lock.status().message());
    }
    // Between open and lock the folder may have been retired, or replaced: then the lock is on the wrong file.
    struct stat locked {};
    struct stat found {};
    if (::fstat(lock->fd(), &locked) != 0) return ErrnoStatus(errno, "stat of " + path);
    if (::stat(path.c_str(), &found) != 0) return ErrnoStatus(errno, "stat of " + path);
    if (locked.st_dev == found.st_dev && locked.st_ino == found.st_ino) return ReadLock(*std::move(lock));
  }
}

Status SetPin(IoQueue& queue, const std::string& root, std::uint64_t step, bool pinned, unsigned file_mode) {
  const std::string folder = JoinPath(root, StepName(step));
  const std::string pin = JoinPath(folder, kPinName);
  // Against a removal that would take the folder, and the pin with it, from under this.
  CAIRN_ASSIGN_OR_RETURN([[maybe_unused]] const ReadLock lock, ReadLock::Take(folder));
  UniqueFd folder_fd;
  UniqueFd pin_fd;
  std::vector<IoStep> steps;
  steps.push_back(OpenDirectoryStep(folder, /*follow=*/false, folder_fd));
  if (pinned) {
    IoStep create = CreateFileStep(pin, 0, file_mode, pin_fd);
    create.on_error = [](int error, Status plain) -> Result<Flow> {
      if (error == EEXIST) return Flow::kNext;
      return plain;
    };
    steps.push_back(std::move(create));
    IoStep fsync = FsyncStep(pin_fd, pin);
    fsync.make = [&pin_fd, make = std::move(fsync.make)]() -> std::optional<IoRequest> {
      if (!pin_fd.valid()) return std::nullopt;
      return make();
    };
    steps.push_back(std::move(fsync));
    steps.push_back(CloseStep(pin_fd, pin));
  } else {
    steps.push_back({.make = [pin] { return IoRequest{.op = IoOp::kUnlink, .path = pin}; },
                     .on_error = [](int error, Status plain) -> Result<Flow> {
                       if (error == ENOENT) return Flow::kNext;
                       return plain;
                     }});
  }
  steps.push_back(FsyncStep(folder_fd, folder));
  return RunStepsBlocking(queue, std::move(steps));
}

}  // namespace cairn
