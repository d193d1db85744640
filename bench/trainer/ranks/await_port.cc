#include "ranks/await_port.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace cairn::trainer {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A refused connection leaves nothing to wait for but time.
constexpr milliseconds kBetweenTries{50};

/// Empty if the address accepts a connection within `left`.
std::string TryToConnect(const addrinfo& address, microseconds left) {
  const int fd = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (fd < 0) return std::generic_category().message(errno);
  const auto whole = duration_cast<std::chrono::seconds>(left);
  const timeval limit{.tv_sec = whole.count(), .tv_usec = (left - whole).count()};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // connect keeps it too.
  const int failure = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  ::close(fd);
  if (failure == EINPROGRESS || failure == EAGAIN) return "no answer";
  return failure == 0 ? "" : std::generic_category().message(failure);
}

std::string TryAll(const std::string& host, int port, steady_clock::time_point deadline) {
  const addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* first = nullptr;
  const int unknown = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (unknown != 0) return ::gai_strerror(unknown);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(first, &::freeaddrinfo);
  std::string why;
  for (const addrinfo* address = first; address != nullptr; address = address->ai_next) {
    // No limit at all is what 0 means.
    const auto left = std::max(duration_cast<microseconds>(deadline - steady_clock::now()), microseconds(1));
    why = TryToConnect(*address, left);
    if (why.empty()) return "";
  }
  return why;
}

}  // namespace

void AwaitPort(const std::string& host, int port, steady_clock::time_point deadline) {
  while (true) {
    const std::string why = TryAll(host, port, deadline);
    if (why.empty()) return;
    if (steady_clock::now() + kBetweenTries > deadline) throw std::runtime_error("rank 0 does not answer: " + why);
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace cairn::trainer
