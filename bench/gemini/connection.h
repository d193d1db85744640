#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "cairn/status.h"

namespace cairn::bench {

/// One end of a connection of two processes, over which checkpoints go to a peer's memory. [interface]
///
/// Messages arrive in the order in which they were sent, each as long as its receiver expects. Not safe for concurrent
/// use. A call returns IoError once the other end is gone.
class Connection {
 public:
  virtual ~Connection() = default;
  /// Sends the bytes as messages of `piece_bytes`, the last one shorter. Returns while some are under way: they must
  /// stay as they are until Flush.
  virtual Status Send(Bytes bytes, std::uint64_t piece_bytes) = 0;
  /// Waits until everything has been handed to the network.
  virtual Status Flush() = 0;
  /// Receives as many bytes, sent with the same `piece_bytes`, straight into their place.
  virtual Status Receive(MutableBytes bytes, std::uint64_t piece_bytes) = 0;
};

}  // namespace cairn::bench
