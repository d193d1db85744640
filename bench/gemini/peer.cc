#include "bench/gemini/peer.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "bench/emulation/host_memory.h"
#include "bench/gemini/peer_address.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::minutes(10);
constexpr auto kGlance = std::chrono::milliseconds(10);

/// What the peer keeps: two buffers, the newest complete checkpoint in one of them.
class Checkpoints {
 public:
  static Result<Checkpoints> Make(std::uint64_t bytes) {
    CAIRN_ASSIGN_OR_RETURN(auto pool, MakeHostMemory(2 * AlignUp(bytes, kBlock), AlignUp(bytes, kBlock)));
    return Checkpoints(std::move(pool), bytes);
  }

  /// Serves one training until it is gone.
  Status Serve(GlooPair& training) {
    for (;;) {
      CAIRN_ASSIGN_OR_RETURN(const PeerMessage asked, ReceiveMessage(training));
      if (asked.kind == PeerMessage::Kind::kSave) {
        CAIRN_RETURN_IF_ERROR(Take(training, asked));
      } else {
        CAIRN_RETURN_IF_ERROR(Give(training, asked));
      }
    }
  }

 private:
  Checkpoints(std::unique_ptr<BufferPool> pool, std::uint64_t bytes) : pool_(std::move(pool)), bytes_(bytes) {
    for (BufferPool::Chunk& buffer : buffers_) buffer = pool_->TryAcquire(BufferPool::Priority::kSave);
  }

  [[nodiscard]] MutableBytes buffer(std::size_t which) const { return {buffers_[which].data(), bytes_}; }
  [[nodiscard]] PeerMessage Holds() const {
    if (!step_.has_value()) return {.kind = PeerMessage::Kind::kNothing};
    return {.kind = PeerMessage::Kind::kHolds, .step = *step_, .bytes = bytes_};
  }

  // The buffer of the newest is not touched: a training that is killed during a save loses only what it was sending.
  Status Take(GlooPair& training, const PeerMessage& asked) {
    if (asked.bytes != bytes_ || asked.piece_bytes == 0) {
      return Error(StatusCode::kInvalidArgument, "step {}: expected {} bytes, found {}", asked.step, bytes_,
                   asked.bytes);
    }
    CAIRN_RETURN_IF_ERROR(training.Receive(buffer(1 - newest_), asked.piece_bytes));
    newest_ = 1 - newest_;
    step_ = asked.step;
    return SendMessage(training, Holds());
  }

  Status Give(GlooPair& training, const PeerMessage& asked) const {
    CAIRN_RETURN_IF_ERROR(SendMessage(training, Holds()));
    if (!step_.has_value() || asked.piece_bytes == 0) return {};
    CAIRN_RETURN_IF_ERROR(training.Send(buffer(newest_), asked.piece_bytes));
    return training.Flush();
  }

  std::unique_ptr<BufferPool> pool_;
  std::uint64_t bytes_;
  std::array<BufferPool::Chunk, 2> buffers_;
  std::size_t newest_ = 0;
  std::optional<std::uint64_t> step_;  // Of the newest; none before the first.
};

std::string TrainingNetwork() {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(kPeerNetworkFd);
}

}  // namespace

Status RunPeer(const std::string& directory, std::uint64_t state_bytes, const std::string& address,
               const std::string& training_address) {
  CAIRN_ASSIGN_OR_RETURN(Checkpoints checkpoints, Checkpoints::Make(state_bytes));
  CAIRN_ASSIGN_OR_RETURN(const auto meeting, GlooMeeting::Make(address));
  CAIRN_ASSIGN_OR_RETURN(
      const PeerNotice notice,
      PeerNotice::Publish(directory, {.address = address,
                                      .port = meeting->port(),
                                      .training_address = training_address,
                                      .network = address == training_address ? "" : TrainingNetwork(),
                                      .state_bytes = state_bytes}));
  {
    const UniqueFd ready(kPeerReadyFd);
    static_cast<void>(::write(ready.get(), "ready\n", 6));
  }
  Clock::time_point last = Clock::now();
  while (notice.Stands() && Clock::now() - last < kPatience) {
    CAIRN_ASSIGN_OR_RETURN(const bool asked, meeting->Asked());
    if (!asked) {
      std::this_thread::sleep_for(kGlance);
      continue;
    }
    const Result<std::unique_ptr<GlooPair>> training = meeting->Accept();
    // It always ends in an error: the training has ended or was killed.
    const Status ended = training.ok() ? checkpoints.Serve(**training) : training.status();
    fmt::print(stderr, "a training has gone: {}\n", ended.ToString());
    last = Clock::now();
  }
  return {};
}

}  // namespace cairn::bench
