#include "base/memory_overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <numeric>
#include <random>
#include <set>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Dims = std::vector<std::int64_t>;

// Only addresses count: nothing is read.
std::byte* At(std::size_t address) { return reinterpret_cast<std::byte*>(address); }  // NOLINT

StridedLayout Tensor(std::size_t address, const Dims& shape, const Dims& strides, std::size_t item = 1) {
  return MakeStridedLayout(At(address), item, shape, strides);
}

SharedMemory Find(const std::vector<StridedLayout>& tensors) {
  return FindSharedMemory(tensors, [](std::size_t, std::size_t) { return true; });
}

std::set<const std::byte*> BytesOf(const StridedLayout& layout) {
  std::set<const std::byte*> bytes;
  std::vector<const std::byte*> rows{layout.base};
  for (const StridedLayout::Dimension& dimension : layout.outer) {
    std::vector<const std::byte*> more;
    for (const std::byte* row : rows) {
      for (std::int64_t i = 0; i < dimension.size; ++i) more.push_back(row + i * dimension.stride);
    }
    rows = std::move(more);
  }
  for (const std::byte* row : rows) {
    for (std::size_t i = 0; i < layout.row_bytes; ++i) bytes.insert(row + i);
  }
  return bytes;
}

// A part of a small array with several dimensions, perhaps with steps and in another order of dimensions.
StridedLayout RandomView(std::mt19937& random, const Dims& whole) {
  const auto below = [&random](std::int64_t n) { return static_cast<std::int64_t>(random()) % n; };
  std::size_t address = 1000;
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;
  std::int64_t stride = 1;
  for (std::size_t d = whole.size(); d-- > 0; stride *= whole[d]) {
    const std::int64_t begin = below(whole[d]);
    const std::int64_t step = 1 + below(3);
    address += static_cast<std::size_t>(begin * stride);
    dimensions.emplace_back(1 + below((whole[d] - begin + step - 1) / step), step * stride);
  }
  std::shuffle(dimensions.begin(), dimensions.end(), random);
  Dims shape;
  Dims strides;
  for (const auto& [size, step] : dimensions) {
    shape.push_back(size);
    strides.push_back(step);
  }
  return Tensor(address, shape, strides);
}

TEST(MemoryOverlap, RandomViewsAsByBruteForce) {
  std::mt19937 random(7);
  int overlapping = 0;
  constexpr int kRounds = 20'000;
  for (int round = 0; round < kRounds; ++round) {
    Dims whole(1 + random() % 4);
    for (std::int64_t& size : whole) size = 1 + static_cast<std::int64_t>(random() % 6);
    std::vector<StridedLayout> views(2 + random() % 3);
    for (StridedLayout& view : views) view = RandomView(random, whole);

    const SharedMemory found = Find(views);

    std::set<const std::byte*> seen;
    bool expected = false;
    for (std::size_t i = 0; i < views.size() && !expected; ++i) {
      if (std::find(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(i), views[i]) !=
          views.begin() + static_cast<std::ptrdiff_t>(i))
        continue;
      for (const std::byte* byte : BytesOf(views[i])) expected |= !seen.insert(byte).second;
    }
    ASSERT_EQ(found.overlap.has_value(), expected) << round;
    if (found.overlap) {
      ++overlapping;
      const auto a = BytesOf(views[found.overlap->first]);
      const auto b = BytesOf(views[found.overlap->second]);
      EXPECT_TRUE(std::any_of(a.begin(), a.end(), [&b](const std::byte* byte) { return b.contains(byte); })) << round;
    }
  }
  EXPECT_GT(overlapping, kRounds / 10);
  EXPECT_LT(overlapping, kRounds * 9 / 10);
}

TEST(MemoryOverlap, TiedTensorsAreNamedWithTheFirst) {
  const SharedMemory found = Find({Tensor(64, {4}, {}, 4), Tensor(0, {4}, {}, 4), Tensor(64, {4}, {1}, 4),
                                   Tensor(64, {4}, {}, 4), Tensor(80, {0}, {}, 4)});

  EXPECT_THAT(found.aliases, ElementsAre(Pair(0, 2), Pair(0, 3)));
  EXPECT_FALSE(found.overlap);
}

TEST(MemoryOverlap, OneLayoutWithTwoMeaningsIsNoTie) {
  const std::vector tensors{Tensor(64, {4}, {}, 4), Tensor(64, {2, 2}, {}, 4)};

  const SharedMemory found = FindSharedMemory(tensors, [](std::size_t, std::size_t) { return false; });

  EXPECT_THAT(found.aliases, IsEmpty());
  EXPECT_THAT(found.overlap, ::testing::Optional(Pair(0, 1)));
}

// Columns of one array, and 100,000 tensors side by side, which take no pairs.
TEST(MemoryOverlap, ManyTensorsThatInterleaveTakeTheTimeOfASort) {
  constexpr std::size_t kMany = 100'000;
  std::vector<StridedLayout> columns;
  std::vector<StridedLayout> apart;
  for (std::size_t i = 0; i < kMany; ++i) {
    columns.push_back(Tensor(4096 + 4 * i, {1000}, {kMany}, 4));
    apart.push_back(Tensor(4096 + 1024 * (i * 77'777 % kMany), {256}, {}, 4));
  }
  const std::clock_t began = std::clock();  // CPU time: other tests run beside. All pairs would take hours.

  EXPECT_FALSE(Find(columns).overlap);
  EXPECT_FALSE(Find(apart).overlap);

  EXPECT_LT(std::clock() - began, 60 * CLOCKS_PER_SEC);
  columns.push_back(Tensor(4096 + 4 * (kMany * 999 + 5), {2}, {}, 4));  // Within the last row.
  EXPECT_TRUE(Find(columns).overlap);
}

}  // namespace
}  // namespace cairn
