#include "bench/pccheck/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

Status Gone() { return {StatusCode::kFailedPrecondition, "the other process of pccheck has ended"}; }

}  // namespace

Status PcCheckMessage::status() const {
  return code == StatusCode::kOk ? Status::Ok() : Status(code, std::string(text.data()));
}

PcCheckMessage StatusMessage(PcCheckMessage::Kind kind, const Status& status) {
  PcCheckMessage message{.kind = kind, .code = status.code()};
  const std::size_t length = std::min(status.message().size(), PcCheckMessage::kMostText - 1);
  std::copy_n(status.message().begin(), length, message.text.begin());
  return message;
}

Result<std::pair<PcCheckChannel, PcCheckChannel>> PcCheckChannel::Make() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoStatus(errno, "making a pair of sockets");
  }
  return std::pair(PcCheckChannel(UniqueFd(ends[0])), PcCheckChannel(UniqueFd(ends[1])));
}

Status PcCheckChannel::Send(const PcCheckMessage& message) {
  while (true) {
    const ssize_t sent = ::send(socket_.get(), &message, sizeof(message), MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(sizeof(message))) return {};
    if (sent < 0 && errno == EINTR) continue;
    return errno == EPIPE || errno == ECONNRESET ? Gone() : ErrnoStatus(errno, "sending to the other process");
  }
}

Result<PcCheckMessage> PcCheckChannel::Receive() { return *Receive(0); }

std::optional<Result<PcCheckMessage>> PcCheckChannel::Poll() { return Receive(MSG_DONTWAIT); }

std::optional<Result<PcCheckMessage>> PcCheckChannel::Receive(int flags) {
  PcCheckMessage message;
  while (true) {
    const ssize_t got = ::recv(socket_.get(), &message, sizeof(message), flags);
    if (got == static_cast<ssize_t>(sizeof(message))) return message;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    return got == 0 || errno == ECONNRESET ? Gone() : ErrnoStatus(errno, "receiving from the other process");
  }
}

Result<PcCheckMessage> PcCheckChannel::Ask(const PcCheckMessage& question) {
  CAIRN_RETURN_IF_ERROR(Send(question));
  return Receive();
}

void PcCheckChannel::Shut() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace cairn::bench
