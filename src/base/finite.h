#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "cairn/tensor.h"

namespace cairn {

/// How a dtype's bits tell what is not finite: shifted left by one, so that the sign is out, and taken as unsigned
/// numbers, NaNs are above infinity, and finite values below.
struct FloatForm {
  /// The size of such a number. 0: none of the dtype's values is looked at.
  std::size_t bytes = 0;
  /// The shifted infinity. Where the dtype has none, an odd number just below its NaNs.
  std::uint32_t infinity = 0;
  /// Only the upper one of two numbers counts.
  bool upper = false;
};
/// None for integers, and for scales (F8_E8M0), which have no sign.
[[nodiscard]] FloatForm FloatFormOf(DType dtype);

/// What the greatest shifted numbers at each place of a vector say.
template <typename Number>
[[nodiscard]] NonFinite Judge(const FloatForm& form, std::span<const Number> greatest) {
  const std::size_t step = form.upper ? 2 : 1;
  Number worst = 0;
  for (std::size_t i = step - 1; i < greatest.size(); i += step) worst = std::max(worst, greatest[i]);
  if (worst < form.infinity) return NonFinite::kNone;
  return worst == form.infinity ? NonFinite::kInfinity : NonFinite::kNaN;
}

/// The worst of these values. `bytes` begins and ends between elements.
[[nodiscard]] NonFinite FindNonFinite(DType dtype, Bytes bytes);
/// Whether looking for them in bytes that are summed takes little more time than their sums (docs/operations.md has the
/// figures).
[[nodiscard]] bool FindsNonFiniteCheaply();

/// What a checksum looks for on its way. By default nothing.
struct FiniteLook {
  DType dtype = DType::kU8;
  /// Raised to the worst that is found. May be null for a dtype without a form.
  NonFinite* worst = nullptr;
};

/// From any thread.
inline void Raise(std::atomic<NonFinite>& worst, NonFinite found) {
  NonFinite before = worst.load();
  while (before < found && !worst.compare_exchange_weak(before, found)) {
  }
}

}  // namespace cairn
