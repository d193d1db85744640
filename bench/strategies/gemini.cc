#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "bench/emulation/host_memory.h"
#include "bench/gemini/peer.h"
#include "bench/gemini/peer_memory.h"
#include "bench/strategies/nodes.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kPiece = 4U << 20;

/// Gemini's remote replica: the state is copied to pinned memory piece by piece, each piece goes over the network to
/// the peer's memory as soon as it is there, beside forward and backward, and the update waits only for the copies.
/// One checkpoint at a time. A step is safe once the peer has confirmed that its memory holds all of it.
class Gemini : public Strategy {
 public:
  Gemini(const Workplace& workplace, std::unique_ptr<BufferPool> pool, std::unique_ptr<Connection> peer)
      : at_(workplace),
        pool_(std::move(pool)),
        host_(pool_->TryAcquire(BufferPool::Priority::kSave)),
        peer_(std::move(peer)),
        copier_("gemini-copy", 1),
        sender_("gemini-send", 1) {}

  Status Save(std::uint64_t step) override {
    CAIRN_RETURN_IF_ERROR(Drain());
    {
      MutexLock lock(mutex_);
      copied_ = 0;
      copying_ = sending_ = true;
    }
    copier_.Post([this] { Copy(); });
    sender_.Post([this, step] { Send(step); });
    return {};
  }
  Status BeforeUpdate() override {
    MutexLock lock(mutex_);
    while (copying_) changed_.Wait(mutex_);
    return {};
  }
  Status Drain() override {
    MutexLock lock(mutex_);
    while (copying_ || sending_) changed_.Wait(mutex_);
    return status_;
  }
  Result<std::uint64_t> Restore() override {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t step, NewestOnAll(at_, Ask({.kind = PeerMessage::Kind::kNewest})));
    const PeerMessage wanted{.kind = PeerMessage::Kind::kRestore, .step = step, .piece_bytes = kPiece};
    CAIRN_RETURN_IF_ERROR(Ask(wanted).status());
    CAIRN_RETURN_IF_ERROR(peer_->Receive(host(), kPiece));
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToDevice(host(), at_.state));
    return step;
  }

 private:
  [[nodiscard]] MutableBytes host() const { return {host_.data(), at_.state.bytes()}; }

  // The step that the peer has. NotFound.
  Result<std::uint64_t> Ask(const PeerMessage& question) {
    CAIRN_RETURN_IF_ERROR(SendMessage(*peer_, question));
    CAIRN_ASSIGN_OR_RETURN(const PeerMessage found, ReceiveMessage(*peer_));
    if (found.kind == PeerMessage::Kind::kHolds) return found.step;
    return Error(StatusCode::kNotFound, "the peer of {} has no such checkpoint", at_.directory);
  }

  void Copy() CAIRN_EXCLUDES(mutex_) {
    Status status;
    for (std::uint64_t at = 0; at < host().size() && status.ok(); at += kPiece) {
      const std::uint64_t n = std::min<std::uint64_t>(kPiece, host().size() - at);
      status = at_.gpu.CopyToHost(at_.state, at, host().subspan(at, n));
      MutexLock lock(mutex_);
      if (status.ok()) copied_ = at + n;
      changed_.NotifyAll();
    }
    MutexLock lock(mutex_);
    copying_ = false;
    Note(status);
  }

  void Send(std::uint64_t step) CAIRN_EXCLUDES(mutex_) {
    Status status = SendPieces(step);
    if (status.ok()) status = AwaitDurableOnAll(at_, step);
    if (status.ok()) at_.durable(step);
    MutexLock lock(mutex_);
    sending_ = false;
    Note(status);
  }

  Status SendPieces(std::uint64_t step) CAIRN_EXCLUDES(mutex_) {
    CAIRN_RETURN_IF_ERROR(SendMessage(
        *peer_, {.kind = PeerMessage::Kind::kSave, .step = step, .bytes = host().size(), .piece_bytes = kPiece}));
    for (std::uint64_t at = 0; at < host().size(); at += kPiece) {
      const std::uint64_t n = std::min<std::uint64_t>(kPiece, host().size() - at);
      CAIRN_RETURN_IF_ERROR(AwaitCopied(at + n));
      CAIRN_RETURN_IF_ERROR(peer_->Send(host().subspan(at, n), kPiece));
    }
    CAIRN_RETURN_IF_ERROR(peer_->Flush());
    CAIRN_ASSIGN_OR_RETURN(const PeerMessage said, ReceiveMessage(*peer_));
    if (said.kind == PeerMessage::Kind::kHolds && said.step == step) return {};
    return Error(StatusCode::kInternal, "expected the peer to hold step {}, found it to hold {}", step, said.step);
  }

  Status AwaitCopied(std::uint64_t bytes) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (copied_ < bytes && copying_) changed_.Wait(mutex_);
    return copied_ < bytes ? status_ : Status::Ok();
  }

  void Note(const Status& status) CAIRN_REQUIRES(mutex_) {
    if (status_.ok()) status_ = status;
    changed_.NotifyAll();
  }

  const Workplace at_;
  const std::unique_ptr<BufferPool> pool_;
  const BufferPool::Chunk host_;
  const std::unique_ptr<Connection> peer_;  // The sender's while a save is under way.

  Mutex mutex_;
  CondVar changed_;
  std::uint64_t copied_ CAIRN_GUARDED_BY(mutex_) = 0;  // Of the save under way, bytes in pinned memory.
  bool copying_ CAIRN_GUARDED_BY(mutex_) = false;
  bool sending_ CAIRN_GUARDED_BY(mutex_) = false;
  Status status_ CAIRN_GUARDED_BY(mutex_);  // The first failure.
  WorkerPool copier_;                       // These two last: they end before what they use.
  WorkerPool sender_;
};

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace) {
  const std::uint64_t bytes = workplace.state.bytes();
  CAIRN_ASSIGN_OR_RETURN(auto pool, MakePinnedMemory(workplace.gpu, AlignUp(bytes, kBlock), AlignUp(bytes, kBlock)));
  CAIRN_ASSIGN_OR_RETURN(auto peer, workplace.connect_to_peer ? workplace.connect_to_peer()
                                                              : ConnectToPeer(workplace.directory, bytes,
                                                                              workplace.network_bytes_per_second));
  return std::unique_ptr<Strategy>(std::make_unique<Gemini>(workplace, std::move(pool), std::move(peer)));
}

}  // namespace

StrategyKind GeminiKind() {
  return {.name = "gemini",
          .tuning =
              "one replica, in a peer's memory (two buffers), by c10d's gloo over TCP; pinned memory of the state's "
              "size, so that the update waits for the copy alone; pieces of 4 MiB, each sent once copied; the next "
              "save waits for it; the peer, which is another machine's, shares this one's cores",
          .durable_means = "whole in the peer's memory: lost where both machines are",
          .networked = true,
          .needs_torch = true,
          .checkpoints_on_disk = [](int) { return 0; },
          // Two more in the peer, which is a process of this machine.
          .host_bytes = [](std::uint64_t state_bytes, std::uint64_t, int) { return 3 * state_bytes; },
          .open = Open};
}

}  // namespace cairn::bench
