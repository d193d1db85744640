#include "base/strided.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

// Calls visit(address, stride, row_bytes, rows, offset) for each set of rows, `stride` bytes apart, that hold logical
// bytes of [begin, end). `offset` counts from begin. A set is as large as the innermost dimension allows.
template <typename Visit>
void ForEachRows(const StridedLayout& layout, std::uint64_t begin, std::uint64_t end, const Visit& visit) {
  if (begin >= end) return;
  if (layout.contiguous()) {
    visit(layout.base + begin, std::int64_t{0}, end - begin, std::uint64_t{1}, std::uint64_t{0});
    return;
  }
  // The odometer over the outer dimensions starts at begin's row.
  const std::size_t inner = layout.outer.size() - 1;
  const auto [inner_size, inner_stride] = layout.outer[inner];
  const std::uint64_t row_bytes = layout.row_bytes;
  std::uint64_t row = begin / row_bytes;
  std::vector<std::int64_t> index(layout.outer.size());
  std::byte* address = layout.base;
  for (std::size_t d = layout.outer.size(); d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(layout.outer[d].size);
    index[d] = static_cast<std::int64_t>(row % size);
    row /= size;
    address += index[d] * layout.outer[d].stride;
  }
  const std::uint64_t total = end - begin;
  std::uint64_t skip = begin % row_bytes;
  for (std::uint64_t done = 0; done < total;) {
    std::uint64_t rows = 1;
    if (skip != 0 || total - done < row_bytes) {
      const std::uint64_t n = std::min(row_bytes - skip, total - done);
      visit(address + skip, std::int64_t{0}, n, std::uint64_t{1}, done);
      done += n;
      skip = 0;
    } else {
      rows = std::min(static_cast<std::uint64_t>(inner_size - index[inner]), (total - done) / row_bytes);
      visit(address, inner_stride, row_bytes, rows, done);
      done += rows * row_bytes;
    }
    index[inner] += static_cast<std::int64_t>(rows);
    address += static_cast<std::int64_t>(rows) * inner_stride;
    for (std::size_t d = inner; index[d] == layout.outer[d].size && d > 0; --d) {
      address += layout.outer[d - 1].stride - layout.outer[d].stride * layout.outer[d].size;
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

// Rows of a size known to the compiler become single loads and stores.
template <std::size_t kRow>
void CopyRowsOf(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
                std::uint64_t rows) {
  for (; rows != 0; --rows, from += from_stride, to += to_stride) std::memcpy(to, from, kRow);
}

void CopyRows(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
              std::uint64_t row_bytes, std::uint64_t rows) {
  switch (row_bytes) {
    case 1:
      return CopyRowsOf<1>(from, from_stride, to, to_stride, rows);
    case 2:
      return CopyRowsOf<2>(from, from_stride, to, to_stride, rows);
    case 4:
      return CopyRowsOf<4>(from, from_stride, to, to_stride, rows);
    case 8:
      return CopyRowsOf<8>(from, from_stride, to, to_stride, rows);
    case 16:
      return CopyRowsOf<16>(from, from_stride, to, to_stride, rows);
    default:
      for (; rows != 0; --rows, from += from_stride, to += to_stride) std::memcpy(to, from, row_bytes);
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

  // From the innermost dimension outwards: merge each that continues the run, or the dimension inside it.
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

std::optional<PlacedRows> PlaceRows(const StridedLayout& layout, const LogicalRows& rows) {
  if (layout.contiguous()) return PlacedRows{layout.base + rows.begin, static_cast<std::int64_t>(rows.pitch)};
  const std::uint64_t row = rows.begin / layout.row_bytes;
  const std::uint64_t skip = rows.begin % layout.row_bytes;
  if (layout.outer.size() > 1 || skip + rows.bytes > layout.row_bytes || rows.pitch % layout.row_bytes != 0) return {};
  const std::int64_t stride = layout.outer[0].stride;
  return PlacedRows{layout.base + static_cast<std::int64_t>(row) * stride + skip,
                    static_cast<std::int64_t>(rows.pitch / layout.row_bytes) * stride};
}

void GatherBytes(const StridedLayout& from, std::uint64_t begin, std::uint64_t end, std::byte* to) {
  ForEachRows(from, begin, end,
              [to](const std::byte* address, std::int64_t stride, std::uint64_t row_bytes, std::uint64_t rows,
                   std::uint64_t offset) {
                CopyRows(address, stride, to + offset, static_cast<std::int64_t>(row_bytes), row_bytes, rows);
              });
}

void ScatterBytes(const StridedLayout& to, std::uint64_t begin, std::uint64_t end, const std::byte* from) {
  ForEachRows(to, begin, end,
              [from](std::byte* address, std::int64_t stride, std::uint64_t row_bytes, std::uint64_t rows,
                     std::uint64_t offset) {
                CopyRows(from + offset, static_cast<std::int64_t>(row_bytes), address, stride, row_bytes, rows);
              });
}

void GatherRows(const StridedLayout& from, const LogicalRows& rows, std::byte* to, std::uint64_t pitch) {
  if (const auto placed = PlaceRows(from, rows)) {
    return CopyRows(placed->address, placed->pitch, to, static_cast<std::int64_t>(pitch), rows.bytes, rows.rows);
  }
  for (std::uint64_t i = 0; i < rows.rows; ++i) {
    const std::uint64_t begin = rows.begin + i * rows.pitch;
    GatherBytes(from, begin, begin + rows.bytes, to + i * pitch);
  }
}

void ScatterRows(const StridedLayout& to, const LogicalRows& rows, const std::byte* from, std::uint64_t pitch) {
  if (const auto placed = PlaceRows(to, rows)) {
    return CopyRows(from, static_cast<std::int64_t>(pitch), placed->address, placed->pitch, rows.bytes, rows.rows);
  }
  for (std::uint64_t i = 0; i < rows.rows; ++i) {
    const std::uint64_t begin = rows.begin + i * rows.pitch;
    ScatterBytes(to, begin, begin + rows.bytes, from + i * pitch);
  }
}

}  // namespace cairn
