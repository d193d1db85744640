#include "engine/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Tensors of bytes in one memory block; tied if they begin at the same place.
class ReplicaAssignmentTest : public testing::Test {
 protected:
  void Add(const std::string& name, std::int64_t bytes, std::size_t at) {
    const Status status = state_.Add(name, {.data = &memory_.at(at), .dtype = DType::kU8, .shape = {bytes}});
    ASSERT_TRUE(status.ok()) << status;
  }
  /// One with an address but no memory.
  void AddLarge(const std::string& name, std::uint64_t bytes) {
    addresses_[name] = {&memory_[addresses_.size()], bytes};
    AddTied(name, name);
  }
  void AddTied(const std::string& name, const std::string& to) {
    const auto& [address, bytes] = addresses_.at(to);
    const Status status =
        state_.Add(name, {.data = address, .dtype = DType::kU8, .shape = {static_cast<std::int64_t>(bytes)}});
    ASSERT_TRUE(status.ok()) << status;
  }
  /// The names that each rank writes.
  [[nodiscard]] std::vector<std::vector<std::string>> WrittenBy(int world, const Replicated& replicated) const {
    std::vector<std::vector<std::string>> written;
    for (int rank = 0; rank < world; ++rank) {
      const auto share = AssignReplicas(state_.table(), replicated, rank, world);
      EXPECT_TRUE(share.ok()) << share.status();
      written.emplace_back();
      for (std::size_t i = 0; i < share->table->size(); ++i) written.back().push_back((*share->table)[i].name);
    }
    return written;
  }

  std::array<std::byte, 1000> memory_{};
  std::map<std::string, std::pair<std::byte*, std::uint64_t>> addresses_;
  State state_;
};

TEST_F(ReplicaAssignmentTest, GivesSmallTensorsToOneOtherRank) {
  Add("a", 10, 0);
  Add("b", 30, 100);
  Add("c", 20, 200);
  Add("mine", 5, 300);

  const auto written = WrittenBy(3, {.tensors = {"c", "b", "a"}});

  EXPECT_THAT(written, ElementsAre(ElementsAre("mine"), ElementsAre("a", "b", "c", "mine"), ElementsAre("mine")));
}

TEST_F(ReplicaAssignmentTest, AssignsByNameInAnyOrder) {
  for (const char* name : {"layer.2", "embedding", "layer.1", "head"}) AddLarge(name, 2 * kMinShare);

  const auto written = WrittenBy(4, {.tensors = {"layer.2", "embedding", "layer.1", "head"}});

  EXPECT_THAT(written, ElementsAre(ElementsAre("layer.2"), ElementsAre("embedding"), ElementsAre("head"),
                                   ElementsAre("layer.1")));
}

TEST_F(ReplicaAssignmentTest, KeepsTiedTensorsTogether) {
  AddLarge("embedding", kMinShare);
  AddLarge("other", kMinShare);
  AddTied("head", "embedding");

  const auto written = WrittenBy(2, {.tensors = {"embedding", "head", "other"}});

  EXPECT_THAT(written, ElementsAre(ElementsAre("other"), ElementsAre("embedding", "head")));
  const auto share = AssignReplicas(state_.table(), {.tensors = {"embedding", "head", "other"}}, 1, 2);
  EXPECT_EQ((*share->table)[1].alias_of, 0U);
  EXPECT_EQ(share->table->bytes(), kMinShare);
}

TEST_F(ReplicaAssignmentTest, CountsTensorsOfRankZeroAsItsLoad) {
  AddLarge("big", 2 * kMinShare);
  AddLarge("buffer", 2 * kMinShare);
  AddLarge("small", kMinShare);

  const auto beside = WrittenBy(2, {.tensors = {"big", "small"}, .rank0_tensors = {"buffer"}});
  const auto more = WrittenBy(3, {.tensors = {"big", "small"}, .rank0_tensors = {"buffer"}});

  EXPECT_THAT(beside, ElementsAre(ElementsAre("buffer"), ElementsAre("big", "small")));
  EXPECT_THAT(more, ElementsAre(ElementsAre("buffer"), ElementsAre("big"), ElementsAre("small")));
}

