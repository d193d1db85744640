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

/// A stretch of the stream that has been copied, on its way to the disk. Its buffer goes back to the pool with the last
/// who shares it, its write or its checksum.
struct FilledChunk {
  BufferPool::Chunk buffer;
  std::uint64_t begin = 0;  ///< In the stream.
  std::uint64_t end = 0;
  bool summed = false;  ///< By a device, while it was copied.
};

enum class CaptureStage : std::uint8_t {
  kWaiting,   ///< For the older saves, and the caller's streams.
  kCopying,   ///< Copies are being enqueued.
  kEnqueued,  ///< All are that read the caller's tensors.
  kCaptured,  ///< All of these are done.
  kStopped,   ///< No further copies; those under way are dropped as they end.
};
[[nodiscard]] constexpr bool Follows(CaptureStage from, CaptureStage to) {
  return to == CaptureStage::kStopped || static_cast<int>(to) == static_cast<int>(from) + 1;
}

/// The first half of a save: from the caller's tensors into chunks, and their checksums. Engine's thread alone.
///
/// Copies that a lost device never finishes are given up by OnDeviceLost; every other copy is waited for, so that the
/// tensors' memory is never read after the save has ended.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  struct Callbacks {
    std::function<void(std::shared_ptr<FilledChunk>)> filled;  ///< In no particular order.
    std::function<void(Status)> failed;                        ///< Once at most; no chunk is filled afterwards.
    std::function<void()> captured;                            ///< The tensors may be overwritten.
    std::function<void()> summed;                              ///< No checksum is under way any more.
    std::function<void()> quiet;  ///< A copy or the last checksum ended after failure or Stop: ask idle().
  };

  Capture(EngineContext& context, SaveTask& task, Callbacks callbacks);

  /// Enqueues what can be: staging where it fits, then chunk by chunk while the pool gives (if `chunks` permits).
  void Advance(bool chunks);
  /// Every copy that reads the caller's tensors is enqueued.
  [[nodiscard]] bool enqueued() const { return stage_ == CaptureStage::kEnqueued || stage_ == CaptureStage::kCaptured; }
  /// Every chunk of the stream has been given a buffer.
  [[nodiscard]] bool all_fed() const { return next_ == task_.snapshot().bytes(); }
  /// Has a worker sum a chunk that no device has summed.
  void Sum(std::shared_ptr<FilledChunk> chunk);
  [[nodiscard]] bool sums() const { return sums_under_way_ != 0; }
  /// No copy and no checksum is under way.
  [[nodiscard]] bool idle() const { return copies_under_way_ == 0 && !sums(); }
  /// Whether copies are under way behind streams, so that only Device::Health tells of a lost device.
  [[nodiscard]] bool waits_for_device() const;
  /// No further copies; chunks that are under way are dropped as they end.
  void Stop();
  void OnDeviceLost(const Device& device, const Status& status);
  /// Gives staging memory back. When idle, at the latest at the save's end.
  void ReleaseStaging();
  /// One for each kChecksumBlock of the stream, once all chunks are summed. Empty with checksums off.
  [[nodiscard]] const std::vector<std::uint32_t>& checksums() const { return sums_; }

 private:
  struct Copy {
    Device* device = nullptr;
    bool done = false;
  };
  // A set of copies that end together: one chunk, or the staging of one device.
  struct Batch {
    FilledChunk chunk;  // Without a buffer: staging.
    std::vector<Copy> copies;
    Status status;
    SaveTask::Clock::time_point begun;
  };

  [[nodiscard]] bool stopped() const { return stage_ == CaptureStage::kStopped; }
  [[nodiscard]] Status WaitForCallersStreams();
  [[nodiscard]] Status Stage();
  [[nodiscard]] Status StageOn(DeviceEvents& events, StagingArea& area);
  [[nodiscard]] Status FeedChunk(BufferPool::Chunk buffer);
  [[nodiscard]] Status RecordLanes(DeviceEvents& events) const;
  [[nodiscard]] Status MarkEnqueued();
  [[nodiscard]] Status Launch(std::uint64_t id, Batch& batch, Device& device, CopyBatch copies);
  void OnCopied(std::uint64_t id, std::size_t copy, Status status);
  void OnBatchCopied(std::uint64_t id);
  void Fail(Status status);
  void NoteCaptured();

  EngineContext& context_;
  SaveTask& task_;
  const Callbacks callbacks_;
  std::vector<std::uint32_t> sums_;
  std::map<std::uint64_t, Batch> batches_;
  std::vector<std::pair<StagingArea*, std::byte*>> staged_;
  std::uint64_t next_ = 0;  // First stream byte that has no buffer yet.
  std::uint64_t next_batch_ = 0;
  std::uint64_t staging_copies_ = 0;
  std::uint64_t copies_under_way_ = 0;
  std::uint64_t sums_under_way_ = 0;
  Lifecycle<CaptureStage> stage_{CaptureStage::kWaiting};
  bool all_staged_ = false;  // The caller's tensors are read by staging copies alone.
};

}  // namespace cairn
