// Tensors wanted in other cuts than they were saved in: which bytes of which shard go where.

#include "restore/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "restore/plan.h"
#include "restore/rows.h"
#include "shard_headers.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Extents = std::vector<std::int64_t>;

MATCHER_P4(AreRows, from, to, size, levels, "") {
  return arg.from == from && arg.to == to && arg.shape == (RowShape{.size = size, .levels = levels});
}
using Levels = std::vector<RowShape::Level>;

TEST(SharedRows, AreOneIfOnlyTheOutermostDimensionIsCut) {
  const Box rows{.begin = {4, 0, 0}, .end = {8, 3, 5}};
  const Box wanted{.begin = {6, 0, 0}, .end = {12, 3, 5}};

  EXPECT_THAT(FindSharedRows(rows, wanted), AreRows(30U, 0U, 30U, Levels{}));
}

TEST(SharedRows, AreOneLevelIfColumnsAreCut) {
  const Box left{.begin = {0, 0}, .end = {3, 4}};
  const Box middle{.begin = {1, 2}, .end = {3, 7}};

  EXPECT_THAT(FindSharedRows(left, middle), AreRows(6U, 0U, 2U, Levels{{2, 4, 5}}));
}

TEST(SharedRows, SpanFullInnerDimensions) {
  const Box whole{.begin = {0, 0, 0}, .end = {2, 4, 3}};
  const Box slab{.begin = {0, 1, 0}, .end = {2, 3, 3}};

  EXPECT_THAT(FindSharedRows(whole, slab), AreRows(3U, 0U, 6U, Levels{{2, 12, 6}}));
}

TEST(SharedRows, AreOneLevelOverFullOuterDimensions) {
  const Box whole{.begin = {0, 0, 0, 0}, .end = {5, 1, 4, 3}};
  const Box columns{.begin = {0, 0, 0, 1}, .end = {5, 1, 4, 3}};

  EXPECT_THAT(FindSharedRows(whole, columns), AreRows(1U, 0U, 2U, Levels{{20, 3, 2}}));
}

TEST(SharedRows, AreOneLevelForEachCutDimension) {
  const Box whole{.begin = {0, 0, 0}, .end = {4, 5, 6}};
  const Box block{.begin = {1, 1, 1}, .end = {3, 4, 3}};

  EXPECT_THAT(FindSharedRows(whole, block), AreRows(37U, 0U, 2U, Levels{{2, 30, 6}, {3, 6, 2}}));
}

TEST(SharedRows, AreOneElementForScalarsAndNoneIfDisjoint) {
  EXPECT_THAT(FindSharedRows({}, {}), AreRows(0U, 0U, 1U, Levels{}));
  EXPECT_EQ(FindSharedRows({{0}, {2}}, {{2}, {4}}).shape.size, 0U);
  EXPECT_EQ(FindSharedRows({{0, 3}, {2, 3}}, {{0, 0}, {2, 9}}).shape.size, 0U);
}

// Does not count other processes.
double ThreadCpuSeconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

class ReshardTest : public ::testing::Test {
 protected:
  struct Place {
    std::size_t shard;
    std::uint64_t begin;
    std::uint64_t end;
    std::uint64_t target_begin;
    auto operator<=>(const Place&) const = default;
  };