TEST_F(ReplicaAssignmentTest, AssignsEverythingToASingleRank) {
  Add("a", 10, 0);

  EXPECT_THAT(WrittenBy(1, {.tensors = {"a"}}), ElementsAre(ElementsAre("a")));
}

TEST_F(ReplicaAssignmentTest, RejectsMissingAndPartlyReplicatedTensors) {
  Add("a", 10, 0);
  Add("tied", 10, 0);

  const auto unknown = AssignReplicas(state_.table(), {.tensors = {"b"}}, 0, 2);
  const auto half = AssignReplicas(state_.table(), {.tensors = {"tied"}}, 0, 2);

  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(), HasSubstr("\"b\""));
  EXPECT_EQ(half.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(half.status().message(), HasSubstr("\"tied\" and \"a\" share memory"));
}

TEST_F(ReplicaAssignmentTest, CachesUntilTheInputChanges) {
  Add("a", 10, 0);
  Add("b", 10, 20);
  const Replicated both{.tensors = {"a", "b"}, .identical_values = {{"lr", "0.1"}}};
  ReplicaAssigner sharing(1, 2);
  const ReplicaAssignment first = *sharing.Of(state_.table(), both);

  const ReplicaAssignment again = *sharing.Of(state_.table(), Replicated(both));

  EXPECT_EQ(again.table, first.table);
  EXPECT_EQ(again.replicated, first.replicated);
  EXPECT_EQ(first.replicated->digest, DigestReplicated(*first.replicated));
  EXPECT_NE(
      sharing.Of(state_.table(), {.tensors = {"a", "b"}, .identical_values = {{"lr", "0.2"}}})->replicated->digest,
      first.replicated->digest);
  EXPECT_EQ(sharing.Of(state_.table(), {.tensors = {"b"}})->table->size(), 2U);
  Add("c", 10, 40);
  EXPECT_EQ(sharing.Of(state_.table(), {.tensors = {"b"}})->table->size(), 3U);
  EXPECT_FALSE(sharing.Of(state_.table(), {.tensors = {"gone"}}).ok());
  const State other;
  EXPECT_EQ(sharing.Of(other.table(), {})->table, other.table());
}

TEST_F(ReplicaAssignmentTest, DoesNotKeepTheCallersTableAlive) {
  Add("a", 10, 0);
  ReplicaAssigner sharing(0, 2);
  ASSERT_TRUE(sharing.Of(state_.table(), {}).ok());
  const std::weak_ptr<const TensorTable> before = state_.table();

  state_ = State();

  EXPECT_TRUE(before.expired()) << "the cache keeps it alive";
}

TEST_F(ReplicaAssignmentTest, DescribesDTypeAndShape) {
  Add("a", 10, 0);
  Add("b", 10, 0);

  const auto share = AssignReplicas(state_.table(), {.tensors = {"a", "b"}, .identical_values = {{"lr", "0.1"}}}, 1, 2);

  EXPECT_THAT(share->replicated->all, ElementsAre(ReplicatedValue{"lr", "0.1"}, ReplicatedValue{"a", "U8 [10]"},
                                                  ReplicatedValue{"b", "U8 [10] tied to \"a\""}));
}

TEST_F(ReplicaAssignmentTest, DescribesThePartOfATensor) {
  std::byte memory{};
  ASSERT_TRUE(state_
                  .Add("w", {.data = &memory,
                             .dtype = DType::kU8,
                             .shape = {1},
                             .part = TensorPart{.logical_name = "w", .global_shape = {4}, .offset = {2}}})
                  .ok());

  const auto share = AssignReplicas(state_.table(), {.tensors = {"w"}}, 0, 2);

  EXPECT_THAT(share->replicated->all, ElementsAre(ReplicatedValue{"w", "U8 [1] at [2] of \"w\""}));
}

/// What each rank writes, in bytes.
std::vector<std::uint64_t> LoadsOf(const std::vector<std::uint64_t>& sizes, const std::vector<int>& writers,
                                   std::uint64_t of_rank_0, int world) {
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(world), 0);
  loads[0] = of_rank_0;
  for (std::size_t i = 0; i < sizes.size(); ++i) loads[static_cast<std::size_t>(writers[i])] += sizes[i];
  return loads;
}

