#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/lifecycle.h"
#include "device/buffer_pool.h"
#include "engine/chunk_source.h"
#include "engine/context.h"
#include "engine/save_task.h"
#include "engine/staged_chunks.h"

namespace cairn {

enum class CaptureStage : std::uint8_t {
  /// For older saves.
  kWaiting,
  /// Copies are being enqueued.
  kCopying,
  /// All copies that read the caller's tensors are enqueued.
  kEnqueued,
  /// All of these are done.
  kCaptured,
  /// No further copies; those in flight are dropped as they end.
  kStopped,
};
[[nodiscard]] constexpr bool Follows(CaptureStage from, CaptureStage to) {
  return to == CaptureStage::kStopped || static_cast<int>(to) == static_cast<int>(from) + 1;
}

/// The first half of a save: copies the caller's tensors into chunks and computes their checksums. For the engine's
/// thread.
///
/// Every copy is waited for, so that tensor memory is never read after the save has ended. Those of a lost device end
/// with its error.
class Capture final : public ChunkSource, public std::enable_shared_from_this<Capture> {
 public:
  struct Callbacks {
    /// Chunks come in no particular order.
    std::function<void(std::shared_ptr<FilledChunk>)> filled;
    /// At most once; no chunk is filled afterwards.
    std::function<void(Status)> failed;
    /// The tensors may be overwritten.
    std::function<void()> captured;
    /// No checksum is in flight any more.
    std::function<void()> summed;
    /// A copy or the last checksum ended after a failure or Stop: check idle().
    std::function<void()> quiet;
    /// A forbidden transition (see Lifecycle).
    std::function<void(Status)> bug;
  };

  Capture(EngineContext& context, SaveTask& task, Callbacks callbacks);

  /// For a shard in memory: where the file is mapped that has the stream. No chunk is copied before.
  void CopyInto(std::byte* stream) { stream_ = stream; }
  /// Enqueues what it can: chunks to staging memory while that has slots, then chunks to the host while the pool has
  /// buffers (only with `chunks`). Call it again whenever a copy has ended.
  void Advance(bool chunks);
  /// Every copy that reads the caller's tensors is enqueued.
  [[nodiscard]] bool enqueued() const { return stage_ == CaptureStage::kEnqueued || stage_ == CaptureStage::kCaptured; }
  /// Every chunk of the stream has been given a buffer, and no copy waits for room in a lane: a younger save's copies
  /// come behind all of them.
  [[nodiscard]] bool all_buffered() const { return next_ == task_.snapshot().bytes() && planned_.empty(); }
  /// Has a worker compute the checksums of a chunk, unless a device has. Of what a GPU has summed the worker sums one
  /// block in kComparedBlocks, other ones in each save: if a sum is not the GPU's, the save fails.
  void Sum(std::shared_ptr<FilledChunk> chunk, OnSummed then) override;
  static constexpr std::uint64_t kComparedBlocks = 32;
  [[nodiscard]] std::optional<StreamSums> sums() const override;
  /// No copy and no checksum is in flight.
  [[nodiscard]] bool idle() const { return copies_in_flight_ == 0 && sums_in_flight_ == 0; }
  /// Starts no further copies; drops chunks in flight as they end.
  void Stop();
  /// Returns staging memory. Call it when idle, at the latest when the save ends.
  void ReleaseStaging();

 private:
  enum class CopyState : std::uint8_t { kPlanned, kInFlight, kDone };
  struct Copy {
    Device* device = nullptr;
    // It reads the caller's tensors.
    bool reads = false;
    CopyState state = CopyState::kPlanned;
  };
  // Copies that end together: one chunk's to the host, or those of some chunks to staging memory.
  struct Batch {
    // Without memory when staging.
    FilledChunk chunk;
    StagedChunks::Run staged;
    std::vector<Copy> copies;
    Status status;
    SaveTask::Clock::time_point begun;
    // Nothing is copied: it tells when the caller's streams have come to the call of Save.
    bool arrival = false;
  };

