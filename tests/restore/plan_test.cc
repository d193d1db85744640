#include "restore/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "restore/select.h"
#include "shard_headers.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PlanTest : public ::testing::Test {
 protected:
  void Want(const std::string& name, std::int64_t count, DType dtype = DType::kF32) {
    const Status added = table_.Add(name, {.data = memory_.data() + used_, .dtype = dtype, .shape = {count}});
    ASSERT_TRUE(added.ok()) << added;
    used_ += static_cast<std::size_t>(count) * DTypeSize(dtype);
  }
  [[nodiscard]] Result<MatchedTensors> Match(const std::vector<ShardHeader>& headers,
                                             const RestoreOptions& options = {}, std::uint64_t rank = 0) const {
    std::vector<SavedShard> shards;
    for (const ShardHeader& header : headers) shards.push_back({"shard-" + std::to_string(header.shard), &header});
    return MatchTensors(shards, rank, table_, options);
  }

  alignas(8) std::array<std::byte, 1 << 16> memory_{};
  std::size_t used_ = 0;
  TensorTable table_;
};

TEST(PatternTest, MatchesLikeAShellButAcrossDots) {
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("model.*", "model.layer.0.weight"));
  EXPECT_TRUE(MatchesPattern("*.weight", "model.layer.0.weight"));
  EXPECT_TRUE(MatchesPattern("model.?.bias", "model.3.bias"));
  EXPECT_TRUE(MatchesPattern("*a*b*", "xxaxxbxx"));
  EXPECT_TRUE(MatchesPattern("*ab", "aaab"));
  EXPECT_FALSE(MatchesPattern("model.?.bias", "model.13.bias"));
  EXPECT_FALSE(MatchesPattern("model", "model.weight"));
  EXPECT_FALSE(MatchesPattern("?", ""));
}

TEST(PatternTest, QuestionMarkMatchesOneUtf8Character) {
  EXPECT_TRUE(MatchesPattern("größ?", "größe"));
  EXPECT_TRUE(MatchesPattern("gr?ße", "größe"));
  EXPECT_TRUE(MatchesPattern("?", "重"));
  EXPECT_FALSE(MatchesPattern("??", "重"));
}

TEST(PatternTest, EveryNameMatchesItself) { EXPECT_TRUE(MatchesPattern("a[*]?b", "a[*]?b")); }

TEST_F(PlanTest, FindsTensorsSavedInAnyOrder) {
  const std::vector<ShardHeader> saved{HeaderOf({Floats("a", 10), Floats("b", 20)})};
  Want("b", 20);
  Want("a", 10);

  const auto matched = Match(saved);

  ASSERT_TRUE(matched.ok()) << matched.status();
  EXPECT_EQ(matched->tensors, 2);
  EXPECT_EQ(matched->bytes, 120);
  ASSERT_EQ(matched->copies[0].size(), 2);
  EXPECT_EQ(matched->copies[0][0].begin, 40);
  EXPECT_EQ(matched->copies[0][0].end, 120);
}

TEST_F(PlanTest, PrefersTheOwnShardThenTheLowest) {
  const std::vector<ShardHeader> saved{HeaderOf({Floats("both", 4), Floats("first", 4)}, 0),
                                       HeaderOf({Floats("both", 4)}, 1),
                                       HeaderOf({Floats("both", 4), Floats("first", 4)}, 2)};
  Want("both", 4);
  Want("first", 4);

  const auto matched = Match(saved, {}, 1);

  ASSERT_TRUE(matched.ok()) << matched.status();
  EXPECT_EQ(matched->copies[0].size(), 1);
  EXPECT_EQ(matched->copies[1].size(), 1);
  EXPECT_EQ(matched->copies[2].size(), 0);
}

TEST_F(PlanTest, MatchesPartsByPosition) {
  const TensorPart upper{.logical_name = "w", .global_shape = {8}, .offset = {0}};
  const TensorPart lower{.logical_name = "w", .global_shape = {8}, .offset = {4}};
  std::vector<ShardHeader> saved{HeaderOf({Floats("w", 4)}, 0), HeaderOf({Floats("w", 4)}, 1)};
  saved[0].tensors[0].part = upper;
  saved[1].tensors[0].part = lower;
  ASSERT_TRUE(table_.Add("w", {.data = memory_.data(), .shape = {4}, .part = lower}).ok());

  const auto matched = Match(saved, {}, 0);

  ASSERT_TRUE(matched.ok()) << matched.status();
  EXPECT_EQ(matched->copies[0].size(), 0);
  EXPECT_EQ(matched->copies[1].size(), 1);
}