std::uint64_t Heaviest(const std::vector<std::uint64_t>& loads) { return *std::ranges::max_element(loads); }

std::uint64_t Sum(const std::vector<std::uint64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

// 24 layers of a transformer, each weight with Adam's moments, in name order.
std::vector<std::uint64_t> Transformer(std::uint64_t width) {
  std::vector<std::uint64_t> sizes(3, 4 * 50'000 * width);
  for (int layer = 0; layer < 24; ++layer) {
    for (const std::uint64_t elements :
         {4 * width * width, width, 4 * width * width, width * width, width, 2 * width}) {
      sizes.insert(sizes.end(), 3, 4 * elements);
    }
  }
  return sizes;
}

TEST(Writers, AreOneRankForASmallState) {
  const std::vector<std::uint64_t> sizes(1000, kMinShare / 1000);

  const std::vector<int> writers = ChooseWriters(sizes, 0, 1000);

  EXPECT_THAT(writers, testing::Each(1));
}

TEST(Writers, AreAsFewAsPossible) {
  const std::vector<std::uint64_t> sizes(1000, kMinShare / 100);

  const std::vector<int> writers = ChooseWriters(sizes, 0, 1000);

  EXPECT_EQ(std::set(writers.begin(), writers.end()).size(), 10U);
  EXPECT_LE(Heaviest(LoadsOf(sizes, writers, 0, 1000)), kMinShare);
}

TEST(Writers, TakeTensorsInSequence) {
  const std::vector<std::uint64_t> sizes = Transformer(4096);

  const std::vector<int> writers = ChooseWriters(sizes, 0, 8);

  std::vector<int> taken = writers;
  taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
  EXPECT_THAT(taken, ElementsAre(1, 2, 3, 4, 5, 6, 7, 0));
}

TEST(Writers, AreBalancedForSmallTensors) {
  const std::vector<std::uint64_t> sizes(20'000, 1U << 20);
  for (const int world : {2, 3, 8, 64, 200}) {
    for (const std::uint64_t of_rank_0 : {std::uint64_t{0}, std::uint64_t{50} << 20}) {
      const std::vector<int> writers = ChooseWriters(sizes, of_rank_0, world);

      const double ideal = static_cast<double>(Sum(sizes) + of_rank_0) / world;
      EXPECT_LE(static_cast<double>(Heaviest(LoadsOf(sizes, writers, of_rank_0, world))), 1.1 * ideal) << world;
    }
  }
}

TEST(Writers, GetLittleBesidesALargeTensor) {
  std::vector<std::uint64_t> sizes(2000, 1U << 20);
  sizes[700] = 1000U << 20;

  const std::vector<int> writers = ChooseWriters(sizes, 0, 8);

  EXPECT_EQ(Heaviest(LoadsOf(sizes, writers, 0, 8)), sizes[700]);
}

// Random sizes: the bound that the function promises.
TEST(Writers, NeverExceedTheLoadBound) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const int world = 2 + static_cast<int>(random() % 40);
    std::vector<std::uint64_t> sizes(random() % 200);
    const int most_bits = 1 + static_cast<int>(random() % 34);
    for (std::uint64_t& size : sizes) size = random() % (1ULL << (1 + random() % most_bits));
    const std::uint64_t of_rank_0 = random() % 2 == 0 ? 0 : random() % (1ULL << most_bits);

    const std::vector<int> writers = ChooseWriters(sizes, of_rank_0, world);

    const std::uint64_t largest = sizes.empty() ? 0 : *std::ranges::max_element(sizes);
    const auto ranks = static_cast<std::uint64_t>(world);
    const std::uint64_t average =
        std::max((Sum(sizes) + of_rank_0 + ranks - 1) / ranks,
                 of_rank_0 * ranks > Sum(sizes) + of_rank_0 ? Sum(sizes) / (ranks - 1) + 1 : 0);
    const std::vector<std::uint64_t> loads = LoadsOf(sizes, writers, of_rank_0, world);
    EXPECT_LE(Heaviest(loads), std::max({kMinShare, average + largest, of_rank_0})) << "round " << round;
    EXPECT_EQ(Sum(loads), Sum(sizes) + of_rank_0);
    if (HasFailure()) return;
  }
}

std::vector<ReplicatedValue> Many() {
  std::vector<ReplicatedValue> all;
  for (int i = 0; i < 500; ++i) all.emplace_back("name " + std::to_string(i), std::to_string(i));
  return all;
}

std::string DigestOf(const std::vector<ReplicatedValue>& all) { return DigestReplicated({.all = all}); }

std::string BucketOf(const std::vector<ReplicatedValue>& all, int bucket) { return EncodeBucket({.all = all}, bucket); }

TEST(ReplicatedValueTest, AreEqualInAnyOrder) {
  const std::vector<ReplicatedValue> one = Many();
  const std::vector<ReplicatedValue> other(one.rbegin(), one.rend());

  EXPECT_EQ(FirstDifference(DigestOf(one), DigestOf(other)), -1);
  EXPECT_EQ(FirstDifference(DigestOf({}), DigestOf({})), -1);
  EXPECT_THAT(DigestOf({}), IsEmpty());
}

// Each name in turn is changed, missing, or swapped with its neighbour.
TEST(ReplicatedValueTest, DifferencesAreNamed) {
  const std::vector<ReplicatedValue> one = Many();
  for (std::size_t i = 0; i + 1 < one.size(); i += 7) {
    std::vector<ReplicatedValue> changed = one;
    changed[i].second = "else";
    std::vector<ReplicatedValue> missing = one;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    std::vector<ReplicatedValue> exchanged = one;
    std::swap(exchanged[i].second, exchanged[i + 1].second);
    for (const auto& other : {changed, missing, exchanged}) {
      const int bucket = FirstDifference(DigestOf(one), DigestOf(other));
      ASSERT_GE(bucket, 0);

      const Status status = CompareBuckets(7, BucketOf(one, bucket), 2, BucketOf(other, bucket));

      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.message(), HasSubstr("step 7"));
      EXPECT_THAT(status.message(), testing::AnyOf(HasSubstr("\"" + one[i].first + "\": rank 0 has " + one[i].second),
                                                   HasSubstr("\"" + one[i + 1].first + "\"")));
      EXPECT_THAT(status.message(), HasSubstr("rank 2 has"));
    }
  }
}

