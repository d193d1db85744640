#pragma once

#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "cairn/options.h"

namespace cairn {

/// What a child ends with that cannot limit its threads.
inline constexpr int kNoThreadLimit = 77;

/// RLIMIT_NPROC as another user: root has no such limit. In a Forked child of one thread alone; it stays that user.
class ThreadLimit {
 public:
  static constexpr const char* kSkipReason = "needs root, to become a user without processes";

  /// Hands `folder` to that user too.
  explicit ThreadLimit(const std::string& folder = {}) {
    const auto user = static_cast<uid_t>(1'000'000 + ::getpid());
    if (!folder.empty() && ::chown(folder.c_str(), user, 0) != 0) return;
    usable_ = ::geteuid() == 0 && ::setuid(user) == 0;
  }
  /// Lets the process have `threads` besides its first one. False where that cannot be done.
  [[nodiscard]] bool Allow(rlim_t threads) const {
    const rlimit limit{.rlim_cur = threads + 1, .rlim_max = 1000};
    return usable_ && ::setrlimit(RLIMIT_NPROC, &limit) == 0;
  }

 private:
  bool usable_ = false;
};

/// Whether the calling thread receives signals.
[[nodiscard]] inline bool SignalsOpen() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, SIGTERM) == 0 && sigismember(&mask, SIGINT) == 0;
}

/// Waits until the process has one thread: those that were joined take a moment to leave the kernel's list.
[[nodiscard]] inline bool AloneAgain() {
  const Deadline deadline = Deadline::In(std::chrono::seconds(30));
  while (!deadline.passed()) {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    if (std::distance(begin(tasks), end(tasks)) == 1) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace cairn
