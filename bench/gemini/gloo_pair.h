#pragma once

#include <memory>
#include <string>

#include "bench/gemini/connection.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Where trainings find the peer: a torch.distributed TCPStore, which outlives them. Connections are
/// torch.distributed's send and recv, by its gloo backend over TCP.
class GlooMeeting {
 public:
  virtual ~GlooMeeting() = default;
  /// Opens one at this machine's `address`, at any free port.
  [[nodiscard]] static Result<std::unique_ptr<GlooMeeting>> Make(const std::string& address);
  [[nodiscard]] virtual int port() const = 0;
  /// Whether anybody has asked to be connected since the last Accept.
  virtual Result<bool> Asked() = 0;
  /// Connects to the end that asked last; earlier ones are gone. IoError if that one is gone as well.
  virtual Result<std::unique_ptr<Connection>> Accept() = 0;
};

/// Asks the owner of a meeting for a connection; `own_address` is this end's. The connection stays in the network
/// namespace of the calling thread.
[[nodiscard]] Result<std::unique_ptr<Connection>> Connect(const std::string& own_address, const std::string& address,
                                                          int port);

}  // namespace cairn::bench
