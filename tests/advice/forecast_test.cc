// Layouts without data: the published numbers of Tenplex's GPT-3 XL, and that every rank's tensors come whole, once,
// from the shards that hold them.

#include "advice/forecast.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "advice/model_shapes.h"
#include "advice/numbered_tensors.h"
#include "restore/rows.h"
#include "support/points.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kChunk = 4 * kChecksumBlock;

Model Gpt3Xl() {
  Model model = MakeGpt(
      {.layers = 24, .hidden = 2064, .heads = 24, .feed_forward = 8256, .positions = 1024, .vocabulary = 50257});
  model.rank_bytes = 4;  // The loss scale.
  return model;
}

std::uint64_t Sum(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

TEST(ForecastTest, BytesOfGpt3XlAreThePublishedOnes) {
  const Model model = Gpt3Xl();

  EXPECT_THAT(StageBytes(model, {4, 2, 2}), ElementsAre(5'813'933'000, 4'297'470'920, 4'297'470'920, 5'754'869'576));
  EXPECT_EQ(Sum(StageBytes(model, {4, 2, 1})), 20'163'744'416);
  EXPECT_EQ(Sum(StageBytes(model, {2, 2, 1})), 20'163'744'400);
  EXPECT_THAT(StageBytes(model, {1, 1, 1}), ElementsAre(18'668'954'308));
}

TEST(ForecastTest, BytesAcrossHostsOfGpt3XlAreThePublishedOnes) {
  const Model model = Gpt3Xl();
  const auto across = [&](const Layout& from, const Layout& to) { return Sum(BytesAcrossHosts(model, from, to, 4)); };
  // What is published counts whole stages of two ranks, with their loss scales.
  constexpr std::uint64_t kOfStage = 2 * 4;
  // And the head's word embeddings, which one host has already, in the first stage.
  constexpr std::uint64_t kHead = 50'432ULL * 2'064 * 14;

  EXPECT_EQ(across({4, 2, 2}, {4, 2, 1}) + 3 * kOfStage, 14'349'811'416);
  EXPECT_EQ(across({4, 2, 1}, {4, 2, 2}) + 3 * kOfStage, 14'349'811'416);
  EXPECT_EQ(across({4, 2, 1}, {2, 2, 1}) + 2 * kOfStage + kHead, 10'052'340'496);
  EXPECT_EQ(across({2, 2, 1}, {4, 2, 1}) + 2 * kOfStage, 10'052'340'496);
}

/// Layouts of Tenplex's schedule, others, and twenty random ones that 24 layers and 24 heads allow.
std::vector<Layout> ManyLayouts() {
  std::vector<Layout> layouts = {{4, 2, 2}, {4, 2, 1}, {2, 2, 1}, {1, 1, 1}, {2, 4, 2}, {8, 1, 2}};
  std::mt19937 random(26);
  const auto one_of = [&](const std::vector<int>& numbers) { return numbers[random() % numbers.size()]; };
  while (layouts.size() < 26) {
    const Layout layout{one_of({1, 2, 3, 4, 6, 8, 12}), one_of({1, 2, 3, 4, 6, 8}), one_of({1, 2, 3, 4})};
    const bool is_new = std::find(layouts.begin(), layouts.end(), layout) == layouts.end();
    if (is_new && layout.ranks() <= 64) layouts.push_back(layout);
  }
  return layouts;
}

// Without new cuts through rows: same tensor-parallel ranks, or fewer that divide them.
TEST(ForecastTest, LayoutWithoutNewCutsReadsAtMostTwoPercentMore) {
  const Model model = Gpt3Xl();
  const std::vector<Layout> layouts = {{4, 2, 2}, {4, 2, 1}, {2, 2, 1}, {1, 1, 1}, {2, 4, 2}, {8, 1, 2}, {8, 8, 1}};
  Sample tried(3);
  for (const Layout& from : layouts) {
    const auto save = ForecastSave::Make(model, from);
    ASSERT_TRUE(save.ok()) << save.status();
    for (const Layout& to : layouts) {
      if (from.tensor % to.tensor != 0 || !tried.Takes()) continue;
      std::uint64_t needed = 0;
      std::uint64_t read = 0;
      for (int rank = 0; rank < to.ranks(); ++rank) {
        const auto forecast = ForecastRestore(*save, model, to, rank, kChunk);
        ASSERT_TRUE(forecast.ok()) << forecast.status();
        needed += forecast->needed();
        read += forecast->read();
      }
      EXPECT_LE(static_cast<double>(read), 1.02 * static_cast<double>(needed))
          << ToString(from) << " to " << ToString(to);
    }
  }
}

/// A small model; its shards are in memory.
class NumberedTest : public ::testing::TestWithParam<Layout> {
 protected:
  [[nodiscard]] std::vector<std::byte> DataOf(const ShardHeader& header) {
    std::vector<std::byte> data(header.data_bytes());
    for (const ShardTensor& tensor : header.tensors) numbers_.Write(tensor, data.data() + tensor.begin);
    return data;
  }
  /// Where a table's memory begins, though it is none.
  static std::uint64_t At(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

  void ExpectWholeOnce(const RankForecast& forecast, const std::vector<std::vector<std::byte>>& shards);
  static void ExpectNothingElse(const RankForecast& forecast, const ForecastSave& save);

  const Model model_ = NumberedTensors::Gpt(
      {.layers = 24, .hidden = 24, .feed_forward = 96, .positions = 5, .vocabulary = 50, .vocabulary_multiple = 4});

 private:
  NumberedTensors numbers_;
};

// Carries out the copies, and looks at what has arrived: the right elements, and no more bytes than there are.
void NumberedTest::ExpectWholeOnce(const RankForecast& forecast, const std::vector<std::vector<std::byte>>& shards) {
  const TensorTable& table = *forecast.table;
  const TensorEntry& last = table[table.size() - 1];
  std::vector<std::byte> memory(At(last.layout.base) + last.bytes());
  std::uint64_t copied = 0;
  for (std::size_t s = 0; s < forecast.matched.copies.size(); ++s) {
    for (const PlannedCopy& copy : forecast.matched.copies[s]) {
      RowCursor cursor(copy, copy.begin, copy.end);
      while (const auto rows = cursor.Next()) {
        for (std::uint64_t i = 0; i < rows->rows; ++i) {
          const std::uint64_t from = rows->from + i * rows->from_pitch;
          const std::uint64_t to = At(copy.target->base) + rows->to + i * rows->to_pitch;
          ASSERT_LE(from + rows->bytes, shards[s].size());
          ASSERT_LE(to + rows->bytes, memory.size());
          std::memcpy(memory.data() + to, shards[s].data() + from, rows->bytes);
          copied += rows->bytes;
        }
      }
    }
  }
  ASSERT_EQ(copied, table.bytes());
  ASSERT_EQ(copied, forecast.needed());
  std::vector<std::byte> expected;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const TensorEntry& entry = table[i];
    expected.resize(entry.bytes());
    numbers_.Write({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .part = entry.part},
                   expected.data());
    ASSERT_EQ(std::memcmp(expected.data(), memory.data() + At(entry.layout.base), entry.bytes()), 0) << entry.name;
  }
}

// Every block that is read holds a wanted byte.
void NumberedTest::ExpectNothingElse(const RankForecast& forecast, const ForecastSave& save) {
  for (const PlannedRead& read : forecast.reads) {
    const auto& copies = forecast.matched.copies[read.shard];
    for (std::uint64_t begin = read.begin; begin < read.end; begin += kChecksumBlock) {
      const std::uint64_t end = std::min(begin + kChecksumBlock, save.headers()[read.shard].data_bytes());
      const bool wanted = std::any_of(copies.begin(), copies.end(), [&](const PlannedCopy& copy) {
        return copy.begin < end && copy.end > begin && RowCursor(copy, begin, end).Next().has_value();
      });
      ASSERT_TRUE(wanted) << "shard " << read.shard << ", data bytes from " << begin << " on";
    }
  }
}

TEST_P(NumberedTest, EachRankGetsItsTensorsWholeAndOnceInEveryLayout) {
  const auto save = ForecastSave::Make(model_, GetParam());
  ASSERT_TRUE(save.ok()) << save.status();
  std::vector<std::vector<std::byte>> shards;
  for (const ShardHeader& header : save->headers()) shards.push_back(DataOf(header));
  const std::vector<Layout> layouts = ManyLayouts();
  const Points points = SomePoints(16);
  for (std::size_t i = points.first; i < layouts.size(); i += points.stride) {
    const Layout& to = layouts[i];
    SCOPED_TRACE(ToString(to));
    for (int rank = 0; rank < to.ranks(); ++rank) {
      // Replicas want the same: one of them, not always the first.
      if (rank / to.tensor % to.data != (to.StageOf(rank) + to.TensorRankOf(rank)) % to.data) continue;
      const auto forecast = ForecastRestore(*save, model_, to, rank, kChunk);
      ASSERT_TRUE(forecast.ok()) << forecast.status();
      ASSERT_NO_FATAL_FAILURE(ExpectWholeOnce(*forecast, shards));
      ASSERT_NO_FATAL_FAILURE(ExpectNothingElse(*forecast, *save));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(From, NumberedTest, ::testing::ValuesIn(ManyLayouts()), [](const auto& layout) {
  return "P" + std::to_string(layout.param.pipeline) + "T" + std::to_string(layout.param.tensor) + "D" +
         std::to_string(layout.param.data);
});

TEST(ForecastTest, TensorThatTheSaveDoesNotHoldIsNamed) {
  const Model saved = MakeGpt({.layers = 2, .hidden = 8, .feed_forward = 32, .positions = 4, .vocabulary = 50});
  const Model deeper = MakeGpt({.layers = 4, .hidden = 8, .feed_forward = 32, .positions = 4, .vocabulary = 50});
  const auto save = ForecastSave::Make(saved, {2, 1, 1});
  ASSERT_TRUE(save.ok()) << save.status();

  const auto forecast = ForecastRestore(*save, deeper, {2, 1, 1}, 1, kChunk);

  EXPECT_EQ(forecast.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(forecast.status().message(), HasSubstr("encoder.layers.2.input_layernorm.weight"));
}

TEST(ForecastTest, LayoutThatCannotBeDividedIsRefused) {
  const Model model = Gpt3Xl();

  EXPECT_TRUE(CheckLayout(model, {12, 24, 3}, "--to").ok());
  EXPECT_THAT(CheckLayout(model, {5, 1, 1}, "--to").message(), HasSubstr("--to: expected stages of equal size"));
  EXPECT_THAT(CheckLayout(MakeGpt({.layers = 1, .hidden = 8}), {1, 5, 1}, "--to").message(),
              HasSubstr("query_key_value.weight\": expected a dimension 0 that can be cut into 5 equal parts"));
  EXPECT_THAT(CheckLayout(model, {1, 16, 1}, "--to").message(), HasSubstr("24 heads"));
  EXPECT_THAT(CheckLayout(model, {1, 1, 0}, "--to").message(), HasSubstr("found 1,1,0"));
}

}  // namespace
}  // namespace cairn
