#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace cairn {

/// What a queue's thread sleeps on besides its ring: an eventfd, and whether a person asked or a helper thread
/// finished.
class WakeSignal {
 public:
  /// `flags` of eventfd(2) besides EFD_CLOEXEC.
  [[nodiscard]] Status Open(int flags) {
    fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | flags));
    return fd_.valid() ? Status() : ErrnoStatus(errno, "eventfd of an I/O queue");
  }
  [[nodiscard]] int fd() const { return fd_.get(); }

  /// IoQueue::Wake. Safe from any thread and from signal handlers.
  void Wake() {
    woken_.store(true, std::memory_order_release);
    Nudge();
  }
  /// Ends the sleep without asking RunOnce to return.
  void Nudge() {
    const int before = errno;
    const std::uint64_t one = 1;
    // It fails only when the counter is full, and then the sleeper is awake already.
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
    errno = before;
  }
  /// Whether Wake was called since the last time this was.
  [[nodiscard]] bool Take() { return woken_.exchange(false, std::memory_order_acq_rel); }
  /// In a forked child: leaves the descriptor alone.
  void Forget() { (void)fd_.Release(); }

 private:
  static_assert(std::atomic<bool>::is_always_lock_free);
  UniqueFd fd_;
  std::atomic<bool> woken_ = false;
};

}  // namespace cairn
