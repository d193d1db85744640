#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <system_error>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

// The kernel's struct sched_attr in its first form: old C libraries have none, and new ones refuse the kernel's header.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};

/// Blocks every signal on the calling thread while it lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

Result<std::thread> StartThread(const std::string& name, std::function<void()> body) {
  // Blocked before the start: the new thread inherits the mask and never sees a moment without it.
  const SignalsBlocked blocked;
  try {
    return std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
      body();
    });
  } catch (const std::system_error& error) {
    return Error(StatusCode::kResourceExhausted,
                 "cannot start thread {}: {}; see ulimit -u and pids.max of the control group", name,
                 error.code().message());
  }
}

void AskForShortSlices() {
  constexpr std::uint64_t kShortest = 100'000;  // Nanoseconds; the kernel grants no less.
  SchedulingAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = kShortest;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace cairn
