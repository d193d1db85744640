#include "base/closed_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace cairn {

void TakeClosedStreams() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // O_PATH: it can be neither read nor written.
    if (const int taken = ::open("/dev/null", O_PATH | O_CLOEXEC); taken > STDERR_FILENO) ::close(taken);
  }
}

}  // namespace cairn
