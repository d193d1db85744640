#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>  // NOLINT(modernize-deprecated-headers): offsetof for the filter
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>

namespace cairn {

/// Called for a system call before the kernel carries it out: 0 lets it, an errno is answered instead. Runs on another
/// thread of this process, so that pointers among the arguments can be followed, and may make any call itself.
using CallHook = std::function<int(const seccomp_data& call)>;

/// The path argument of an openat.
[[nodiscard]] inline std::string PathOf(const seccomp_data& call) {
  return reinterpret_cast<const char*>(call.args[1]);
}

/// Runs `body` on a thread of its own in which each system call of that number is hooked (by seccomp: the calls are the
/// real ones). False, and nothing has run, where this machine does not let a test do that.
[[nodiscard]] inline bool RunHooked(long number, const CallHook& hook, const std::function<void()>& body) {
  std::array<sock_filter, 4> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  constexpr int kPending = -2;
  std::atomic<int> listener = kPending;
  std::atomic<bool> ended = false;
  std::thread thread([&] {
    const bool allowed = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
    const long fd =
        !allowed ? -1 : ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    listener = static_cast<int>(fd);
    listener.notify_all();
    if (fd >= 0) body();
    ended = true;
  });
  listener.wait(kPending);
  const int fd = listener;
  while (fd >= 0 && !ended) {
    // The listener hangs up when the thread ends; the time only bounds how long an end goes unseen on old kernels.
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 100) <= 0 || (ready.revents & POLLIN) == 0) continue;
    seccomp_notif asked{};
    if (::ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) continue;
    const int error = hook(asked.data);
    seccomp_notif_resp answer{};
    answer.id = asked.id;
    answer.error = -error;
    answer.flags = error == 0 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0;
    ::ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
  thread.join();
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

}  // namespace cairn