  void Want(const std::string& name, const Extents& shape, const std::optional<TensorPart>& part = {},
            DType dtype = DType::kF32) {
    memory_.emplace_back(1 << 16);
    const Status added =
        table_.Add(name, {.data = memory_.back().data(), .dtype = dtype, .shape = shape, .part = part});
    ASSERT_TRUE(added.ok()) << added;
  }
  void Save(std::vector<std::vector<ShardTensor>> shards) {
    for (auto& tensors : shards) headers_.push_back(HeaderOf(std::move(tensors), headers_.size()));
  }
  [[nodiscard]] Result<MatchedTensors> Match(const RestoreOptions& options = {}, std::uint64_t rank = 0) const {
    std::vector<SavedShard> shards;
    for (const ShardHeader& header : headers_) shards.push_back({"shard-" + std::to_string(header.shard), &header});
    return MatchTensors(shards, rank, table_, options);
  }
  // Each row that a copy takes of [begin, end).
  [[nodiscard]] static std::vector<Place> RowsOf(const PlannedCopy& copy, std::uint64_t begin, std::uint64_t end,
                                                 std::size_t shard) {
    std::vector<Place> all;
    RowCursor cursor(copy, begin, end);
    while (const auto rows = cursor.Next()) {
      for (std::uint64_t i = 0; i < rows->rows; ++i) {
        const std::uint64_t from = rows->from + i * rows->from_pitch;
        all.push_back({shard, from, from + rows->bytes, rows->to + i * rows->to_pitch});
      }
    }
    return all;
  }
  [[nodiscard]] static std::vector<Place> Places(const Result<MatchedTensors>& matched) {
    std::vector<Place> places;
    if (!matched.ok()) {
      ADD_FAILURE() << matched.status();
      return places;
    }
    for (std::size_t s = 0; s < matched->copies.size(); ++s) {
      for (const PlannedCopy& c : matched->copies[s]) {
        for (const Place& row : RowsOf(c, c.begin, c.end, s)) places.push_back(row);
      }
    }
    return places;
  }
  void ExpectRefused(const Result<MatchedTensors>& matched, const std::string& text) {
    EXPECT_EQ(matched.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(matched.status().message(), HasSubstr(text));
  }

  std::deque<std::vector<std::byte>> memory_;
  TensorTable table_;
  std::vector<ShardHeader> headers_;
};

TEST_F(ReshardTest, AssemblesAWholeTensorFromPartsOfOneDimension) {
  Save({{PartOf("w", {10}, {0}, {4})}, {PartOf("w", {10}, {4}, {4})}, {PartOf("w", {10}, {8}, {2})}});
  Want("w", {10});

  const auto matched = Match();

  EXPECT_THAT(Places(matched), ElementsAre(Place{0, 0, 16, 0}, Place{1, 0, 16, 16}, Place{2, 0, 8, 32}));
  EXPECT_EQ(matched->tensors, 1);
  EXPECT_EQ(matched->bytes, 40);
}

TEST_F(ReshardTest, CutsAPartFromAWholeTensorUnderAnyName) {
  ShardTensor other = Floats("other", 6);
  ShardTensor whole = PartOf("w", {4, 3}, {0, 0}, {4, 3});
  whole.part.reset();
  Save({{other, whole}});
  Want("any name", {2, 3}, TensorPart{"w", {4, 3}, {1, 0}});

  EXPECT_THAT(Places(Match()), ElementsAre(Place{0, 24 + 12, 24 + 36, 0}));
}

TEST_F(ReshardTest, CutsAPartFromATiedTensor) {
  Save({{Floats("head", 8)}});
  headers_[0].aliases["embedding"] = "head";
  Want("mine", {4}, TensorPart{"embedding", {8}, {4}});

  EXPECT_THAT(Places(Match()), ElementsAre(Place{0, 16, 32, 0}));
}

TEST_F(ReshardTest, CutsPartsOfParts) {
  Save({{PartOf("w", {8}, {0}, {4})}, {PartOf("w", {8}, {4}, {4})}});
  Want("w", {2}, TensorPart{"w", {8}, {4}});

  EXPECT_THAT(Places(Match()), ElementsAre(Place{1, 0, 8, 0}));
}

TEST_F(ReshardTest, TurnsRowsIntoColumns) {
  Save({{PartOf("w", {4, 4}, {0, 0}, {2, 4})}, {PartOf("w", {4, 4}, {2, 0}, {2, 4})}});
  Want("w", {4, 2}, TensorPart{"w", {4, 4}, {0, 2}});

  EXPECT_THAT(Places(Match()),
              ElementsAre(Place{0, 8, 16, 0}, Place{0, 24, 32, 8}, Place{1, 8, 16, 16}, Place{1, 24, 32, 24}));
}

TEST_F(ReshardTest, AssemblesBlocksOfOtherSizesInThreeDimensions) {
  Save({{PartOf("w", {2, 3, 2}, {0, 0, 0}, {2, 2, 2})}, {PartOf("w", {2, 3, 2}, {0, 2, 0}, {2, 1, 2})}});
  Want("w", {2, 2, 1}, TensorPart{"w", {2, 3, 2}, {0, 1, 1}});

  EXPECT_THAT(Places(Match()),
              ElementsAre(Place{0, 12, 16, 0}, Place{0, 28, 32, 8}, Place{1, 4, 8, 4}, Place{1, 12, 16, 12}));
}

TEST_F(ReshardTest, PrefersTheOwnReplica) {
  const auto half = [](std::int64_t at) { return PartOf("w", {8}, {at}, {4}); };
  Save({{half(0)}, {half(4)}, {half(0)}, {half(4)}, {half(4)}});
  Want("w", {8});

  EXPECT_THAT(Places(Match({}, 4)), ElementsAre(Place{0, 0, 16, 0}, Place{4, 0, 16, 16}));
  EXPECT_THAT(Places(Match({}, 9)), ElementsAre(Place{0, 0, 16, 0}, Place{1, 0, 16, 16}));
}

TEST_F(ReshardTest, PrefersTheSameNameAndPart) {
  Save({{PartOf("w", {8}, {0}, {8}), Floats("v", 4)}, {Floats("w", 8)}});
  Want("w", {8});

  EXPECT_THAT(Places(Match()), ElementsAre(Place{1, 0, 32, 0}));
}

TEST_F(ReshardTest, RejectsAGapAndNamesItsSize) {
  Save({{PartOf("w", {8, 2}, {0, 0}, {2, 2})}, {PartOf("w", {8, 2}, {5, 0}, {3, 2})}});
  Want("mine", {4, 2}, TensorPart{"w", {8, 2}, {1, 0}});
  Want("none", {2, 2}, TensorPart{"w", {8, 2}, {3, 0}});

  for (const bool allow_missing : {false, true}) {
    const auto matched = Match({.allow_missing = allow_missing});
    ExpectRefused(matched,
                  "tensor \"mine\": expected F32 [4, 2] at [1, 0] of \"w\" [8, 2], found no part of \"w\" with 6 of "
                  "its 8 elements");
    ExpectRefused(matched, "with 4 of its 4 elements");
  }
}

TEST_F(ReshardTest, RejectsOverlappingPiecesAndNamesBothOnce) {
  Save({{PartOf("w", {8}, {0}, {4})}, {PartOf("w", {8}, {3}, {5})}});
  Want("left", {2}, TensorPart{"w", {8}, {0}});
  Want("right", {2}, TensorPart{"w", {8}, {6}});

  const auto matched = Match();

  ExpectRefused(matched,
                "\"w\" in shard-0 and \"w\" in shard-1 overlap: F32 [4] at [0] of \"w\" [8] and F32 [5] at [3] of "
                "\"w\" [8]");
  EXPECT_THAT(matched.status().message(), Not(HasSubstr("; ")));
}

TEST_F(ReshardTest, MessagesEscapeAndTruncateNames) {
  std::vector<ShardTensor> first{PartOf("w", {8}, {0}, {4})};
  std::vector<ShardTensor> second{PartOf("w", {8}, {3}, {5})};
  first[0].name = "line\nline";
  second[0].name = std::string(100'000, 'x');
  Save({first, second});
  Want("left", {2}, TensorPart{"w", {8}, {0}});

  const auto matched = Match();

  ExpectRefused(matched, R"("line\nline" in shard-0 and "xxx)");
  EXPECT_LT(matched.status().message().size(), 1000U);
}

TEST_F(ReshardTest, FindsAnOverlapInAnyDimensionOfAGrid) {
  std::vector<SavedPiece> pieces;
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t column = 0; column < 9; ++column) {
      pieces.push_back({.box = {{row * 2, column * 3}, {row * 2 + 2, column * 3 + 3}}});
    }
  }

