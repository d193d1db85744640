#include "store/flock.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

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

}  // namespace cairn
