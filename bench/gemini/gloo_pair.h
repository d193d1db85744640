#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "cairn/status.h"

namespace cairn::bench {

/// One end of a connection of two processes: torch.distributed's send and recv, by its gloo backend over TCP.
///
/// Messages arrive in the order in which they were sent, each as long as its receiver expects. Not safe for concurrent
/// use. A call returns IoError once the other end is gone.
class GlooPair {
 public:
  virtual ~GlooPair() = default;
  /// Sends the bytes as messages of `piece_bytes`, the last one shorter. Returns while some are under way: they must
  /// stay as they are until Flush.
  virtual Status Send(Bytes bytes, std::uint64_t piece_bytes) = 0;
  /// Waits until everything has been handed to the network.
  virtual Status Flush() = 0;
  /// Receives as many bytes, sent with the same `piece_bytes`, straight into their place.
  virtual Status Receive(MutableBytes bytes, std::uint64_t piece_bytes) = 0;
};

/// Where trainings find the peer: a torch.distributed TCPStore, which outlives them.
class GlooMeeting {
 public:
  virtual ~GlooMeeting() = default;
  /// Opens one at this machine's `address`, at any free port.
  [[nodiscard]] static Result<std::unique_ptr<GlooMeeting>> Make(const std::string& address);
  [[nodiscard]] virtual int port() const = 0;
  /// Whether anybody has asked to be connected since the last Accept.
  virtual Result<bool> Asked() = 0;
  /// Connects to the end that asked last; earlier ones are gone. IoError if that one is gone as well.
  virtual Result<std::unique_ptr<GlooPair>> Accept() = 0;
};

/// Asks the owner of a meeting for a connection; `own_address` is this end's. The connection stays in the network
/// namespace of the calling thread.
[[nodiscard]] Result<std::unique_ptr<GlooPair>> Connect(const std::string& own_address, const std::string& address,
                                                        int port);

}  // namespace cairn::bench