  EXPECT_FALSE(PieceSet(pieces).overlap().has_value());
  for (const Box& extra : {Box{{0, 0}, {12, 1}}, Box{{0, 0}, {1, 27}}, Box{{11, 26}, {12, 27}}}) {
    auto more = pieces;
    more.push_back({.box = extra});
    EXPECT_TRUE(PieceSet(more).overlap().has_value());
  }
}

TEST_F(ReshardTest, RejectsPiecesOfAnotherDTypeOrGlobalShape) {
  Save({{PartOf("dtype", {8}, {0}, {4}), PartOf("one dtype", {8}, {0}, {4}), PartOf("shape", {8}, {0}, {4})},
        {PartOf("dtype", {8}, {4}, {4}), PartOf("one dtype", {8}, {4}, {4}, DType::kI32),
         PartOf("shape", {9}, {4}, {4})}});
  Want("dtype", {8}, {}, DType::kBF16);
  Want("one dtype", {8});
  Want("shape", {8});
  Want("mine", {3}, TensorPart{"dtype", {7}, {0}});

  const auto matched = Match();

  ExpectRefused(matched, "tensor \"dtype\": expected BF16 [8], found F32 [4] at [0] of \"dtype\" [8] in shard-0");
  ExpectRefused(matched,
                "tensor \"one dtype\": expected F32 [8], found I32 [4] at [4] of \"one dtype\" [8] in shard-1");
  ExpectRefused(matched, "tensor \"shape\": expected F32 [8], found F32 [4] at [4] of \"shape\" [9] in shard-1");
  ExpectRefused(matched, "tensor \"mine\": expected F32 [3] at [0] of \"dtype\" [7], found F32 [4]");
}

