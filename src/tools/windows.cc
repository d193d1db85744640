#include "tools/windows.h"

#include <algorithm>

namespace cairn::tools {

std::vector<std::vector<Stretch>> CutWindows(std::span<const std::uint64_t> sizes, std::uint64_t window_bytes) {
  std::vector<std::vector<Stretch>> windows;
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

Status ReadWindow(const RestoreParts& parts, TensorSource& source, std::span<const StoredTensor* const> tensors,
                  std::span<const Stretch> window, std::byte* memory) {
  std::vector<TensorSource::Piece> pieces;
  pieces.reserve(window.size());
  for (const Stretch& stretch : window) {
    pieces.push_back(
        {.tensor = tensors[stretch.tensor], .begin = stretch.begin, .end = stretch.end, .to = memory + stretch.at});
  }
  return source.Read(parts, pieces);
}

}  // namespace cairn::tools
