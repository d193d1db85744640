#include "store/pins.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/status_macros.h"
#include "io/io_task.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
namespace {

bool IsThere(const PathAt& path) {
  struct stat found {};
  return ::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 ||
         (errno != ENOENT && errno != ENOTDIR);
}

IoTask<Status> SetPinTask(const PathAt& folder, bool pinned, unsigned file_mode) {
  const PathAt pin = JoinPath(folder, kPinName);
  UniqueFd folder_fd;
  UniqueFd pin_fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(folder, /*follow=*/false, folder_fd));
  if (pinned) {
    IoResult made = co_await io::Create(pin, 0, file_mode, pin_fd);
    if (!made.ok() && made.error != EEXIST) co_return made.status;
    if (made.ok()) CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(pin_fd, pin.text()));
    CAIRN_CO_RETURN_IF_ERROR(co_await io::Close(pin_fd, pin.text()));
  } else {
    IoResult removed = co_await io::Unlink(pin);
    if (!removed.ok() && removed.error != ENOENT) co_return removed.status;
  }
  co_return co_await io::Fsync(folder_fd, folder.text());
}

}  // namespace

bool StepExists(const PathAt& root, std::uint64_t step) { return IsThere(JoinPath(root, StepName(step))); }

bool IsPinned(const PathAt& root, std::uint64_t step) { return IsPinned(JoinPath(root, StepName(step))); }

bool IsPinned(const PathAt& folder) { return IsThere(JoinPath(folder, kPinName)); }

Status SetPin(IoQueue& queue, const PathAt& root, std::uint64_t step, bool pinned, unsigned file_mode) {
  const PathAt folder = JoinPath(root, StepName(step));
  // Against a removal that would take the folder, and the pin with it, from under this.
  CAIRN_ASSIGN_OR_RETURN([[maybe_unused]] const ReadLock lock, ReadLock::Take(folder));
  return RunTaskBlocking(queue, SetPinTask(folder, pinned, file_mode));
}

}  // namespace cairn