TEST_F(ReshardTest, TakesPartsWithoutElementsAndScalars) {
  Save({{PartOf("w", {3, 2}, {0, 0}, {3, 2}), PartOf("s", {}, {}, {}), PartOf("none", {0, 4}, {0, 0}, {0, 4})},
        {PartOf("w", {3, 2}, {3, 0}, {0, 2}), PartOf("none", {0, 4}, {0, 0}, {0, 4})}});
  Want("w", {3, 2});
  Want("nothing of w", {0, 2}, TensorPart{"w", {3, 2}, {2, 0}});
  Want("s", {});
  Want("none", {0, 4});
  Want("none of none", {0, 2}, TensorPart{"none", {0, 4}, {0, 2}});

  const auto matched = Match();

  EXPECT_THAT(Places(matched), ElementsAre(Place{0, 0, 24, 0}, Place{0, 24, 28, 0}));
  EXPECT_EQ(matched->tensors, 5);
  EXPECT_EQ(matched->bytes, 28);
}

TEST_F(ReshardTest, ListsAsMissingOnlyTensorsWithoutPieces) {
  Save({{PartOf("w", {8}, {0}, {8})}});
  Want("w", {8});
  Want("absent", {2}, TensorPart{"other", {8}, {0}});

  const auto matched = Match({.allow_missing = true});

  EXPECT_THAT(Places(matched), ElementsAre(Place{0, 0, 32, 0}));
  EXPECT_THAT(matched->missing, ElementsAre("absent"));
  ExpectRefused(Match(), "tensor \"absent\": expected F32 [2] at [0] of \"other\" [8], found none with that name");
}

TEST_F(ReshardTest, WritesTiedPartsOnceWhateverTheirNames) {
  Save({{PartOf("w", {8}, {0}, {4})}, {PartOf("w", {8}, {4}, {4})}});
  memory_.emplace_back(64);
  const TensorView view{.data = memory_.back().data(), .shape = {8}, .part = TensorPart{"w", {8}, {0}}};
  ASSERT_TRUE(table_.Add("a", view).ok());
  ASSERT_TRUE(table_.Add("b", view).ok());

  const auto matched = Match();

  EXPECT_EQ(Places(matched).size(), 2);
  EXPECT_EQ(matched->tensors, 1);
}

