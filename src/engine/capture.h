#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/lifecycle.h"
#include "device/buffer_pool.h"
#include "engine/context.h"
#include "engine/save_task.h"

namespace cairn {

/// A part of the stream that has been copied and waits for its write and its checksum. The buffer returns to the pool
/// after both.
struct FilledChunk {
  BufferPool::Chunk buffer;
  /// Offsets in the stream.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// The device computed its checksums during the copy.
  bool summed = false;
};

enum class CaptureStage : std::uint8_t {
  /// For older saves and the caller's streams.
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
/// OnDeviceLost gives up copies that a lost device never finishes. Every other copy is waited for, so that tensor
/// memory is never read after the save has ended.
class Capture : public std::enable_shared_from_this<Capture> {
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
  };

  Capture(EngineContext& context, SaveTask& task, Callbacks callbacks);

  /// Enqueues what it can: staging if it fits, then chunks while the pool has buffers (only with `chunks`).
  void Advance(bool chunks);
  /// Every copy that reads the caller's tensors is enqueued.
  [[nodiscard]] bool enqueued() const { return stage_ == CaptureStage::kEnqueued || stage_ == CaptureStage::kCaptured; }
  /// Every chunk of the stream has been given a buffer.
  [[nodiscard]] bool all_buffered() const { return next_ == task_.snapshot().bytes(); }
  /// Has a worker compute the checksums of a chunk, unless a device has.
  void Sum(std::shared_ptr<FilledChunk> chunk);
  [[nodiscard]] bool sums() const { return sums_in_flight_ != 0; }
  /// No copy and no checksum is in flight.
  [[nodiscard]] bool idle() const { return copies_in_flight_ == 0 && !sums(); }
  /// Whether copies on streams are in flight: then only Device::Health reports a lost device.
  [[nodiscard]] bool waits_for_device() const;
  /// Starts no further copies; drops chunks in flight as they end.
  void Stop();
  void OnDeviceLost(const Device& device, const Status& status);
  /// Returns staging memory. Call it when idle, at the latest when the save ends.
  void ReleaseStaging();
  /// One for each kChecksumBlock of the stream, once all chunks are done. Empty if checksums are off.
  [[nodiscard]] const std::vector<std::uint32_t>& checksums() const { return sums_; }

 private:
  struct Copy {
    Device* device = nullptr;
    bool done = false;
  };
  // Copies that end together: one chunk, or the staging of one device.
  struct Batch {
    // Without a buffer when staging.
    FilledChunk chunk;
    std::vector<Copy> copies;
    Status status;
    SaveTask::Clock::time_point begun;
  };

  [[nodiscard]] bool stopped() const { return stage_ == CaptureStage::kStopped; }
  [[nodiscard]] Status WaitForCallersStreams();
  [[nodiscard]] Status Stage();
  [[nodiscard]] Status StageOn(DeviceEvents& events, StagingArea& area);
  [[nodiscard]] Status FillChunk(BufferPool::Chunk buffer);
  [[nodiscard]] Status RecordLanes(DeviceEvents& events) const;
  [[nodiscard]] Status MarkEnqueued();
  [[nodiscard]] Status Launch(std::uint64_t id, Batch& batch, Device& device, CopyBatch copies);
  void OnCopied(std::uint64_t id, std::size_t copy, Status status);
  void OnBatchCopied(std::uint64_t id);
  void Fail(Status status);
  void UpdateCaptured();

  EngineContext& context_;
  SaveTask& task_;
  const Callbacks callbacks_;
  std::vector<std::uint32_t> sums_;
  std::map<std::uint64_t, Batch> batches_;
  std::vector<std::pair<StagingArea*, std::byte*>> staged_;
  // The first stream byte without a buffer.
  std::uint64_t next_ = 0;
  std::uint64_t next_batch_ = 0;
  std::uint64_t staging_copies_ = 0;
  std::uint64_t copies_in_flight_ = 0;
  std::uint64_t sums_in_flight_ = 0;
  Lifecycle<CaptureStage> stage_{CaptureStage::kWaiting};
  // Only staging copies read the caller's tensors.
  bool all_staged_ = false;
};

}  // namespace cairn
