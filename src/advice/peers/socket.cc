#include "advice/peers/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/json_text.h"
#include "base/status_macros.h"

namespace cairn::peers {
namespace {

using nlohmann::json;

/// The time until a deadline as poll takes it: at most a day; -1 for none.
int PollTime(Deadline deadline) {
  constexpr std::int64_t kDay = 86'400'000;
  if (deadline.infinite()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.when() - Deadline::Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kDay));
}

Status Poll(std::span<pollfd> waiting, Deadline deadline) {
  while (true) {
    const int ready = ::poll(waiting.data(), waiting.size(), PollTime(deadline));
    if (ready > 0) return Status::Ok();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "waiting for a connection");
    if (ready == 0 && deadline.passed()) return {StatusCode::kDeadlineExceeded, "does not answer"};
  }
}

/// What send, recv and connect leave in errno.
Status Failure(int error, const std::string& what) {
  if (error == ECONNRESET || error == EPIPE) return {StatusCode::kIoError, "has closed the connection"};
  return ErrnoStatus(error, what);
}

/// An equal share of the time that is left.
Deadline ShareOf(Deadline deadline, int shares) {
  return deadline.infinite() ? deadline : Deadline::In((deadline.when() - Deadline::Clock::now()) / shares);
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

void SetOption(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof(value)); }

Result<UniqueFd> ListenOn(int family, int port) {
  UniqueFd made(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string what = fmt::format("listening at port {}", port);
  if (!made.valid()) return ErrnoStatus(errno, what);
  SetOption(made.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  const in_port_t number = htons(static_cast<std::uint16_t>(port));
  if (family == AF_INET6) {
    SetOption(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = number;  // The address stays "any".
  } else {
    reinterpret_cast<sockaddr_in*>(&address)->sin_port = number;
  }
  const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(made.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, what);
  }
  return made;
}

/// A connection to a port of this host at which nobody listens can get that port as its own, and succeeds.
bool IsConnectedToItself(int fd) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_length = sizeof(own);
  socklen_t other_length = sizeof(other);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_length) == 0 && own_length == other_length &&
         std::memcmp(&own, &other, own_length) == 0;
}

Result<PeerSocket> ConnectToOne(const addrinfo& at, const std::string& what, Deadline deadline) {
  UniqueFd fd(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, what);
  if (::connect(fd.get(), at.ai_addr, at.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return ErrnoStatus(errno, what);
    const Status status = AwaitEvent(fd.get(), POLLOUT, deadline);
    if (!status.ok()) return Error(status.code(), "{}: {}", what, status.message());
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return ErrnoStatus(error, what);
  }
  const bool itself = IsConnectedToItself(fd.get());
  PeerSocket connected(std::move(fd));
  if (!itself) return connected;
  connected.Abort();  // At once, so that the port is free for who will listen there.
  return ErrnoStatus(ECONNREFUSED, what);
}

}  // namespace

PeerSocket::PeerSocket(UniqueFd fd) : fd_(std::move(fd)) {
  SetOption(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that lost its power or its network says nothing: noticed after 10 s.
  SetOption(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 5);
  SetOption(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 1);
  SetOption(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, 5);
}

std::string PeerSocket::address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  std::array<char, 128> text{};
  if (::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  const std::string found = text.data();
  constexpr std::string_view kMapped = "::ffff:";  // IPv4, by a socket for both.
  return found.starts_with(kMapped) ? found.substr(kMapped.size()) : found;
}

Status PeerSocket::Say(const json& message, Deadline deadline) {
  return Send(message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n", deadline);
}

Result<json> PeerSocket::Hear(Deadline deadline) {
  while (true) {
    if (std::optional<json> message = TakeMessage()) {
      if (message->is_object()) return *std::move(message);
      return Status(StatusCode::kInvalidArgument, "expected an answer of `cairn doctor --peers`, found something else");
    }
    CAIRN_RETURN_IF_ERROR(AwaitEvent(fd_.get(), POLLIN, deadline));
    CAIRN_RETURN_IF_ERROR(Fill());
  }
}

Status PeerSocket::Fill() {
  if (unread_.size() > kMostLine) {
    return Error(StatusCode::kInvalidArgument, "expected a line of at most {} bytes, found more", kMostLine);
  }
  std::array<char, 4096> block{};
  const ssize_t n = ::recv(fd_.get(), block.data(), block.size(), 0);
  if (n > 0) unread_.append(block.data(), static_cast<std::size_t>(n));
  if (n > 0 || (n < 0 && (WouldBlock(errno) || errno == EINTR))) return Status::Ok();
  return Failure(n == 0 ? ECONNRESET : errno, "receiving");
}

std::optional<json> PeerSocket::TakeMessage() {
  const std::size_t end = unread_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  const std::string_view line = std::string_view(unread_).substr(0, end);
  json message(json::value_t::discarded);
  if (!IsNestedTooDeeply(line)) message = json::parse(line, nullptr, /*allow_exceptions=*/false);
  unread_.erase(0, end + 1);
  return message;
}

Status PeerSocket::Send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const std::size_t sent, SendSome(bytes));
    bytes.remove_prefix(sent);
    if (!bytes.empty()) CAIRN_RETURN_IF_ERROR(AwaitEvent(fd_.get(), POLLOUT, deadline));
  }
  return Status::Ok();
}

Result<std::size_t> PeerSocket::SendSome(std::string_view bytes) {
  const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (n >= 0) return static_cast<std::size_t>(n);
  if (WouldBlock(errno) || errno == EINTR) return std::size_t{0};
  return Failure(errno, "sending");
}

Result<std::size_t> PeerSocket::Receive(std::span<char> bytes, Deadline deadline) {
  while (true) {
    const ssize_t n = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (n > 0) return static_cast<std::size_t>(n);
    if (n == 0) return Failure(ECONNRESET, "receiving");
    if (!WouldBlock(errno) && errno != EINTR) return Failure(errno, "receiving");
    CAIRN_RETURN_IF_ERROR(AwaitEvent(fd_.get(), POLLIN, deadline));
  }
}

void PeerSocket::Abort() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  fd_.Reset();
}

Status AwaitEvent(int fd, short events, Deadline deadline) {
  pollfd waiting{.fd = fd, .events = events, .revents = 0};
  return Poll({&waiting, 1}, deadline);
}

Status AwaitReadable(const std::vector<int>& fds, Deadline deadline) {
  std::vector<pollfd> waiting;
  waiting.reserve(fds.size());
  for (const int fd : fds) waiting.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  return Poll(waiting, deadline);
}

Result<UniqueFd> ListenAt(int port) {
  Result<UniqueFd> both = ListenOn(AF_INET6, port);
  return both.ok() ? std::move(both) : ListenOn(AF_INET, port);
}

Result<int> PortOf(int listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return ErrnoStatus(errno, "finding the port of a socket");
  }
  // At the same place in both kinds of address.
  return int{ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port)};
}

Result<PeerSocket> ConnectTo(const std::string& host, int port, Deadline deadline) {
  const std::string what = fmt::format("connecting to {}:{}", host, port);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &list); error != 0) {
    return Error(StatusCode::kNotFound, "{}: {}", what, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, &::freeaddrinfo);
  Status last = Error(StatusCode::kNotFound, "{}: the host has no address", what);
  int left = 0;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) ++left;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next, --left) {
    Result<PeerSocket> connected = ConnectToOne(*at, what, ShareOf(deadline, left));
    if (connected.ok()) return connected;
    last = connected.status();
  }
  return last;
}

}  // namespace cairn::peers
