#include "base/strided.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

// Calls visit(address, offset, n) for each contiguous run of logical bytes [begin, end); offset counts from begin.
template <typename Visit>
void ForEachRun(const StridedLayout& layout, std::uint64_t begin, std::uint64_t end, const Visit& visit) {
  if (begin >= end) return;
  if (layout.contiguous()) {
    visit(layout.base + begin, std::uint64_t{0}, end - begin);
    return;
  }
  // The odometer over the outer dimensions starts at begin's row.
  std::uint64_t row = begin / layout.row_bytes;
  std::vector<std::int64_t> index(layout.outer.size());
  std::byte* address = layout.base;
  for (std::size_t d = layout.outer.size(); d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(layout.outer[d].size);
    index[d] = static_cast<std::int64_t>(row % size);
    row /= size;
    address += index[d] * layout.outer[d].stride;
  }
  std::uint64_t skip = begin % layout.row_bytes;
  for (std::uint64_t done = 0; done < end - begin;) {
    const std::uint64_t n = std::min(layout.row_bytes - skip, end - begin - done);
    visit(address + skip, done, n);
    done += n;
    skip = 0;
    for (std::size_t d = layout.outer.size(); d-- > 0;) {
      address += layout.outer[d].stride;
      if (++index[d] < layout.outer[d].size) break;
      address -= layout.outer[d].stride * layout.outer[d].size;
      index[d] = 0;
    }
  }
}

}  // namespace

StridedLayout MakeStridedLayout(void* base, std::size_t item, std::span<const std::int64_t> shape,
                                std::span<const std::int64_t> strides) {
  StridedLayout layout;
  layout.base = static_cast<std::byte*>(base);
  layout.bytes = item;
  for (const std::int64_t size : shape) layout.bytes *= static_cast<std::uint64_t>(size);
  layout.row_bytes = layout.bytes;
  if (strides.empty() || layout.bytes == 0) return layout;

  // From the innermost out: dimensions that continue the run, or the dimension inside them, are merged into it.
  layout.row_bytes = item;
  std::vector<StridedLayout::Dimension> inner_first;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    const std::int64_t stride = strides[d] * static_cast<std::int64_t>(item);
    if (inner_first.empty() && stride == static_cast<std::int64_t>(layout.row_bytes)) {
      layout.row_bytes *= static_cast<std::uint64_t>(shape[d]);
    } else if (!inner_first.empty() && stride == inner_first.back().stride * inner_first.back().size) {
      inner_first.back().size *= shape[d];
    } else {
      inner_first.push_back({shape[d], stride});
    }
  }
  layout.outer.assign(inner_first.rbegin(), inner_first.rend());
  return layout;
}

void GatherBytes(const StridedLayout& from, std::uint64_t begin, std::uint64_t end, std::byte* to) {
  ForEachRun(from, begin, end, [to](const std::byte* address, std::uint64_t offset, std::uint64_t n) {
    std::memcpy(to + offset, address, n);
  });
}

void ScatterBytes(const StridedLayout& to, std::uint64_t begin, std::uint64_t end, const std::byte* from) {
  ForEachRun(to, begin, end, [from](std::byte* address, std::uint64_t offset, std::uint64_t n) {
    std::memcpy(address, from + offset, n);
  });
}

}  // namespace cairn
