#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "data/dataset.h"
#include "sampler.h"

namespace cairn::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// 0, 1, 2, ...
Tokens Counting(std::uint64_t size) {
  return {.name = "counting",
          .path = "counting.json",
          .size = size,
          .vocabulary = size,
          .read = [](std::uint64_t first, std::span<std::int64_t> out) {
            for (std::int64_t& token : out) token = static_cast<std::int64_t>(first++);
          }};
}

std::vector<std::int64_t> Values(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.to(at::kLong).contiguous();
  return {whole.const_data_ptr<std::int64_t>(), whole.const_data_ptr<std::int64_t>() + whole.numel()};
}

TEST(TextStreams, EachRowContinuesItsPreviousBatch) {
  const Dataset data = TextStreams(Counting(17), /*sequence=*/3, /*rows=*/2);
  Sampler sampler(data.size, {}, data.order);

  const Batch first = data.read(sampler.Next(2));
  const Batch second = data.read(sampler.Next(2));

  EXPECT_EQ(data.size, 4U);
  EXPECT_THAT(Values(first.at("input_ids")), ElementsAre(0, 1, 2, 8, 9, 10));
  EXPECT_THAT(Values(first.at("labels")), ElementsAre(1, 2, 3, 9, 10, 11));
  EXPECT_THAT(Values(first.at("begins")), ElementsAre(1, 1));
  EXPECT_THAT(Values(second.at("input_ids")), ElementsAre(3, 4, 5, 11, 12, 13));
  EXPECT_THAT(Values(second.at("begins")), ElementsAre(0, 0));
}

TEST(TextStreams, NewEpochRestartsEachRow) {
  const Dataset data = TextStreams(Counting(17), 3, 2);
  Sampler sampler(data.size, {}, data.order);
  const Batch first = data.read(sampler.Next(2));
  sampler.Next(2);

  const Batch again = data.read(sampler.Next(2));

  for (const char* name : {"input_ids", "labels", "begins"}) EXPECT_TRUE(again.at(name).equal(first.at(name))) << name;
}

TEST(TextStreams, ResumingNeitherRepeatsNorSkipsASegment) {
  const Dataset data = TextStreams(Counting(61), 4, 3);
  DataPosition at;
  std::vector<std::int64_t> read;

  while (at.position < data.size) {
    Sampler sampler(data.size, at, data.order);  // As after a restart.
    const auto ids = Values(data.read(sampler.Next(3)).at("input_ids"));
    read.insert(read.end(), ids.begin(), ids.end());
    at = sampler.position();
  }

  std::sort(read.begin(), read.end());
  ASSERT_EQ(read.size(), 60U);
  for (std::int64_t i = 0; i < 60; ++i) EXPECT_EQ(read[static_cast<std::size_t>(i)], i);
}

TEST(TextStreams, NameDiffersForOtherRowsSegmentsOrTokens) {
  const auto name = [](std::int64_t sequence, std::uint64_t rows) {
    return TextStreams(Counting(100), sequence, rows).name;
  };

  EXPECT_EQ(name(8, 4), "counting in 4 rows, by segments of 8");
  EXPECT_NE(name(8, 4), name(8, 2));
  EXPECT_NE(name(8, 4), name(4, 4));
}

TEST(TextStreams, RefusesATextTooShortForAllRows) {
  EXPECT_EQ(TextStreams(Counting(9), 4, 2).size, 2U);

  for (const std::uint64_t size : {std::uint64_t{8}, std::uint64_t{0}}) {
    EXPECT_THAT([&] { TextStreams(Counting(size), 4, 2); },
                ThrowsMessage<std::runtime_error>(
                    HasSubstr("counting.json: tokens: expected at least 9, one more than --sequence 4 for each row of "
                              "--batch 2, found " +
                              std::to_string(size))));
  }
}

}  // namespace
}  // namespace cairn::trainer
