#include "bench/gemini/peer_memory.h"

#include <utility>

#include "bench/emulation/host_memory.h"

namespace cairn::bench {

Result<PeerMemory> PeerMemory::Make(std::uint64_t state_bytes) {
  const std::uint64_t each = AlignUp(state_bytes, kBlock);
  CAIRN_ASSIGN_OR_RETURN(auto pool, MakeHostMemory(2 * each, each));
  return PeerMemory(std::move(pool), state_bytes);
}

PeerMemory::PeerMemory(std::unique_ptr<BufferPool> pool, std::uint64_t bytes) : pool_(std::move(pool)), bytes_(bytes) {
  for (Buffer& buffer : buffers_) buffer.memory = pool_->TryAcquire(BufferPool::Priority::kSave);
}

Status PeerMemory::Serve(Connection& training) {
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const PeerMessage asked, ReceiveMessage(training));
    switch (asked.kind) {
      case PeerMessage::Kind::kSave:
        CAIRN_RETURN_IF_ERROR(Take(training, asked));
        break;
      case PeerMessage::Kind::kNewest:
        CAIRN_RETURN_IF_ERROR(SendMessage(training, Holds()));
        break;
      case PeerMessage::Kind::kRestore:
        CAIRN_RETURN_IF_ERROR(Give(training, asked));
        break;
      default:
        return Error(StatusCode::kInvalidArgument, "expected a question of a training, found message {}",
                     static_cast<std::uint64_t>(asked.kind));
    }
  }
}

PeerMessage PeerMemory::Holds() const {
  const std::optional<std::uint64_t> step = buffers_[newest_].step;
  if (!step.has_value()) return {.kind = PeerMessage::Kind::kNothing};
  return {.kind = PeerMessage::Kind::kHolds, .step = *step, .bytes = bytes_};
}

// The buffer of the newest is not touched: a training that is killed during a save loses only what it was sending.
Status PeerMemory::Take(Connection& training, const PeerMessage& asked) {
  if (asked.bytes != bytes_ || asked.piece_bytes == 0) {
    return Error(StatusCode::kInvalidArgument, "step {}: expected {} bytes, found {}", asked.step, bytes_, asked.bytes);
  }
  const std::size_t other = 1 - newest_;
  buffers_[other].step.reset();
  CAIRN_RETURN_IF_ERROR(training.Receive(bytes_of(other), asked.piece_bytes));
  buffers_[other].step = asked.step;
  newest_ = other;
  return SendMessage(training, Holds());
}

// A training that goes back to the checkpoint before the newest one abandons that.
Status PeerMemory::Give(Connection& training, const PeerMessage& asked) {
  if (buffers_[newest_].step != asked.step && buffers_[1 - newest_].step == asked.step) newest_ = 1 - newest_;
  if (buffers_[newest_].step != asked.step || asked.piece_bytes == 0) {
    return SendMessage(training, {.kind = PeerMessage::Kind::kNothing});
  }
  CAIRN_RETURN_IF_ERROR(SendMessage(training, Holds()));
  CAIRN_RETURN_IF_ERROR(training.Send(bytes_of(newest_), asked.piece_bytes));
  return training.Flush();
}

}  // namespace cairn::bench