  // A copy that its lane has no room for yet.
  struct Planned {
    std::uint64_t batch = 0;
    std::size_t copy = 0;
    CopyBatch copies;
  };

  [[nodiscard]] bool stopped() const { return stage_ == CaptureStage::kStopped; }
  [[nodiscard]] Status Enqueue(bool chunks);
  // A chunk is on its way to the host: a pause that begins now could not hold another one back.
  [[nodiscard]] bool KeepsBack() const;
  // For CPU tensors that the caller's streams may still write: nothing goes to the host before these have come to the
  // call of Save.
  void AskForArrival();
  // False if there is nothing to stage, or no slot.
  [[nodiscard]] bool PlanStaging();
  void PlanChunk(BufferPool::Chunk buffer, std::byte* memory);
  void Plan(std::uint64_t batch, Device& device, bool reads, CopyBatch copies);
  // The lane of the device for the next chunk to the host: in turn.
  [[nodiscard]] int NextLane(const Device& device);
  [[nodiscard]] Status LaunchPlanned();
  [[nodiscard]] Status Launch(Planned planned);
  [[nodiscard]] std::span<const std::uint32_t> SumsOf(const FilledChunk& chunk) const;
  // The sum of a block of the stream. Looks for what is not finite.
  [[nodiscard]] std::uint32_t SumBlock(std::uint64_t begin, Bytes bytes);
  // Of the file that the byte of the stream is of.
  [[nodiscard]] std::atomic<NonFinite>& Worst(std::uint64_t at) {
    return task_.snapshot().IsKept(at) ? worst_kept_ : worst_;
  }
  [[nodiscard]] bool looks() const { return context_.parts.options.nonfinite == MarkNonFinite::kMark; }
  // Whether the host sums this block too, which a GPU has summed.
  [[nodiscard]] bool Compares(std::uint64_t block) const;
  [[nodiscard]] Status Differs(std::uint64_t block, std::uint32_t sum) const;
  [[nodiscard]] Status WaitForCallersStreams(const Device& device, int lane);
  [[nodiscard]] Status RecordRead(const Device& device, int lane);
  void MarkEnqueuedIfRead();
  void OnCopied(std::uint64_t id, std::size_t copy, Status status);
  void OnBatchCopied(std::uint64_t id);
  void Fail(Status status);
  void UpdateCaptured();

  EngineContext& context_;
  SaveTask& task_;
  const Callbacks callbacks_;
  std::vector<std::uint32_t> sums_;
  std::atomic<NonFinite> worst_ = NonFinite::kNone;
  std::atomic<NonFinite> worst_kept_ = NonFinite::kNone;
  std::map<std::uint64_t, Batch> batches_;
  StagedChunks staged_;
  // In stream order.
  std::deque<Planned> planned_;
  // See CopyInto.
  std::byte* stream_ = nullptr;
  // The first stream byte without a buffer.
  std::uint64_t next_ = 0;
  std::uint64_t next_batch_ = 0;
  // How many chunks to the host have had a lane of the device.
  std::map<const Device*, std::uint64_t> chunks_of_;
  std::uint64_t copies_in_flight_ = 0;
  // Copies that read the caller's tensors: planned ones, and those that have not ended.
  std::uint64_t reads_planned_ = 0;
  std::uint64_t reads_left_ = 0;
  std::uint64_t sums_in_flight_ = 0;
  enum class Arrival : std::uint8_t { kUnasked, kAwaited, kArrived };
  Arrival arrival_ = Arrival::kUnasked;
  // The pool had no buffer for the next chunk.
  bool short_of_buffers_ = false;
  Lifecycle<CaptureStage> stage_{"the capture of a save", CaptureStage::kWaiting, callbacks_.bug};
  // Some copy to staging memory, and some copy to the host, has read the caller's tensors.
  bool read_by_staging_ = false;
  bool read_by_host_ = false;
};

}  // namespace cairn