TEST_F(ReshardTest, RejectsTiedMemoryForSeparateLogicalTensors) {
  Save({{PartOf("a", {8}, {0}, {8}), PartOf("b", {8}, {0}, {8})}});
  memory_.emplace_back(64);
  ASSERT_TRUE(table_.Add("a", {.data = memory_.back().data(), .shape = {8}}).ok());
  ASSERT_TRUE(table_.Add("b", {.data = memory_.back().data(), .shape = {8}}).ok());

  ExpectRefused(Match(), "\"a\" and \"b\" share memory");
  EXPECT_EQ(Places(Match({.names = {"b"}})).size(), 1);
}

TEST_F(ReshardTest, DoesNotMarkTargetsFromSeveralShards) {
  Save({{PartOf("a", {8}, {0}, {4}), PartOf("b", {8}, {0}, {4})},
        {PartOf("a", {8}, {4}, {4}), PartOf("b", {8}, {4}, {4})}});
  Want("a", {8});
  Want("b", {8});

  const auto matched = Match();

  ASSERT_TRUE(matched.ok()) << matched.status();
  for (const auto& of_shard : matched->copies) {
    EXPECT_EQ(of_shard.size(), 2U);
    for (const PlannedCopy& copy : of_shard) EXPECT_FALSE(copy.shares_memory) << copy.name;
  }
}

TEST_F(ReshardTest, MarksAllCopiesOfOverlappingTargets) {
  const TensorPart left{"w", {4, 4}, {0, 0}};
  Save({{PartOf("w", {4, 4}, {0, 0}, {4, 4}), Floats("z", 4)}});
  Want("apart", {4, 2}, left);
  memory_.emplace_back(256);
  ASSERT_TRUE(table_.Add("a", {.data = memory_.back().data(), .shape = {4, 2}, .part = left}).ok());
  ASSERT_TRUE(table_.Add("z", {.data = memory_.back().data() + 28, .shape = {4}}).ok());

  const auto matched = Match();

  ASSERT_TRUE(matched.ok()) << matched.status();
  std::map<std::string_view, std::pair<int, int>> runs;  // By name: all, and those marked.
  for (const PlannedCopy& copy : matched->copies[0]) {
    ++runs[copy.name].first;
    runs[copy.name].second += copy.shares_memory ? 1 : 0;
  }
  EXPECT_EQ(runs["apart"], (std::pair{1, 0}));
  EXPECT_EQ(runs["a"], (std::pair{1, 1}));
  EXPECT_EQ(runs["z"], (std::pair{1, 1}));
}

TEST_F(ReshardTest, PlansOneCopyForAColumnCutOfManyRows) {
  constexpr std::int64_t kRows = 2'000'000;
  Save({{PartOf("w", {kRows, 8}, {0, 0}, {kRows, 8})}});
  std::byte memory{};  // Never written.
  ASSERT_TRUE(
      table_.Add("w", {.data = &memory, .shape = {kRows, 3}, .part = TensorPart{"w", {kRows, 8}, {0, 2}}}).ok());

  const auto matched = Match();

  ASSERT_TRUE(matched.ok()) << matched.status();
  ASSERT_EQ(matched->copies[0].size(), 1U);
  RowCursor cursor(matched->copies[0][0], 0, headers_[0].data_bytes());
  EXPECT_EQ(cursor.Next(), (PlannedRows{.from = 8, .bytes = 12, .rows = kRows, .from_pitch = 32, .to_pitch = 12}));
  EXPECT_EQ(cursor.Next(), std::nullopt);
}