TEST_F(PlanTest, RejectsAWholeTensorIfOnlyAPartWasSaved) {
  std::vector<ShardHeader> saved{HeaderOf({Floats("w", 4)})};
  saved[0].tensors[0].part = TensorPart{.logical_name = "whole", .global_shape = {8}, .offset = {4}};
  Want("w", 4);

  const auto matched = Match(saved);

  EXPECT_EQ(matched.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(matched.status().message(), HasSubstr("expected F32 [4], found F32 [4] at [4] of \"whole\" [8]"));
}

TEST_F(PlanTest, NamesEveryMismatchWithExpectedAndFound) {
  const std::vector<ShardHeader> saved{HeaderOf({Floats("dtype", 4), Floats("shape", 4)})};
  Want("shape", 5);
  Want("dtype", 4, DType::kBF16);
  Want("absent", 1);

  const auto matched = Match(saved);

  EXPECT_EQ(matched.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(matched.status().message(),
              AllOf(HasSubstr("tensor \"shape\": expected F32 [5], found F32 [4] in shard-0"),
                    HasSubstr("tensor \"dtype\": expected BF16 [4], found F32 [4] in shard-0"),
                    HasSubstr("tensor \"absent\": expected F32 [1], found none with that name")));
}

TEST_F(PlanTest, CountsUnlistedMismatches) {
  for (int i = 0; i < 30; ++i) Want("absent." + std::to_string(i), 1);

  const auto matched = Match({HeaderOf({Floats("a", 4)})});

  EXPECT_THAT(matched.status().message(),
              AllOf(HasSubstr("absent.7"), ::testing::Not(HasSubstr("absent.8")), HasSubstr("; and 22 more")));
}

TEST_F(PlanTest, ListsMissingTensorsIfAllowed) {
  Want("a", 4);
  Want("absent", 1);

  const auto matched = Match({HeaderOf({Floats("a", 4)})}, {.allow_missing = true});

  ASSERT_TRUE(matched.ok()) << matched.status();
  EXPECT_EQ(matched->tensors, 1);
  EXPECT_THAT(matched->missing, ElementsAre("absent"));
}

TEST_F(PlanTest, RejectsPatternsWithoutMatchOrInvalidUtf8) {
  Want("a", 4);

  const auto matched = Match({HeaderOf({Floats("a", 4)})}, {.names = {"b.*", "a", "\xff"}});

  EXPECT_EQ(matched.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(matched.status().message(),
              AllOf(HasSubstr("\"b.*\" matches none of the state's 1 tensors"), HasSubstr("not valid UTF-8")));
}

TEST_F(PlanTest, WritesTiedMemoryOnce) {
  std::vector<ShardHeader> saved{HeaderOf({Floats("head", 4)})};
  saved[0].aliases["embedding"] = "head";
  const TensorView view{.data = memory_.data(), .shape = {4}};
  ASSERT_TRUE(table_.Add("embedding", view).ok());
  ASSERT_TRUE(table_.Add("head", view).ok());

  const auto matched = Match(saved);

  ASSERT_TRUE(matched.ok()) << matched.status();
  EXPECT_EQ(matched->copies[0].size(), 1);
  EXPECT_EQ(matched->tensors, 1);
}

TEST_F(PlanTest, GivesUntiedTargetsOfATiedTensorTheSameBytes) {
  std::vector<ShardHeader> saved{HeaderOf({Floats("head", 4)})};
  saved[0].aliases["embedding"] = "head";
  Want("head", 4);
  Want("embedding", 4);

  const auto matched = Match(saved);

  ASSERT_TRUE(matched.ok()) << matched.status();
  ASSERT_EQ(matched->copies[0].size(), 2);
  EXPECT_EQ(matched->copies[0][0].begin, matched->copies[0][1].begin);
}

TEST_F(PlanTest, RejectsTiedMemoryForSeparateTensors) {
  const TensorView view{.data = memory_.data(), .shape = {4}};
  ASSERT_TRUE(table_.Add("embedding", view).ok());
  ASSERT_TRUE(table_.Add("head", view).ok());
  const std::vector<ShardHeader> saved{HeaderOf({Floats("embedding", 4), Floats("head", 4)})};

  const auto both = Match(saved);
  const auto one = Match(saved, {.names = {"head"}});

  EXPECT_EQ(both.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(both.status().message(), HasSubstr("\"embedding\" and \"head\" share memory"));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->copies[0][0].begin, 16);
}

TEST_F(PlanTest, MarksTargetsThatOverlapWithoutBeingTied) {
  ASSERT_TRUE(table_.Add("flat", {.data = memory_.data(), .shape = {100}}).ok());
  ASSERT_TRUE(table_.Add("view", {.data = memory_.data() + 40, .shape = {10}}).ok());
  ASSERT_TRUE(table_.Add("apart", {.data = memory_.data() + 400, .shape = {10}}).ok());

  const auto matched = Match({HeaderOf({Floats("apart", 10), Floats("flat", 100), Floats("view", 10)})});

  ASSERT_TRUE(matched.ok()) << matched.status();
  for (const PlannedCopy& copy : matched->copies[0]) EXPECT_EQ(copy.shares_memory, copy.name != "apart") << copy.name;
}

TEST(PlanReadsTest, ReadsWholeChecksumBlocksAndOnlyThoseNeeded) {
  const std::uint64_t mib = kChecksumBlock;
  const ShardHeader header = HeaderOf({Floats("a", 10 * mib / 4), Floats("b", 10), Floats("c", 3 * mib / 4)});
  std::vector<PlannedCopy> copies{{.begin = header.tensors[1].begin, .end = header.tensors[1].end},
                                  {.begin = mib + 1, .end = mib + 2}};

  const auto reads = PlanReads(7, header, copies, 4 * mib);

  ASSERT_EQ(reads.size(), 2);
  EXPECT_EQ(reads[0], (PlannedRead{7, mib, 2 * mib, 0, kBlock + mib, mib}));
  EXPECT_EQ(reads[1], (PlannedRead{7, 10 * mib, 11 * mib, 1, kBlock + 10 * mib, mib}));
}

TEST(PlanReadsTest, AssignsOverlappingCopiesToReads) {
  const std::uint64_t mib = kChecksumBlock;
  const ShardHeader header = HeaderOf({Floats("a", 4 * mib / 4)});
  std::vector<PlannedCopy> copies{{.begin = mib / 2, .end = mib / 2 + 4, .target_begin = 8},
                                  {.begin = 0, .end = 4 * mib, .target_begin = 100},
                                  {.begin = 3 * mib, .end = 3 * mib + 4, .target_begin = 12}};

  const auto reads = PlanReads(0, header, copies, 2 * mib);

  ASSERT_EQ(reads.size(), 2);
  ASSERT_EQ(copies.size(), 4);
  EXPECT_EQ(reads[0].first_copy, 0);
  EXPECT_EQ(reads[1].first_copy, 2);
  EXPECT_EQ(copies[0].end, 2 * mib);
  EXPECT_EQ(copies[1].target_begin, 8);
  EXPECT_EQ(copies[2].begin, 2 * mib);
  EXPECT_EQ(copies[2].end, 4 * mib);
  EXPECT_EQ(copies[2].target_begin, 100 + 2 * mib);
  EXPECT_EQ(copies[3].target_begin, 12);
}

TEST(PlanReadsTest, ReadsShortGapsWithoutChecksums) {
  const std::uint64_t mib = kChecksumBlock;
  ShardHeader header = HeaderOf({Floats("a", 8 * mib / 4)});
  header.sums.clear();
  std::vector<PlannedCopy> copies;
  for (std::uint64_t at = 0; at < mib; at += 4096) copies.push_back({.begin = at, .end = at + 16});
  copies.push_back({.begin = 6 * mib, .end = 6 * mib + 16});

  const auto reads = PlanReads(0, header, copies, 4 * mib);

  ASSERT_EQ(reads.size(), 2);
  EXPECT_EQ(reads[0].end, mib - 4096 + 16);
  EXPECT_EQ(reads[1].begin, 6 * mib);
}

TEST(PlanReadsTest, CutsLongRangesAtChunks) {
  const std::uint64_t mib = kChecksumBlock;
  const ShardHeader header = HeaderOf({Floats("a", (5 * mib + 8) / 4)});

  const auto reads = PlanWholeShard(0, header, 2 * mib);

  ASSERT_EQ(reads.size(), 3);
  EXPECT_EQ(reads[0].end, 2 * mib);
  EXPECT_EQ(reads[2].begin, 4 * mib);
  EXPECT_EQ(reads[2].end, 5 * mib + 8);
  EXPECT_EQ(reads[2].file_bytes, mib + kBlock);
}

TEST(PlanReadsTest, WidensReadsToWholeBlocks) {
  const std::uint64_t mib = kChecksumBlock;
  ShardHeader header = HeaderOf({Floats("a", 2 * mib / 4)});
  header.cairn = false;
  header.sums.clear();
  header.data_begin = 100;

  const auto reads = PlanWholeShard(0, header, mib);

  ASSERT_EQ(reads.size(), 3);
  EXPECT_EQ(reads[0], (PlannedRead{0, 0, mib - 100, 0, 0, mib}));
  EXPECT_EQ(reads[1], (PlannedRead{0, mib - 100, 2 * mib - 100, 0, mib, mib}));
  EXPECT_EQ(reads[2], (PlannedRead{0, 2 * mib - 100, 2 * mib, 0, 2 * mib, kBlock}));
}

TEST(PlanReadsTest, ReadsNothingForAShardWithoutData) {
  const ShardHeader header = HeaderOf({Floats("empty", 0)});
  std::vector<PlannedCopy> none;

  EXPECT_TRUE(PlanReads(0, header, none, kChecksumBlock).empty());
  EXPECT_TRUE(PlanWholeShard(0, header, kChecksumBlock).empty());
}

}  // namespace
}  // namespace cairn
