#include "stop_request.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "console.h"

namespace cairn::trainer {
namespace {

constexpr std::chrono::seconds kSameRequest{1};

// Leaves out signals that are already ignored, for example by nohup.
sigset_t HandledSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::sigaddset(&set, signal);
  }
  return set;
}

[[noreturn]] void EndBy(int signal) {
  const sigset_t set = HandledSignals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::kill(::getpid(), signal);
  ::_exit(128 + signal);  // The signal does not end a container's first process.
}

}  // namespace

StopRequest::StopRequest(std::chrono::nanoseconds grace, std::function<bool(const char*)> announce)
    : grace_(grace), announce_(std::move(announce)) {
  const sigset_t set = HandledSignals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  end_ = ::eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || end_ < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
  thread_ = std::thread([this] { Listen(); });
}

StopRequest::~StopRequest() {
  over_ = true;
  ::eventfd_write(end_, 1);
  thread_.join();
  ::close(end_);
  ::close(signals_);
  const sigset_t set = HandledSignals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::optional<StopRequest::Clock::time_point> StopRequest::at() const {
  const Clock::rep at = at_.load();
  if (at == 0) return std::nullopt;
  return Clock::time_point(Clock::duration(at));
}

int StopRequest::Next(int patience_ms) const {
  std::array<pollfd, 2> waiting = {pollfd{signals_, POLLIN, 0}, pollfd{end_, POLLIN, 0}};
  ::poll(waiting.data(), waiting.size(), patience_ms);
  signalfd_siginfo info{};
  if (over_ || ::read(signals_, &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

void StopRequest::Listen() {
  int first = 0;
  while (first == 0 && !over_) first = Next(-1);
  if (over_) return;
  const Clock::time_point came = Clock::now();
  const char* name = first == SIGINT ? "SIGINT" : "SIGTERM";
  if (!announce_(name)) EndBy(first);
  signal_ = name;
  at_ = came.time_since_epoch().count();
  // A little longer than promised, so that the run can end, or report its failure, first.
  const Clock::time_point end = came + grace_ + std::chrono::milliseconds(500);
  while (!over_ && Clock::now() < end) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    const int again = Next(static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (again != 0 && Clock::now() - came > kSameRequest) EndBy(again);
  }
  if (over_) return;
  PrintError(std::string(name) + ": the grace period is over");
  EndBy(first);
}

}  // namespace cairn::trainer
