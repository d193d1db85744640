#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/strided.h"
#include "cairn/tensor.h"
#include "device/numa.h"

namespace cairn {

/// A range of one tensor's logical bytes and the contiguous memory on the other side of the copy; or several rows of
/// both, for a cut through columns.
struct CopyPiece {
  const StridedLayout* tensor = nullptr;
  /// [begin, end) is the first row.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// Pinned host memory; staging memory for kToStaging.
  std::byte* memory = nullptr;
  std::uint64_t rows = 1;
  /// Logical bytes from one row to the next: at least end - begin.
  std::uint64_t tensor_pitch = 0;
  std::uint64_t memory_pitch = 0;
  /// Of the tensor; only for CopyBatch::worst.
  DType dtype = DType::kU8;

  [[nodiscard]] std::uint64_t bytes() const { return (end - begin) * rows; }
  [[nodiscard]] std::uint64_t tensor_end() const { return end + (rows - 1) * tensor_pitch; }
};

enum class CopyDirection : std::uint8_t {
  kToHost,     ///< tensor -> memory (host).
  kToDevice,   ///< memory (host) -> tensor.
  kToStaging,  ///< tensor -> memory (this device's staging area).
};

struct CopyBatch {
  CopyDirection direction = CopyDirection::kToHost;
  /// The copy stream: 0 to lanes() - 1.
  int lane = 0;
  /// Their tensors' layouts must live until the batch is done.
  std::vector<CopyPiece> pieces;
  /// If not null, CheckSums() is Ok for the pieces and the direction is kToHost: receives the CRC32C of each
  /// kChecksumBlock, counted from the first piece's start, before `done` is called, which must keep it alive. The
  /// pieces must then have one row each and lie back to back in memory.
  std::uint32_t* sums = nullptr;
  /// If not null, and the CPU computes the sums: raised to the worst value that the pieces hold (FindNonFinite). They
  /// must then begin and end between elements.
  std::atomic<NonFinite>* worst = nullptr;
};

/// The most operations that a batch for a device with streams may consist of; see InBatches.
inline constexpr std::uint64_t kMaxBatchOperations = 128;

/// Called once, from any thread, soon after the batch has ended: with the sticky error if the device is lost, since its
/// copies end with it. It may only record that and wake a thread.
using CopyDone = std::function<void(Status)>;

/// A point in a stream's order, created at Open. 0 is no event.
using EventId = std::uint32_t;

/// One GPU, or the CPU: streams, events, batched copies, pinned memory. [interface]
///
/// A lane is one of the device's own copy streams. Batches of one lane run in order; lanes run in parallel with each
/// other and with the caller's streams. Calls return once the work is enqueued. Safe from any thread unless stated
/// otherwise. After a sticky error every call returns that error.
class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual DeviceId id() const = 0;
  [[nodiscard]] virtual int lanes() const = 0;
  /// Whether streams order the copies (a GPU): a fence is then a stream wait, otherwise it waits for `done`.
  [[nodiscard]] virtual bool has_streams() const = 0;
  /// Whether kernels copy what TakeForKernels takes: hundreds of small pieces, or rows at any places, in one operation.
  [[nodiscard]] virtual bool has_kernels() const = 0;
  /// Ok if a kToHost batch of these pieces may ask for CopyBatch::sums; without pieces, if any batch may. Otherwise
  /// Unsupported, with the reason.
  [[nodiscard]] virtual Status CheckSums(std::span<const CopyPiece> pieces) const = 0;
  /// The NUMA node whose memory is nearest; none if it is unknown, or there is only one.
  [[nodiscard]] virtual std::optional<NumaNode> numa_node() const { return std::nullopt; }
  /// InvalidArgument, to which the caller adds the tensor's name, for another device's memory or unsupported strides.
  [[nodiscard]] virtual Status CheckLayout(const StridedLayout& layout) const = 0;

  /// Whether this address of the CPU's memory is the driver's: pinned or managed, so that streams of any GPU may write
  /// it.
  [[nodiscard]] virtual bool IsWrittenByStreams(const std::byte* /*at*/) const { return false; }

  /// Page-locks and unlocks host memory for fast copies. Slow, and other threads may not launch kernels meanwhile.
  virtual Status PinMemory(MutableBytes memory) = 0;
  virtual void UnpinMemory(MutableBytes memory) = 0;
  /// Device memory for staging snapshots. Slow: once, at Open. ResourceExhausted if there is not enough.
  virtual Result<std::byte*> AllocateStaging(std::uint64_t bytes) = 0;

  /// Events are created at Open. ResourceExhausted if all are in use.
  virtual Result<EventId> AcquireEvent() = 0;
  virtual void ReleaseEvent(EventId event) = 0;
  /// The event stands for all work in the caller's stream so far. FailedPrecondition during a graph capture.
  virtual Status RecordOnStream(Stream stream, EventId event) = 0;
  /// Later work in the caller's stream waits for the recorded event. FailedPrecondition during a graph capture.
  virtual Status StreamWait(Stream stream, EventId event) = 0;
  /// Whether StreamWait takes streams of that device.
  [[nodiscard]] virtual bool CanHoldStreamsOf(DeviceId device) const = 0;
  virtual Status RecordOnLane(int lane, EventId event) = 0;
  virtual Status LaneWait(int lane, EventId event) = 0;

  /// Whether the lane takes another batch of kMaxBatchOperations. A driver's launch queue is bounded, and when it is
  /// full, a call blocks inside the driver and holds up the launches of every thread. Becomes true again before a
  /// batch's `done` is called.
  [[nodiscard]] virtual bool HasRoom(int lane) const = 0;
  /// Has `wake` called whenever a full lane has room again, until it is destroyed: what fills a lane may be batches of
  /// others, whose `done` does not tell. Called like a CopyDone.
  virtual void WakeOnRoom(std::weak_ptr<const std::function<void()>> wake) = 0;
  /// Enqueues the batch in its lane. `done` is called if this is Ok.
  virtual Status Copy(CopyBatch batch, CopyDone done) = 0;
  /// Ok, or the sticky error. Queries the lanes without waiting.
  virtual Status Health() = 0;
};

/// Splits the pieces into batches that the device takes: of at most kMaxBatchOperations each if it has streams. Rows
/// that are not evenly spaced in the tensor count one by one, unless the device has kernels; then many small pieces
/// that lie back to back in memory count as one.
[[nodiscard]] std::vector<std::vector<CopyPiece>> InBatches(const Device& device, std::vector<CopyPiece> pieces);

}  // namespace cairn
