#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "bench/gemini/peer_memory.h"
#include "bench/pipeline/socket.h"
#include "cairn/status.h"

namespace cairn::bench {

/// The memory of a node that another node's checkpoints go to (strategy gemini), and a thread that serves it over TCP.
/// It outlives the trainings of both nodes, as the process does that Gemini has on each node beside the training.
class ServedMemory {
 public:
  /// At an address of this process's network namespace, or of the calling thread's.
  [[nodiscard]] static Result<std::unique_ptr<ServedMemory>> Open(const std::string& address,
                                                                  std::uint64_t state_bytes);
  ~ServedMemory();
  ServedMemory(const ServedMemory&) = delete;
  ServedMemory& operator=(const ServedMemory&) = delete;

  [[nodiscard]] int port() const { return listener_.port(); }

 private:
  ServedMemory(Listener listener, PeerMemory memory);
  void Serve();

  const Listener listener_;
  PeerMemory memory_;
  std::thread thread_;
};

}  // namespace cairn::bench
