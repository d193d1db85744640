#include "base/memory_overlap.h"

#include <algorithm>
#include <cstdint>

namespace cairn {
namespace {

using Dimension = StridedLayout::Dimension;

std::int64_t FloorDivide(std::int64_t a, std::int64_t b) { return a / b - static_cast<std::int64_t>(a % b < 0); }

// Rows of bytes from `begin` on, repeated along dimensions, of which the one with the longest stride is first.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
  std::span<const Dimension> outer;

  [[nodiscard]] std::int64_t length() const {
    std::int64_t length = bytes;
    for (const Dimension& dimension : outer) length += (dimension.size - 1) * dimension.stride;
    return length;
  }
  [[nodiscard]] Rows first() const { return {begin, bytes, outer.subspan(1)}; }
};

class Comparer {
 public:
  bool Meet(Rows a, Rows b) {
    if (steps_ == 0) return true;
    --steps_;
    if (a.begin >= b.begin + b.length() || b.begin >= a.begin + a.length()) return false;
    if (a.outer.empty() && b.outer.empty()) return true;
    if (a.outer.empty() || (!b.outer.empty() && b.outer.front().stride > a.outer.front().stride)) std::swap(a, b);
    const auto [size, stride] = a.outer.front();
    // Of two rows that repeat at one stride only their distance counts.
    if (!b.outer.empty() && b.outer.front().stride == stride) {
      return AnyMeets(a.first(), stride, 1 - b.outer.front().size, size - 1, b.first());
    }
    return AnyMeets(a.first(), stride, 0, size - 1, b);
  }

 private:
  // Whether `row`, moved by `from` to `to` strides, meets `other`.
  bool AnyMeets(Rows row, std::int64_t stride, std::int64_t from, std::int64_t to, const Rows& other) {
    const std::int64_t begin = row.begin;
    from = std::max(from, FloorDivide(other.begin - row.length() - begin, stride) + 1);
    to = std::min(to, FloorDivide(other.begin + other.length() - 1 - begin, stride));
    for (std::int64_t n = from; n <= to; ++n) {
      row.begin = begin + n * stride;
      if (Meet(row, other)) return true;
    }
    return false;
  }

  std::uint64_t steps_ = std::uint64_t{1} << 24;
};

struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t tensor = 0;
};

class Finder {
 public:
  Finder(std::span<const StridedLayout> tensors, const std::function<bool(std::size_t, std::size_t)>& is_one)
      : tensors_(tensors), is_one_(is_one) {}

  SharedMemory Find() {
    std::vector<Extent> extents;
    extents.reserve(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].bytes == 0) continue;
      const auto begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensors_[i].base));
      auto end = begin + static_cast<std::int64_t>(tensors_[i].row_bytes);
      for (const Dimension& dimension : tensors_[i].outer) end += (dimension.size - 1) * dimension.stride;
      extents.push_back({begin, end, i});
    }
    SortByBegin(extents);
    // Of each chain of tensors that reach into the next one.
    for (std::size_t first = 0; first < extents.size() && !found_.overlap;) {
      std::int64_t reach = extents[first].end;
      std::size_t last = first + 1;
      for (; last < extents.size() && extents[last].begin < reach; ++last) reach = std::max(reach, extents[last].end);
      if (last - first > 1) FindIn(std::span(extents).subspan(first, last - first));
      first = last;
    }
    return std::move(found_);
  }

 private:
  static void SortByBegin(std::vector<Extent>& extents) {
    std::ranges::sort(extents, [](const Extent& a, const Extent& b) {
      return std::pair(a.begin, a.tensor) < std::pair(b.begin, b.tensor);
    });
  }

  void FindIn(std::span<const Extent> chain) {
    std::vector<Extent> distinct;
    for (const Extent& extent : chain) {
      if (distinct.empty() || distinct.back().begin != extent.begin) {
        distinct.push_back(extent);
        continue;
      }
      const std::size_t first = distinct.back().tensor;
      const bool alias = tensors_[first] == tensors_[extent.tensor] && is_one_(first, extent.tensor);
      if (!alias) found_.overlap = {first, extent.tensor};
      if (found_.overlap) return;
      found_.aliases.emplace_back(first, extent.tensor);
    }
    if (distinct.size() > 1) Compare(distinct);
  }

  void Compare(std::span<const Extent> extents) {
    std::vector<std::vector<Dimension>> outer;
    outer.reserve(extents.size());
    std::vector<Rows> rows;
    std::int64_t period = 0;
    bool periodic = true;
    for (const Extent& extent : extents) {
      const StridedLayout& layout = tensors_[extent.tensor];
      std::vector<Dimension>& dimensions = outer.emplace_back(layout.outer);
      std::ranges::sort(dimensions, [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
      rows.push_back({extent.begin, static_cast<std::int64_t>(layout.row_bytes), dimensions});
      if (dimensions.empty()) continue;
      if (period == 0) period = dimensions.front().stride;
      periodic = periodic && dimensions.front().stride == period;
    }
    // Tensors that repeat at one stride are compared where they meet within it: columns do nowhere.
    std::vector<Extent> spans;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (period == 0 || !periodic) {
        spans.push_back({extents[i].begin, extents[i].end, i});
        continue;
      }
      const std::int64_t begin = rows[i].begin % period;
      const std::int64_t length = rows[i].outer.empty() ? rows[i].bytes : rows[i].first().length();
      const std::int64_t end = begin + std::min(length, period);
      spans.push_back({begin, std::min(end, period), i});
      if (end > period) spans.push_back({0, end - period, i});
    }
    SortByBegin(spans);
    std::vector<Extent> open;  // Those that reach into the next one.
    for (const Extent& span : spans) {
      std::erase_if(open, [&](const Extent& before) { return before.end <= span.begin; });
      for (const Extent& before : open) {
        if (before.tensor == span.tensor || !comparer_.Meet(rows[before.tensor], rows[span.tensor])) continue;
        found_.overlap = std::minmax(extents[before.tensor].tensor, extents[span.tensor].tensor);
        return;
      }
      open.push_back(span);
    }
  }

  const std::span<const StridedLayout> tensors_;
  const std::function<bool(std::size_t, std::size_t)>& is_one_;
  Comparer comparer_;
  SharedMemory found_;
};

}  // namespace

SharedMemory FindSharedMemory(std::span<const StridedLayout> tensors,
                              const std::function<bool(std::size_t, std::size_t)>& is_one) {
  return Finder(tensors, is_one).Find();
}

}  // namespace cairn
