#include "restore/whole_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cairn {
namespace {

// The index of the box's first element in the row-major tensor.
std::uint64_t FirstOf(const Box& box, const std::vector<std::int64_t>& shape) {
  std::uint64_t first = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    first = first * static_cast<std::uint64_t>(shape[d]) + static_cast<std::uint64_t>(box.begin[d]);
  }
  return first;
}

TEST(CutBoxes, AreContiguousAndFollowEachOther) {
  const std::vector<std::vector<std::int64_t>> shapes{{}, {1}, {7}, {5, 3}, {3, 5}, {2, 1, 4, 3}, {1, 9}, {4, 0, 2}};
  for (const std::vector<std::int64_t>& shape : shapes) {
    const std::uint64_t elements = BoxOf(shape, std::nullopt).elements();
    for (const std::uint64_t most : {1, 2, 4, 7, 12, 30, 1000}) {
      constexpr std::uint64_t kItem = 2;
      std::uint64_t next = 0;
      for (const Box& box : CutBoxes(shape, kItem, most)) {
        // Contiguous: FindSharedRows has one row.
        const SharedRows rows = FindSharedRows(BoxOf(shape, std::nullopt), box);
        EXPECT_TRUE(rows.shape.levels.empty());
        EXPECT_EQ(rows.shape.size, box.elements());
        EXPECT_EQ(FirstOf(box, shape), next);
        EXPECT_LE(box.elements() * kItem, std::max(most, kItem));
        next += box.elements();
      }
      EXPECT_EQ(next, elements);
    }
  }
}

}  // namespace
}  // namespace cairn
