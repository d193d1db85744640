#pragma once

#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// A flock on a whole file, shared by its readers or held by the one that removes it.
///
/// It is given back explicitly: a forked child has the same open file, and the lock would otherwise last until the
/// child has closed it too. For the same reason a child's copy never gives it back.
class Flock {
 public:
  enum class Kind : bool { kShared, kExclusive };
  /// Never waits. FailedPrecondition where somebody holds it the other way.
  [[nodiscard]] static Result<Flock> TryTake(UniqueFd fd, Kind kind, const std::string& name);
  ~Flock();
  Flock(Flock&&) noexcept = default;
  Flock& operator=(Flock&& other) noexcept;
  Flock(const Flock&) = delete;
  Flock& operator=(const Flock&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  explicit Flock(UniqueFd fd);
  void GiveBack();

  UniqueFd fd_;
  pid_t owner_;
};

}  // namespace cairn
