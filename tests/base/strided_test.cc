#include "base/strided.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace cairn {
namespace {

using Dims = std::vector<std::int64_t>;

struct Case {
  std::size_t item = 1;
  Dims shape;
  Dims strides;
  // In bytes.
  std::size_t memory = 0;
};

// Dimensions in random order with random gaps, never overlapping.
Case RandomCase(std::mt19937& random) {
  const auto below = [&random](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  Case c;
  c.item = std::size_t{1} << below(4);
  const auto rank = static_cast<std::size_t>(below(6));
  for (std::size_t d = 0; d < rank; ++d) c.shape.push_back(below(12) == 0 ? 0 : 1 + below(5));
  c.strides.resize(rank);
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), 0U);
  if (below(2) == 0) std::shuffle(order.begin(), order.end(), random);
  std::int64_t stride = 1;
  for (std::size_t i = rank; i-- > 0;) {
    const std::size_t d = order[i];
    if (below(3) == 0) stride += below(3);
    // The stride of a dimension of one element or none does not matter.
    c.strides[d] = c.shape[d] <= 1 && below(2) == 0 ? below(100) : stride;
    stride *= std::max<std::int64_t>(c.shape[d], 1);
  }
  c.memory = static_cast<std::size_t>(stride + 8) * c.item;
  return c;
}

// The address of each element's bytes in row-major order, one at a time.
std::vector<std::size_t> NaiveOffsets(const Case& c) {
  std::vector<std::size_t> offsets;
  std::int64_t elements = 1;
  for (const std::int64_t n : c.shape) elements *= n;
  for (std::int64_t e = 0; e < elements; ++e) {
    std::int64_t rest = e;
    std::int64_t at = 0;
    for (std::size_t d = c.shape.size(); d-- > 0;) {
      at += rest % c.shape[d] * c.strides[d];
      rest /= c.shape[d];
    }
    for (std::size_t b = 0; b < c.item; ++b) offsets.push_back(static_cast<std::size_t>(at) * c.item + b);
  }
  return offsets;
}

TEST(Strided, GatherAndScatterAgreeWithANaiveLoop) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const Case c = RandomCase(random);
    const std::vector<std::size_t> offsets = NaiveOffsets(c);
    std::vector<std::byte> memory(c.memory);
    for (std::byte& b : memory) b = static_cast<std::byte>(random());
    const std::vector<std::byte> before = memory;
    const StridedLayout layout = MakeStridedLayout(memory.data(), c.item, c.shape, c.strides);
    ASSERT_EQ(layout.bytes, offsets.size());
    const std::size_t begin = random() % (offsets.size() + 1);
    const std::size_t end = begin + random() % (offsets.size() - begin + 1);

    std::vector<std::byte> gathered(end - begin + 1, std::byte{0x5a});
    GatherBytes(layout, begin, end, gathered.data());
    std::vector<std::byte> fresh(end - begin);
    for (std::byte& b : fresh) b = static_cast<std::byte>(random());
    ScatterBytes(layout, begin, end, fresh.data());

    std::vector<std::byte> expected = before;
    for (std::size_t i = begin; i < end; ++i) {
      ASSERT_EQ(gathered[i - begin], before[offsets[i]]) << "round " << round << " byte " << i;
      expected[offsets[i]] = fresh[i - begin];
    }
    EXPECT_EQ(gathered.back(), std::byte{0x5a}) << "wrote beyond the end";
    ASSERT_EQ(memory, expected) << "round " << round;
  }
}

TEST(Strided, ContiguousMemoryIsOneRow) {
  std::byte memory[240];

  for (const Dims& strides : {Dims{}, Dims{30, 6, 1}}) {
    const StridedLayout layout = MakeStridedLayout(memory, 2, Dims{4, 5, 6}, strides);
    EXPECT_TRUE(layout.contiguous());
    EXPECT_EQ(layout.row_bytes, 240U);
    EXPECT_EQ(layout.bytes, 240U);
  }
}

TEST(Strided, MergesDimensionsWherePossible) {
  // [8, 4, 6] cut from rows of 10 is one outer dimension of 32 rows.
  const StridedLayout rows = MakeStridedLayout(nullptr, 4, Dims{8, 4, 6}, Dims{40, 10, 1});
  EXPECT_EQ(rows.row_bytes, 24U);
  EXPECT_EQ(rows.outer, (std::vector<StridedLayout::Dimension>{{32, 40}}));

  const StridedLayout transposed = MakeStridedLayout(nullptr, 4, Dims{8, 6}, Dims{1, 8});
  EXPECT_EQ(transposed.row_bytes, 4U);
  EXPECT_EQ(transposed.outer, (std::vector<StridedLayout::Dimension>{{8, 4}, {6, 32}}));
}

TEST(Strided, ScalarsAndEmptyTensors) {
  const StridedLayout scalar = MakeStridedLayout(nullptr, 8, Dims{}, Dims{});
  EXPECT_EQ(scalar.bytes, 8U);
  EXPECT_TRUE(scalar.contiguous());
  const StridedLayout empty = MakeStridedLayout(nullptr, 8, Dims{3, 0}, Dims{7, 1});
  EXPECT_EQ(empty.bytes, 0U);
  GatherBytes(empty, 0, 0, nullptr);
  ScatterBytes(empty, 0, 0, nullptr);
}

}  // namespace
}  // namespace cairn
