#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/strided.h"
#include "cairn/tensor.h"

namespace cairn {

/// A range of one tensor's logical bytes, and the contiguous memory on the other side of the copy; or rows of them, as
/// a cut through columns has them.
struct CopyPiece {
  const StridedLayout* tensor = nullptr;
  std::uint64_t begin = 0;  ///< Of the first row.
  std::uint64_t end = 0;
  std::byte* memory = nullptr;     ///< Pinned host memory, or staging memory for kToStaging.
  std::uint64_t rows = 1;          ///< At least 1.
  std::uint64_t tensor_pitch = 0;  ///< Logical bytes from one row to the next; of several rows at least end - begin.
  std::uint64_t memory_pitch = 0;  ///< The same in memory.

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
  int lane = 0;                   ///< Which copy stream: 0 to lanes() - 1.
  std::vector<CopyPiece> pieces;  ///< Their tensors' layouts live until the batch is done.
  /// Where not null, and where the device sums_while_copying() and direction is kToHost: the pieces, of one row each,
  /// lie back to back in memory, and CRC32Cs of their bytes, one for each kChecksumBlock from the first piece's start,
  /// are written here.
  std::uint32_t* sums = nullptr;
};

/// Called once, from any thread, soon after the batch is done; it may only note that and wake somebody. It is not
/// called after a sticky device error: Device::Health then tells.
using CopyDone = std::function<void(Status)>;

/// A point in a stream's order. Small, made at Open; 0 is none.
using EventId = std::uint32_t;

/// One GPU, or the CPU: streams, events, batched copies, pinned memory. [interface]
///
/// A lane is a copy stream of the device's own: batches in a lane run in order, lanes run beside each other and beside
/// the caller's streams. Calls return as soon as the work is enqueued. Safe from any thread unless said otherwise.
/// After a sticky error every call returns that error.
class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual DeviceId id() const = 0;
  [[nodiscard]] virtual int lanes() const = 0;
  /// Whether copies happen behind streams (a GPU), so that fences are stream waits; else whoever fences waits for done.
  [[nodiscard]] virtual bool has_streams() const = 0;
  /// Whether kToHost batches fill CopyBatch::sums.
  [[nodiscard]] virtual bool sums_while_copying() const = 0;
  /// InvalidArgument, for a message that names the tensor, where this layout cannot be copied: memory of another
  /// device, strides beyond what the device can do.
  [[nodiscard]] virtual Status CheckLayout(const StridedLayout& layout) const = 0;

  /// Page-locks and unlocks host memory for fast copies. Slow; at Open.
  virtual Status PinMemory(MutableBytes memory) = 0;
  virtual void UnpinMemory(MutableBytes memory) = 0;
  /// Device memory that snapshots are staged in. Slow; at Open, once. ResourceExhausted where there is not enough.
  virtual Result<std::byte*> AllocateStaging(std::uint64_t bytes) = 0;

  /// Events from a stock made at Open; ResourceExhausted when it is used up.
  virtual Result<EventId> AcquireEvent() = 0;
  virtual void ReleaseEvent(EventId event) = 0;
  /// The event stands for all that the caller's stream was given so far. FailedPrecondition under graph capture.
  virtual Status RecordOnStream(Stream stream, EventId event) = 0;
  /// Later work of the caller's stream waits for the event (which has been recorded). FailedPrecondition under capture.
  virtual Status StreamWait(Stream stream, EventId event) = 0;
  virtual Status RecordOnLane(int lane, EventId event) = 0;
  virtual Status LaneWait(int lane, EventId event) = 0;

  /// Enqueues the batch in its lane.
  virtual Status Copy(CopyBatch batch, CopyDone done) = 0;
  /// Ok, or the sticky error: asks the driver (a query of the lanes, no wait).
  virtual Status Health() = 0;
};

}  // namespace cairn