// Two cuts through the same rows, split where a read ends, also within rows.
TEST_F(ReshardTest, TakesEachByteOfColumnsOnce) {
  constexpr std::int64_t kRows = 100'000;
  Save({{PartOf("w", {kRows, 9}, {0, 0}, {kRows, 9})}});
  std::vector<float> left(kRows * 4);
  std::vector<float> right(kRows * 3);
  ASSERT_TRUE(
      table_.Add("left", {.data = left.data(), .shape = {kRows, 4}, .part = TensorPart{"w", {kRows, 9}, {0, 1}}}).ok());
  ASSERT_TRUE(
      table_.Add("right", {.data = right.data(), .shape = {kRows, 3}, .part = TensorPart{"w", {kRows, 9}, {0, 6}}})
          .ok());
  auto matched = Match();
  ASSERT_TRUE(matched.ok()) << matched.status();
  std::vector<PlannedCopy>& copies = matched->copies[0];

  const auto reads = PlanReads(0, headers_[0], copies, kChecksumBlock);

  ASSERT_EQ(reads.size(), 4U);
  EXPECT_EQ(copies.size(), 2 * reads.size());
  std::map<std::string_view, std::uint64_t> next;  // Logical bytes so far, in order.
  for (const PlannedRead& read : reads) {
    for (std::size_t i = read.first_copy; i < copies.size() && copies[i].begin < read.end; ++i) {
      const std::uint64_t columns = copies[i].name == "left" ? 4 : 3;
      const std::uint64_t first = copies[i].name == "left" ? 1 : 6;
      for (const Place& row : RowsOf(copies[i], read.begin, read.end, 0)) {
        std::uint64_t& at = next[copies[i].name];
        ASSERT_EQ(row.target_begin, at);
        ASSERT_EQ(row.begin, at / (columns * 4) * 36 + first * 4 + at % (columns * 4));
        ASSERT_LE(read.begin, row.begin);
        ASSERT_LE(row.end, read.end);
        at += row.end - row.begin;
      }
    }
  }
  EXPECT_EQ(next["left"], left.size() * 4);
  EXPECT_EQ(next["right"], right.size() * 4);
}

TEST_F(ReshardTest, PlansACopyForEachRowFarApart) {
  constexpr std::int64_t kColumns = 1'000'000;
  Save({{PartOf("w", {3, kColumns}, {0, 0}, {3, kColumns})}});
  Want("w", {3, 2}, TensorPart{"w", {3, kColumns}, {0, 10}});

  auto matched = Match();

  ASSERT_TRUE(matched.ok()) << matched.status();
  ASSERT_EQ(matched->copies[0].size(), 3U);
  const auto reads = PlanReads(0, headers_[0], matched->copies[0], kChecksumBlock);
  ASSERT_EQ(reads.size(), 3U);
  EXPECT_EQ(reads[1].begin, 3U * kChecksumBlock);
}

