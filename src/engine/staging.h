#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"

namespace cairn {

/// One device's staging memory, lent out in slots of one chunk each. For the engine's thread.
class StagingArea {
 public:
  StagingArea(Device* device, std::byte* base, std::uint64_t bytes, std::uint64_t slot_bytes)
      : device_(device), base_(base) {
    for (std::uint64_t slot = bytes / slot_bytes; slot-- > 0;) free_.push_back(base + slot * slot_bytes);
  }

  [[nodiscard]] Device* device() const { return device_; }
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] bool full() const { return free_.empty(); }
  /// Call it only if not full().
  [[nodiscard]] std::byte* Acquire() {
    std::byte* const slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Release(std::byte* slot) { free_.push_back(slot); }

 private:
  Device* const device_;
  std::byte* const base_;
  std::vector<std::byte*> free_;
};

}  // namespace cairn
