#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "device/device.h"

namespace cairn {

/// One device's staging memory, lent out in contiguous pieces. For the engine's thread.
class StagingArea {
 public:
  StagingArea(Device* device, std::byte* base, std::uint64_t bytes) : device_(device), base_(base), bytes_(bytes) {}

  [[nodiscard]] Device* device() const { return device_; }
  /// The first gap that is large enough, 4096-aligned; null if there is none now.
  [[nodiscard]] std::byte* Acquire(std::uint64_t bytes) {
    std::uint64_t at = 0;
    for (const auto& [begin, size] : lent_) {
      if (begin - at >= bytes) break;
      at = AlignUp(begin + size, kBlock);
    }
    if (at + bytes > bytes_) return nullptr;
    lent_.emplace(at, bytes);
    return base_ + at;
  }
  void Release(const std::byte* memory) { lent_.erase(static_cast<std::uint64_t>(memory - base_)); }

 private:
  Device* const device_;
  std::byte* const base_;
  const std::uint64_t bytes_;
  // Offset -> size.
  std::map<std::uint64_t, std::uint64_t> lent_;
};

}  // namespace cairn
