#include "restore/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "support/points.h"

namespace cairn {
namespace {

using Extents = std::vector<std::int64_t>;
using Pieces = std::vector<SavedPiece>;

/// Random boxes of integers in a cube.
class RandomOverlaps : public testing::Test {
 protected:
  std::int64_t Draw(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  Box DrawBox(std::size_t dimensions, std::int64_t size) {
    Box box;
    for (std::size_t d = 0; d < dimensions; ++d) {
      box.begin.push_back(Draw(0, size - 1));
      box.end.push_back(Draw(box.begin.back() + 1, size));
    }
    return box;
  }
  /// Cuts a box in two repeatedly: boxes without overlaps or gaps.
  Pieces Cut(const Box& whole, std::size_t count) {
    Pieces pieces{{.box = whole}};
    for (std::size_t tries = 0; tries < 4 * count && pieces.size() < count; ++tries) {
      Box& box = pieces[static_cast<std::size_t>(Draw(0, static_cast<std::int64_t>(pieces.size()) - 1))].box;
      const auto d = static_cast<std::size_t>(Draw(0, static_cast<std::int64_t>(whole.begin.size()) - 1));
      if (box.end[d] - box.begin[d] < 2) continue;
      Box other = box;
      other.begin[d] = box.end[d] = Draw(box.begin[d] + 1, box.end[d] - 1);
      pieces.push_back({.box = std::move(other)});
    }
    std::shuffle(pieces.begin(), pieces.end(), random_);
    return pieces;
  }
  /// Places boxes at random and keeps each that fits. Most are long in one dimension, and no cut separates them all.
  Pieces ThrowRods(std::size_t dimensions, std::int64_t size, int throws) {
    Pieces pieces;
    for (; throws > 0; --throws) {
      SavedPiece rod{.box = DrawBox(dimensions, size)};
      const auto along = static_cast<std::size_t>(Draw(0, static_cast<std::int64_t>(dimensions) - 1));
      for (std::size_t d = 0; d < dimensions; ++d) {
        if (d != along) rod.box.end[d] = std::min(rod.box.end[d], rod.box.begin[d] + Draw(1, 2));
      }
      if (std::none_of(pieces.begin(), pieces.end(), [&](const auto& p) { return Overlap(p, rod); })) {
        pieces.push_back(std::move(rod));
      }
    }
    return pieces;
  }
  /// Moves one of its sides by one.
  void Disturb(Box& box) {
    const auto d = static_cast<std::size_t>(Draw(0, static_cast<std::int64_t>(box.begin.size()) - 1));
    if (Draw(0, 1) == 0) {
      box.begin[d] -= 1;
    } else {
      box.end[d] += 1;
    }
  }
  static bool Overlap(const SavedPiece& a, const SavedPiece& b) {
    for (std::size_t d = 0; d < a.box.begin.size(); ++d) {
      if (a.box.begin[d] >= b.box.end[d] || b.box.begin[d] >= a.box.end[d]) return false;
    }
    return true;
  }
  static bool AnyOverlap(const Pieces& pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        if (Overlap(pieces[i], pieces[k])) return true;
      }
    }
    return false;
  }
  static void ExpectFoundIn(const Pieces& pieces) {
    const auto found = FindOverlap(pieces);
    ASSERT_EQ(found.has_value(), AnyOverlap(pieces)) << pieces.size() << " pieces";
    if (!found) return;
    EXPECT_LT(found->first, found->second);
    EXPECT_TRUE(Overlap(pieces.at(found->first), pieces.at(found->second)));
  }

