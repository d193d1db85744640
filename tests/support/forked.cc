#include "support/forked.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

namespace cairn {

Forked::Forked(const std::function<int(const Say& say)>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  lines_ = UniqueFd(ends[0]);
  UniqueFd said(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ != 0) return;

  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(98);
  lines_.Reset();
  const int fd = said.get();
  const int value = body([fd](const std::string& line) {
    const std::string text = line + "\n";
    // Below PIPE_BUF: written whole, whatever other threads say.
    if (::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) ::_exit(99);
  });
  ::_exit(value);
}

Forked::~Forked() {
  if (reaped_) return;
  Kill();
  ::waitpid(pid_, nullptr, 0);
}

void Forked::Kill() const { ::kill(pid_, SIGKILL); }

bool Forked::Readable(int fd, Deadline deadline) {
  while (true) {
    int timeout = -1;
    if (!deadline.infinite()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.when() - Deadline::Clock::now());
      timeout = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
    }
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&entry, 1, timeout);
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

bool Forked::AwaitDeath(Deadline deadline) {
  const UniqueFd death(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  return death.valid() && Readable(death.get(), deadline);
}

std::optional<std::string> Forked::NextLine(Deadline deadline) {
  while (true) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!Readable(lines_.get(), deadline)) return std::nullopt;
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(lines_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    unread_.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

Forked::End Forked::Wait(Deadline deadline) {
  End end;
  while (std::optional<std::string> line = NextLine(deadline)) end.lines.push_back(*std::move(line));
  // The pipe ends when the child does; at the deadline the child is killed.
  const bool late = deadline.passed();
  if (late) Kill();
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  end.how = late ? How::kTimedOut : WIFSIGNALED(status) ? How::kKilled : How::kExited;
  end.value = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

}  // namespace cairn
