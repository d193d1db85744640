#include "api/memory_slots.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/bytes.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "store/memory_folder.h"

namespace cairn {
namespace {

// More than headers vary.
constexpr std::uint64_t kMuchMore = 256U << 10;

/// With room for what varies from save to save.
std::uint64_t SlotLength(const SlotNeed& need) {
  const std::uint64_t varies = need.header + need.long_values;
  return AlignUp(need.data, kBlock) + AlignUp(need.header + varies / 4, std::uint64_t{64} << 10);
}

}  // namespace

bool MemorySlots::HasLengthFor(const SlotNeed& need) const {
  const std::uint64_t least = AlignUp(need.data, kBlock) + AlignUp(need.header, kBlock);
  return least <= length_ && length_ <= SlotLength(need) + kMuchMore;
}

bool MemorySlots::IsPinnedFor(const SlotNeed& need) const {
  return std::ranges::all_of(need.devices, [this](const auto& device) { return mapped_.IsPinnedWith(device); });
}

Status MemorySlots::Make(const SlotNeed& need) {
  Status made = HasLengthFor(need) ? Status::Ok() : Allocate(need);
  if (made.ok()) made = Pin(need.devices);
  if (!made.ok()) Free();
  return made;
}

Status MemorySlots::Allocate(const SlotNeed& need) {
  // Those of another length are unpinned before they are removed.
  if (length_ != 0) mapped_.Clear();
  length_ = SlotLength(need);
  const std::uint64_t file_bytes = length_ - (AlignUp(need.data, kBlock) - need.data);
  Status mapped;
  do {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<PathAt> slots, AllocateSlots(root_, rank_, count_, file_bytes, mapped_));
    mapped = Status::Ok();
    for (const PathAt& slot : slots) {
      if (mapped.ok()) mapped = mapped_.Map(slot, file_bytes).status();
    }
    // Rank 0 has made a spare of a checkpoint meanwhile.
  } while (mapped.code() == StatusCode::kNotFound);
  return mapped;
}

Status MemorySlots::Pin(const std::vector<std::shared_ptr<Device>>& devices) {
  const std::string what = fmt::format("{} slots of {} in memory", count_, HumanBytes(length_));
  for (const std::shared_ptr<Device>& device : devices) {
    if (mapped_.IsPinnedWith(device)) continue;
    const auto begun = std::chrono::steady_clock::now();
    if (const Status pinned = mapped_.PinWith(device); !pinned.ok()) {
      return Error(pinned.code(), "{} could not be pinned for {}: {}", what, ToString(device->id()), pinned.message());
    }
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
    on_event_({.message = fmt::format("pinned {} for {} in {}, within the call of Save", what, ToString(device->id()),
                                      HumanDuration(took)),
               .phase = "memory",
               .duration = took,
               .path = root_.text()});
  }
  return Status::Ok();
}

void MemorySlots::Free() {
  mapped_.Clear();
  FreeSlots(root_, rank_);
  length_ = 0;
}

}  // namespace cairn
