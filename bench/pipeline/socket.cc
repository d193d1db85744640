#include "bench/pipeline/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/status_macros.h"
#include "bench/pipeline/poll_time.h"

namespace cairn::bench {
namespace {

Result<sockaddr_in> AddressOf(const std::string& address, int port) {
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(address.c_str(), nullptr, &wanted, &list); error != 0) {
    return Error(StatusCode::kInvalidArgument, "expected an IPv4 address or a host's name, found \"{}\": {}", address,
                 ::gai_strerror(error));
  }
  sockaddr_in found{};
  std::memcpy(&found, list->ai_addr, sizeof(found));
  ::freeaddrinfo(list);
  found.sin_port = htons(static_cast<std::uint16_t>(port));
  return found;
}

Result<UniqueFd> MakeSocket() {
  UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made.valid()) return ErrnoStatus(errno, "making a socket");
  return made;
}

std::unique_ptr<Socket> Connected(UniqueFd fd) {
  const int yes = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  return std::make_unique<Socket>(std::move(fd));
}

Status Gone(const char* what) { return {StatusCode::kIoError, std::string(what) + ": the other end is gone"}; }

}  // namespace

Status Socket::Send(Bytes bytes, std::uint64_t /*piece_bytes*/) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return Gone("sending");
    if (n < 0) return ErrnoStatus(errno, "sending");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status Socket::Receive(MutableBytes bytes, std::uint64_t /*piece_bytes*/) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return Gone("receiving");
    if (n < 0) return ErrnoStatus(errno, "receiving");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

std::string Socket::peer() const {
  sockaddr_in at{};
  socklen_t length = sizeof(at);
  std::array<char, INET_ADDRSTRLEN> text{};
  if (::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0) return "unknown";
  return ::inet_ntop(AF_INET, &at.sin_addr, text.data(), text.size());
}

void Socket::Shutdown() const { ::shutdown(fd_.get(), SHUT_RDWR); }

Result<Listener> Listener::Open(const std::string& address, int port) {
  CAIRN_ASSIGN_OR_RETURN(sockaddr_in at, AddressOf(address, port));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  socklen_t length = sizeof(at);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    return ErrnoStatus(errno, fmt::format("listening at {}:{}", address, port));
  }
  return Listener(std::move(fd), address, ntohs(at.sin_port));
}

Result<std::unique_ptr<Socket>> Listener::Accept(Deadline deadline) const {
  pollfd waiting{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready = ::poll(&waiting, 1, PollTime(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return ErrnoStatus(errno, "waiting for a connection");
    if (ready == 0) return Status(StatusCode::kDeadlineExceeded, "nobody has connected");
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) return Connected(std::move(fd));
    if (errno == EINVAL) return Status(StatusCode::kCancelled, "the listening socket was shut down");
    if (errno != EINTR && errno != ECONNABORTED) return ErrnoStatus(errno, "accepting a connection");
  }
}

void Listener::Shutdown() const { ::shutdown(fd_.get(), SHUT_RDWR); }

Result<std::unique_ptr<Socket>> ConnectTo(const std::string& address, int port) {
  CAIRN_ASSIGN_OR_RETURN(const sockaddr_in at, AddressOf(address, port));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, fmt::format("connecting to {}:{}", address, port));
  }
  return Connected(std::move(fd));
}

}  // namespace cairn::bench