  std::mt19937 random_{SeedOfRun(19)};
};

TEST_F(RandomOverlaps, AgreeWithComparingAllPairs) {
  for (int round = 0; round < 2000; ++round) {
    const auto dimensions = static_cast<std::size_t>(Draw(1, 4));
    Pieces pieces;
    for (std::int64_t n = Draw(0, 8); n > 0; --n) {
      const Box box = DrawBox(dimensions, 6);
      const bool twice = std::any_of(pieces.begin(), pieces.end(), [&](const auto& p) { return p.box == box; });
      if (!twice) pieces.push_back({.box = box});
    }

    ExpectFoundIn(pieces);
  }
}

TEST_F(RandomOverlaps, SmallOnesAreFoundInACut) {
  for (int round = 0; round < SomeRounds(100, 4); ++round) {
    const auto dimensions = static_cast<std::size_t>(Draw(1, 4));
    const std::int64_t size = dimensions == 1 ? 1000 : 24;
    Pieces pieces = Cut({.begin = Extents(dimensions, 0), .end = Extents(dimensions, size)},
                        static_cast<std::size_t>(Draw(1, 400)));
    pieces.resize(static_cast<std::size_t>(Draw(1, static_cast<std::int64_t>(pieces.size()))));

    ExpectFoundIn(pieces);
    Disturb(pieces.back().box);
    ExpectFoundIn(pieces);
  }
}

TEST_F(RandomOverlaps, SmallOnesAreFoundAmongRods) {
  for (int round = 0; round < SomeRounds(40, 4); ++round) {
    Pieces pieces = ThrowRods(static_cast<std::size_t>(Draw(2, 4)), Draw(16, 40), 1000);

    ExpectFoundIn(pieces);
    for (int i = 0; i < 10; ++i) {
      Box& box = pieces[static_cast<std::size_t>(Draw(0, static_cast<std::int64_t>(pieces.size()) - 1))].box;
      const Box before = box;
      Disturb(box);
      ExpectFoundIn(pieces);
      box = before;
    }
  }
}

// More boxes than are compared in pairs, and few enough that an overlap hangs on a single begin or end of one half.
TEST_F(RandomOverlaps, OneBoxTooManyIsFoundAmongSmallRods) {
  for (int round = 0; round < 5000; ++round) {
    const auto dimensions = static_cast<std::size_t>(Draw(2, 4));
    const std::int64_t size = Draw(6, 16);
    Pieces pieces = ThrowRods(dimensions, size, static_cast<int>(Draw(20, 80)));
    const SavedPiece more = ThrowRods(dimensions, size, 1).front();
    if (std::any_of(pieces.begin(), pieces.end(), [&](const auto& p) { return p.box == more.box; })) continue;

    pieces.insert(pieces.begin() + Draw(0, static_cast<std::int64_t>(pieces.size())), more);

    ExpectFoundIn(pieces);
  }
}

// Steps and risers: along either dimension most boxes begin before earlier ones end.
Pieces Staircase(std::int64_t count) {
  Pieces pieces;
  for (std::int64_t i = 0; i < count / 2; ++i) {
    pieces.push_back({.box = {{2 * i, 4 * i}, {count, 4 * i + 2}}});
    pieces.push_back({.box = {{2 * i + 1, 4 * i + 2}, {2 * i + 2, 2 * count}}});
  }
  return pieces;
}

// Rods through a cube along each of its dimensions.
Pieces Rods(std::int64_t side) {
  Pieces pieces;
  for (std::int64_t i = 0; i < side; ++i) {
    for (std::int64_t k = 0; k < side; ++k) {
      pieces.push_back({.box = {{0, 2 * i, 2 * k}, {2 * side, 2 * i + 1, 2 * k + 1}}});
      pieces.push_back({.box = {{2 * i, 0, 2 * k + 1}, {2 * i + 1, 2 * side, 2 * k + 2}}});
      pieces.push_back({.box = {{2 * i + 1, 2 * k + 1, 0}, {2 * i + 2, 2 * k + 2, 2 * side}}});
    }
  }
  return pieces;
}

TEST(Overlaps, SearchTakesFewStepsForHostileBoxes) {
  constexpr std::size_t kCount = 30'000;
  for (const Pieces& pieces : {Staircase(kCount), Rods(100)}) {
    ASSERT_EQ(pieces.size(), kCount);
    std::uint64_t steps = 0;

    EXPECT_FALSE(FindOverlap(pieces, &steps));

    EXPECT_LT(steps, 1000 * kCount) << "of " << kCount * kCount / 2 << " to compare all";
  }
}

}  // namespace
}  // namespace cairn