// Takes 0.4 s for 800,000 runs and 30,000 pieces; a quadratic cost would take minutes. The limit allows for sanitizers.
TEST_F(ReshardTest, PlansManyRunsAndManyPiecesWithoutQuadraticCost) {
  constexpr std::int64_t kRows = 200'000;
  std::vector<std::vector<ShardTensor>> shards(2);
  for (std::int64_t i = 0; i < 2; ++i) {
    shards[static_cast<std::size_t>(i)].push_back(PartOf("w", {kRows, 4}, {0, i * 2}, {kRows, 2}));
    for (std::int64_t k = i; k < 20'000; k += 2) {
      shards[static_cast<std::size_t>(i)].push_back(PartOf("grid", {200, 100}, {k / 100, k % 100}, {1, 1}));
      shards[static_cast<std::size_t>(i)].back().name += std::to_string(k);
    }
  }
  Save(std::move(shards));
  std::vector<float> memory(kRows * 4 + 20'000);
  ASSERT_TRUE(table_.Add("w", {.data = memory.data(), .shape = {kRows, 4}}).ok());
  ASSERT_TRUE(table_
                  .Add("flat", {.data = memory.data(),
                                .shape = {kRows, 2},
                                .strides = {4, 1},
                                .part = TensorPart{"w", {kRows, 4}, {0, 1}}})
                  .ok());
  for (std::int64_t k = 0; k < 10'000; ++k) {
    ASSERT_TRUE(table_
                    .Add("g" + std::to_string(k), {.data = memory.data() + kRows * 4 + k * 2,
                                                   .shape = {1, 2},
                                                   .part = TensorPart{"grid", {200, 100}, {k / 50, k % 50 * 2}}})
                    .ok());
  }

  const double start = ThreadCpuSeconds();
  auto matched = Match();
  ASSERT_TRUE(matched.ok()) << matched.status();
  std::size_t steps = 0;
  for (std::uint32_t s = 0; s < 2; ++s) {
    auto& copies = matched->copies[s];
    for (const PlannedRead& read : PlanReads(s, headers_[s], copies, kChecksumBlock)) {
      for (std::size_t i = read.first_copy; i < copies.size() && copies[i].begin < read.end; ++i) ++steps;
    }
  }

  EXPECT_LT(ThreadCpuSeconds() - start, 10);
  EXPECT_EQ(matched->tensors, 10'002);
  EXPECT_LT(steps, 4 * kRows + 20'100);
}

// Random tensors in random grids, saved by some ranks and wanted in other grids, compared with plain index arithmetic.
class RandomReshards : public ReshardTest {
 protected:
  std::int64_t Draw(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }

  // All boxes of a random grid over the whole; some may be empty.
  std::vector<Box> Grid(const Extents& global) {
    std::vector<Box> boxes{{}};
    for (const std::int64_t size : global) {
      Extents cuts{0, size};
      for (std::int64_t n = Draw(0, 3); n > 0; --n) cuts.push_back(Draw(0, size));
      std::sort(cuts.begin(), cuts.end());
      std::vector<Box> next;
      for (const Box& box : boxes) {
        for (std::size_t i = 1; i < cuts.size(); ++i) {
          next.push_back(box);
          next.back().begin.push_back(cuts[i - 1]);
          next.back().end.push_back(cuts[i]);
        }
      }
      boxes = std::move(next);
    }
    return boxes;
  }

  static Extents ShapeOf(const Box& box) {
    Extents shape;
    for (std::size_t d = 0; d < box.begin.size(); ++d) shape.push_back(box.end[d] - box.begin[d]);
    return shape;
  }

  // The bytes of a box in row-major order; each element's depend on its position in the whole.
  static std::string BytesOf(const Box& box, const Extents& global, std::size_t item) {
    std::string bytes;
    if (box.empty()) return bytes;
    Extents index = box.begin;
    while (true) {
      std::uint64_t linear = 0;
      for (std::size_t d = 0; d < global.size(); ++d) {
        linear = linear * static_cast<std::uint64_t>(global[d]) + static_cast<std::uint64_t>(index[d]);
      }
      const std::uint64_t word = (linear + 1) * 0x9e3779b97f4a7c15U;
      for (std::size_t i = 0; i < item; ++i) bytes += static_cast<char>(word >> (56 - 8 * i));
      std::size_t d = global.size();
      for (; d > 0 && ++index[d - 1] == box.end[d - 1]; --d) index[d - 1] = box.begin[d - 1];
      if (d == 0) return bytes;
    }
  }

  // Strides in a random order of dimensions, with gaps; none half of the time.
  Extents RandomStrides(const Extents& shape) {
    if (Draw(0, 1) == 0) return {};
    std::vector<std::size_t> order(shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    Extents strides(shape.size());
    std::int64_t stride = Draw(1, 2);
    for (const std::size_t d : order) {
      strides[d] = stride;
      stride = stride * std::max<std::int64_t>(shape[d], 1) + Draw(0, 2);
    }
    return strides;
  }

  std::mt19937_64 random_{20'251'121};  // NOLINT: reproducible
};

TEST_F(RandomReshards, CopyEveryByteOnce) {
  constexpr DType kTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kF64};
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    // Given a tensor saved as a grid of parts in several shards, some of them twice ...
    const DType dtype = kTypes[Draw(0, 3)];
    const std::size_t item = DTypeSize(dtype);
    Extents global(static_cast<std::size_t>(Draw(0, 4)));
    for (std::int64_t& size : global) size = Draw(round % 10 == 0 ? 0 : 1, 7);
    std::vector<std::vector<ShardTensor>> shards(static_cast<std::size_t>(Draw(1, 5)));
    std::vector<std::string> data(shards.size());
    for (const Box& box : Grid(global)) {
      for (std::int64_t copies = Draw(0, 5) == 0 ? 2 : 1; copies > 0; --copies) {
        const auto s = static_cast<std::size_t>(Draw(0, static_cast<std::int64_t>(shards.size()) - 1));
        shards[s].push_back(PartOf("w", global, box.begin, ShapeOf(box), dtype));
        shards[s].back().name += "." + std::to_string(shards[s].size());
        data[s] += BytesOf(box, global, item);
      }
    }
    headers_.clear();
    Save(std::move(shards));
    // ... and wanted in another grid, and whole.
    const std::vector<Box> wanted = Grid(global);
    TensorTable table;
    std::deque<std::vector<std::byte>> memory;
    const auto want = [&](const std::string& name, const Extents& shape, std::optional<TensorPart> part) {
      memory.emplace_back(1 << 18);
      const Status added = table.Add(name, {.data = memory.back().data(),
                                            .dtype = dtype,
                                            .shape = shape,
                                            .strides = RandomStrides(shape),
                                            .bytes = memory.back().size(),
                                            .part = std::move(part)});
      ASSERT_TRUE(added.ok()) << added;
    };
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      want("t" + std::to_string(i), ShapeOf(wanted[i]), TensorPart{"w", global, wanted[i].begin});
    }
    want("w", global, {});

    std::vector<SavedShard> saved;
    for (const ShardHeader& header : headers_) saved.push_back({"shard", &header});
    auto matched = MatchTensors(saved, static_cast<std::uint64_t>(Draw(0, 5)), table, {});

    ASSERT_TRUE(matched.ok()) << matched.status();
    std::map<std::string_view, std::uint64_t> written;
    for (std::uint32_t s = 0; s < saved.size(); ++s) {
      std::vector<PlannedCopy>& copies = matched->copies[s];
      for (const PlannedRead& read : PlanReads(s, headers_[s], copies, kChecksumBlock)) {
        for (std::size_t i = read.first_copy; i < copies.size() && copies[i].begin < read.end; ++i) {
          const PlannedCopy& c = copies[i];
          ASSERT_LT(std::max(c.begin, read.begin), std::min(c.end, read.end));
          for (const Place& row : RowsOf(c, read.begin, read.end, s)) {
            const std::uint64_t bytes = row.end - row.begin;
            ASSERT_LT(0U, bytes);
            ASSERT_LE(read.begin, row.begin);
            ASSERT_LE(row.end, read.end);
            ScatterBytes(*c.target, row.target_begin, row.target_begin + bytes,
                         reinterpret_cast<const std::byte*>(data[s].data()) + row.begin);
            written[c.name] += bytes;
          }
        }
      }
    }
    for (std::size_t i = 0; i < table.size(); ++i) {
      const Box box = i < wanted.size() ? wanted[i] : BoxOf(global, {});
      std::string found(table[i].bytes(), '\0');
      GatherBytes(table[i].layout, 0, found.size(), reinterpret_cast<std::byte*>(found.data()));
      ASSERT_EQ(found, BytesOf(box, global, item)) << table[i].name;
      ASSERT_EQ(written[table[i].name], found.size()) << table[i].name;
    }
  }
}

}  // namespace
}  // namespace cairn
