#include "tools/windows.h"

#include <algorithm>
#include <memory>

#include "base/status_macros.h"

namespace cairn::tools {

std::vector<std::vector<Slice>> CutWindows(std::span<const std::uint64_t> sizes, std::uint64_t window_bytes) {
  std::vector<std::vector<Slice>> windows;
  std::uint64_t filled = window_bytes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::uint64_t begin = 0; begin < sizes[i];) {
      if (filled == window_bytes) {
        windows.emplace_back();
        filled = 0;
      }
      const std::uint64_t n = std::min(window_bytes - filled, sizes[i] - begin);
      windows.back().push_back({.tensor = i, .begin = begin, .end = begin + n, .at = filled});
      begin += n;
      filled += n;
    }
  }
  return windows;
}

Status ReadPairs(const RestoreParts& parts, TensorSource& a, std::span<const StoredTensor* const> of_a, TensorSource& b,
                 std::span<const StoredTensor* const> of_b, const CompareStretch& compare) {
  std::vector<std::uint64_t> sizes;
  for (const StoredTensor* tensor : of_a) sizes.push_back(tensor->info.bytes);
  const auto memory_a = std::make_unique_for_overwrite<std::byte[]>(kWindowBytes);
  const auto memory_b = std::make_unique_for_overwrite<std::byte[]>(kWindowBytes);
  // The window size is a multiple of every element size, so no element is cut.
  for (const std::vector<Slice>& window : CutWindows(sizes, kWindowBytes)) {
    CAIRN_RETURN_IF_ERROR(ReadWindow(parts, a, of_a, window, memory_a.get()));
    CAIRN_RETURN_IF_ERROR(ReadWindow(parts, b, of_b, window, memory_b.get()));
    for (const Slice& slice : window) {
      compare(slice.tensor, memory_a.get() + slice.at, memory_b.get() + slice.at, slice.end - slice.begin);
    }
  }
  return Status::Ok();
}

Status ReadWindow(const RestoreParts& parts, TensorSource& source, std::span<const StoredTensor* const> tensors,
                  std::span<const Slice> window, std::byte* memory) {
  std::vector<TensorSource::Piece> pieces;
  pieces.reserve(window.size());
  for (const Slice& slice : window) {
    pieces.push_back(
        {.tensor = tensors[slice.tensor], .begin = slice.begin, .end = slice.end, .to = memory + slice.at});
  }
  return source.Read(parts, pieces);
}

}  // namespace cairn::tools
