#include "restore/shared_memory.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace cairn {
namespace {

std::pair<const std::byte*, const std::byte*> SpanOf(const StridedLayout& layout) {
  const std::byte* end = layout.base + layout.row_bytes;
  for (const StridedLayout::Dimension& dimension : layout.outer) end += (dimension.size - 1) * dimension.stride;
  return {layout.base, end};
}

}  // namespace

void MarkSharedMemory(std::vector<std::vector<PlannedCopy>>& copies) {
  struct Extent {
    DeviceId device;
    const std::byte* begin;
    const std::byte* end;
    const StridedLayout* target;
  };
  std::vector<Extent> extents;
  for (const auto& of_shard : copies) {
    for (const PlannedCopy& copy : of_shard) {
      if (!extents.empty() && extents.back().target == copy.target) continue;
      const auto [begin, end] = SpanOf(*copy.target);
      extents.push_back({copy.device, begin, end, copy.target});
    }
  }
  std::ranges::sort(extents, [](const Extent& a, const Extent& b) {
    return std::tie(a.device, a.begin, a.target) < std::tie(b.device, b.begin, b.target);
  });
  // Copies of one target may be in several shards.
  extents.erase(std::unique(extents.begin(), extents.end(),
                            [](const Extent& a, const Extent& b) { return a.target == b.target; }),
                extents.end());
  std::unordered_set<const StridedLayout*> shared;
  const Extent* reach = nullptr;  // The one with the largest end so far on this device.
  for (const Extent& extent : extents) {
    if (reach != nullptr && reach->device == extent.device && extent.begin < reach->end) {
      shared.insert(reach->target);
      shared.insert(extent.target);
    }
    if (reach == nullptr || reach->device != extent.device || extent.end > reach->end) reach = &extent;
  }
  if (shared.empty()) return;
  for (auto& of_shard : copies) {
    for (PlannedCopy& copy : of_shard) copy.shares_memory = shared.contains(copy.target);
  }
}

}  // namespace cairn
