#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/copy_kernels.h"

namespace cairn {

/// Memory as the threads of a kernel see it. `allowed(address, bytes, writes)` says whether an access may happen. The
/// first one that may not, or that is not aligned to its size, is kept; such accesses do nothing.
template <typename Allowed>
class KernelMemory {
 public:
  explicit KernelMemory(Allowed allowed) : allowed_(std::move(allowed)) {}

  template <typename Unit>
  Unit Load(std::uint64_t address) {
    Unit unit{};
    if (Check(address, sizeof(Unit), false)) std::memcpy(&unit, At(address), sizeof(Unit));
    return unit;
  }
  template <typename Unit>
  void Store(std::uint64_t address, Unit unit) {
    ++stores_;
    if (Check(address, sizeof(Unit), true)) std::memcpy(At(address), &unit, sizeof(Unit));
  }
  /// Empty if every access was good.
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::uint64_t stores() const { return stores_; }

 private:
  static void* At(std::uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT
  bool Check(std::uint64_t address, std::size_t bytes, bool writes) {
    const bool aligned = address % bytes == 0;
    if (aligned && allowed_(address, bytes, writes)) return true;
    if (error_.empty()) {
      error_ = std::string(writes ? "store of " : "load of ") + std::to_string(bytes) +
               (aligned ? " bytes outside what it may touch, at " : " bytes that is not aligned, at ") +
               std::to_string(address);
    }
    return false;
  }

  Allowed allowed_;
  std::string error_;
  std::uint64_t stores_ = 0;
};

/// Runs `thread(index)` for each of a grid's threads, one after the other in a random order.
template <typename Thread>
void RunGrid(std::uint64_t threads, std::uint32_t seed, const Thread& thread) {
  std::vector<std::uint64_t> order(threads);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  for (const std::uint64_t index : order) thread(index);
}

}  // namespace cairn
