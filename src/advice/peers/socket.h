#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn::peers {

/// One end of a TCP connection between ranks. What they say is a JSON object on a line of its own. No call waits beyond
/// its deadline. IoError where the other end is gone; DeadlineExceeded.
class PeerSocket {
 public:
  /// A longer line is an error.
  static constexpr std::size_t kMostLine = 8192;

  explicit PeerSocket(UniqueFd fd);

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Of the other end, as a number.
  [[nodiscard]] std::string address() const;

  Status Say(const nlohmann::json& message, Deadline deadline);
  Result<nlohmann::json> Hear(Deadline deadline);
  /// Takes in what has arrived, without waiting. Lines that came before the end can still be taken.
  Status Fill();
  /// The next message that has arrived; discarded JSON if the line is something else.
  [[nodiscard]] std::optional<nlohmann::json> TakeMessage();

  // Bytes that are no messages.

  Status Send(std::string_view bytes, Deadline deadline);
  /// At least one byte.
  Result<std::size_t> Receive(std::span<char> bytes, Deadline deadline);
  /// As much as the kernel takes; 0 if it takes none.
  Result<std::size_t> SendSome(std::string_view bytes);
  /// Closes at once and drops what is not sent yet.
  void Abort();

 private:
  UniqueFd fd_;
  std::string unread_;
};

/// Waits until the socket has one of poll's `events`, or any of the sockets can be read.
Status AwaitEvent(int fd, short events, Deadline deadline);
Status AwaitReadable(const std::vector<int>& fds, Deadline deadline);

/// Listens on all addresses. Port 0: any free one.
Result<UniqueFd> ListenAt(int port);
Result<int> PortOf(int listener);
/// Tries each address of the host once, with an equal share of the time: one that drops packets does not take all of
/// it. The messages begin with "connecting to HOST:PORT".
Result<PeerSocket> ConnectTo(const std::string& host, int port, Deadline deadline);

}  // namespace cairn::peers