TEST(ReplicatedValueTest, OfOnlyOneRankDiffer) { EXPECT_GE(FirstDifference(DigestOf({}), DigestOf(Many())), 0); }

// For example with another version of the library.
TEST(ReplicatedValueTest, DifferentWritersAreNamed) {
  const ReplicatedValues one{.all = Many(), .writers = std::vector<int>(300, 1)};
  for (std::size_t i = 0; i < one.writers.size(); i += 7) {
    ReplicatedValues other = one;
    other.writers[i] = 0;
    const int bucket = FirstDifference(DigestReplicated(one), DigestReplicated(other));
    ASSERT_GE(bucket, 0);

    const Status status = CompareBuckets(7, EncodeBucket(one, bucket), 2, EncodeBucket(other, bucket));

    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("\"" + one.all[200 + i].first +
                                            "\": rank 0 has rank 1 as its writer, rank 2 has rank 0 as its writer"));
  }
}

TEST(ReplicatedValueTest, DifferencesAreNamedBeforeWriters) {
  const ReplicatedValues one{.all = Many(), .writers = std::vector<int>(500, 1)};
  ReplicatedValues other = one;
  for (int& writer : other.writers) writer = 2;
  other.all[300].second = "else";

  const int bucket = FirstDifference(DigestReplicated(one), DigestReplicated(other));

  const Status status = CompareBuckets(7, EncodeBucket(one, bucket), 2, EncodeBucket(other, bucket));
  EXPECT_THAT(status.message(), HasSubstr("\"name 300\": rank 0 has 300, rank 2 has else"));
}

TEST(ReplicatedValueTest, RejectOtherMessages) {
  for (const char* text : {"no json", "{}", "[1]", R"([["a"]])", R"([["a", 1]])"}) {
    const Status status = CompareBuckets(1, "[]", 3, text);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << text;
    EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  }
}

}  // namespace
}  // namespace cairn
