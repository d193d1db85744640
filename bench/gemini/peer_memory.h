#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/status_macros.h"
#include "bench/gemini/connection.h"
#include "cairn/status.h"
#include "device/buffer_pool.h"

namespace cairn::bench {

/// What a training and its peer send each other before and after the bytes of a checkpoint.
struct PeerMessage {
  enum class Kind : std::uint64_t {
    kSave = 1,    ///< Bytes follow; answered with kHolds once all of them are there.
    kNewest = 2,  ///< Answered with kHolds or kNothing.
    kRestore =
        3,       ///< The step is the newest one or the one before; answered as kNewest, and after kHolds bytes follow.
    kHolds = 4,  ///< The step, complete in the peer's memory.
    kNothing = 5,
  };
  Kind kind = Kind::kNewest;
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;        ///< Of the checkpoint.
  std::uint64_t piece_bytes = 0;  ///< Of each message that it comes in.
};
inline Status SendMessage(Connection& to, const PeerMessage& message) {
  CAIRN_RETURN_IF_ERROR(to.Send(std::as_bytes(std::span(&message, 1)), sizeof(message)));
  return to.Flush();
}
[[nodiscard]] inline Result<PeerMessage> ReceiveMessage(Connection& from) {
  PeerMessage message;
  CAIRN_RETURN_IF_ERROR(from.Receive(std::as_writable_bytes(std::span(&message, 1)), sizeof(message)));
  return message;
}

/// What a peer keeps: two buffers, one with the newest complete checkpoint, the other with the one before it until the
/// next one comes.
class PeerMemory {
 public:
  [[nodiscard]] static Result<PeerMemory> Make(std::uint64_t state_bytes);

  /// Serves one training until it is gone, and returns why that is.
  Status Serve(Connection& training);

 private:
  struct Buffer {
    BufferPool::Chunk memory;
    std::optional<std::uint64_t> step;  // None: not whole.
  };

  PeerMemory(std::unique_ptr<BufferPool> pool, std::uint64_t bytes);
  [[nodiscard]] MutableBytes bytes_of(std::size_t which) const { return {buffers_[which].memory.data(), bytes_}; }
  [[nodiscard]] PeerMessage Holds() const;
  Status Take(Connection& training, const PeerMessage& asked);
  Status Give(Connection& training, const PeerMessage& asked);

  std::unique_ptr<BufferPool> pool_;
  std::uint64_t bytes_;
  std::array<Buffer, 2> buffers_;
  std::size_t newest_ = 0;
};

}  // namespace cairn::bench
