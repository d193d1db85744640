#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "cairn/options.h"

namespace cairn {

/// Wakes a queue's thread by an eventfd. Tells a Wake by the user from a helper thread's nudge.
class WakeSignal {
 public:
  /// `flags` of eventfd(2) in addition to EFD_CLOEXEC.
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
    // Fails only if the counter is full, and then the sleeper is already awake.
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
    errno = before;
  }
  /// Sleeps until a nudge or the deadline; only briefly if someone closed the descriptor. Requires EFD_NONBLOCK.
  void Sleep(Deadline deadline) const {
    pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    std::uint64_t count = 0;
    if (Poll(&entry, 1, deadline) > 0 && ::read(fd_.get(), &count, sizeof count) < 0 && errno == EBADF)
      SleepBriefly(deadline);
  }
  /// Sleeps for 10 ms, or until the deadline if that is sooner.
  static void SleepBriefly(Deadline deadline) {
    const Deadline moment = Deadline::In(std::chrono::milliseconds(10));
    Poll(nullptr, 0, deadline.when() < moment.when() ? deadline : moment);
  }
  /// Whether Wake was called since the last Take.
  [[nodiscard]] bool Take() { return woken_.exchange(false, std::memory_order_acq_rel); }
  /// For a finite deadline; zero once it has passed.
  [[nodiscard]] static timespec TimeLeft(Deadline deadline) {
    const std::chrono::nanoseconds left =
        std::max(deadline.when() - Deadline::Clock::now(), Deadline::Clock::duration::zero());
    return {.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000),
            .tv_nsec = static_cast<long>(left.count() % 1'000'000'000)};
  }
  /// In a forked child: leaves the descriptor alone.
  void Forget() { (void)fd_.Release(); }

 private:
  static int Poll(pollfd* entries, nfds_t count, Deadline deadline) {
    if (deadline.infinite()) return ::ppoll(entries, count, nullptr, nullptr);
    const timespec timeout = TimeLeft(deadline);
    return ::ppoll(entries, count, &timeout, nullptr);
  }

  static_assert(std::atomic<bool>::is_always_lock_free);
  UniqueFd fd_;
  std::atomic<bool> woken_ = false;
};

}  // namespace cairn
