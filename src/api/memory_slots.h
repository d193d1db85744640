#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cairn/options.h"
#include "device/device.h"
#include "io/path_at.h"
#include "store/mapped_file.h"

namespace cairn {

/// What a save needs of a slot.
struct SlotNeed {
  /// The bytes of its data, and of these the long values, whose lengths vary.
  std::uint64_t data = 0;
  std::uint64_t long_values = 0;
  /// About the length of its header.
  std::uint64_t header = 0;
  /// The GPUs that copy into it.
  std::vector<std::shared_ptr<Device>> devices;
};

/// The slots of one rank in a root in memory: mapped, and pinned with the GPUs that copy into them, once, in the call
/// of the first save. A shard has the length of its slot, because what is pinned must never get other pages: its header
/// is as long as its data permit. Where that is not enough, or too much, there are other slots.
///
/// For one caller after the other.
class MemorySlots {
 public:
  /// `mapped` outlives it.
  MemorySlots(PathAt root, std::uint64_t rank, std::uint64_t count, MappedFiles& mapped, EventCallback on_event)
      : root_(std::move(root)), rank_(rank), count_(count), mapped_(mapped), on_event_(std::move(on_event)) {}

  /// Whether they are there, for a save with that need.
  [[nodiscard]] bool Fit(const SlotNeed& need) const { return HasLengthFor(need) && IsPinnedFor(need); }
  /// While nobody uses them: what is missing, if anything. Allocates, maps and pins them. After an error there are
  /// none.
  [[nodiscard]] Status Make(const SlotNeed& need);
  /// Pins them with the devices that have not done so. An event says how long that took.
  [[nodiscard]] Status Pin(const std::vector<std::shared_ptr<Device>>& devices);
  void Free();
  /// Of a slot for that save, in whole blocks; 0 if they have another length.
  [[nodiscard]] std::uint64_t LengthFor(const SlotNeed& need) const { return HasLengthFor(need) ? length_ : 0; }

 private:
  [[nodiscard]] bool HasLengthFor(const SlotNeed& need) const;
  [[nodiscard]] bool IsPinnedFor(const SlotNeed& need) const;
  [[nodiscard]] Status Allocate(const SlotNeed& need);

  const PathAt root_;
  const std::uint64_t rank_;
  const std::uint64_t count_;
  MappedFiles& mapped_;
  const EventCallback on_event_;
  std::uint64_t length_ = 0;
};

}  // namespace cairn
