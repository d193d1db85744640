#include "base/closed_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace cairn {
namespace {

// O_PATH: it can be neither read nor written. It gets the lowest number that is free.
int OpenNothing() { return ::open("/dev/null", O_PATH | O_CLOEXEC); }

}  // namespace

void TakeClosedStreams() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    if (const int taken = OpenNothing(); taken > STDERR_FILENO) ::close(taken);
  }
}

int UniqueFd::Replaced(int fd) {
  const int higher = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  // In one step, so that it is never free: other threads that looked meanwhile found it taken.
  const int taken = OpenNothing();
  if (taken < 0 || ::dup3(taken, fd, O_CLOEXEC) < 0) ::close(fd);
  if (taken > STDERR_FILENO) ::close(taken);
  errno = error;
  return higher;
}

}  // namespace cairn
