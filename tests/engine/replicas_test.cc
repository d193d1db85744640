#include "engine/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <map>

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Tensors of bytes in one memory; tied where they begin at one place.
class Shares : public testing::Test {
 protected:
  void Add(const std::string& name, std::int64_t bytes, std::size_t at) {
    const Status status = state_.Add(name, {.data = &memory_.at(at), .dtype = DType::kU8, .shape = {bytes}});
    ASSERT_TRUE(status.ok()) << status;
  }
  /// Names by rank, of what each writes.
  [[nodiscard]] std::vector<std::vector<std::string>> WrittenBy(int world, const Replicated& replicated) const {
    std::vector<std::vector<std::string>> written;
    for (int rank = 0; rank < world; ++rank) {
      const auto share = ShareOut(state_.table(), replicated, rank, world);
      EXPECT_TRUE(share.ok()) << share.status();
      written.emplace_back();
      for (std::size_t i = 0; i < share->table->size(); ++i) written.back().push_back((*share->table)[i].name);
    }
    return written;
  }

  std::array<std::byte, 1000> memory_{};
  State state_;
};

TEST_F(Shares, AreBalancedByBytes) {
  Add("a", 10, 0);
  Add("b", 30, 100);
  Add("c", 20, 200);
  Add("mine", 5, 300);

  const auto written = WrittenBy(2, {.tensors = {"c", "b", "a"}});

  EXPECT_THAT(written, ElementsAre(ElementsAre("b", "mine"), ElementsAre("a", "c", "mine")));
}

TEST_F(Shares, KeepTiedTensorsTogether) {
  Add("embedding", 30, 0);
  Add("other", 30, 100);
  Add("head", 30, 0);

  const auto written = WrittenBy(2, {.tensors = {"embedding", "head", "other"}});

  EXPECT_THAT(written, ElementsAre(ElementsAre("embedding", "head"), ElementsAre("other")));
  const auto share = ShareOut(state_.table(), {.tensors = {"embedding", "head", "other"}}, 0, 2);
  EXPECT_EQ((*share->table)[1].alias_of, 0U);
  EXPECT_EQ(share->table->bytes(), 30U);
}

TEST_F(Shares, OfRankZeroStayThere) {
  Add("big", 100, 0);
  Add("buffer", 60, 200);
  Add("small", 50, 300);

  const auto written = WrittenBy(2, {.tensors = {"big", "small"}, .by_rank_0 = {"buffer"}});

  EXPECT_THAT(written, ElementsAre(ElementsAre("buffer", "small"), ElementsAre("big")));
}

TEST_F(Shares, OfOneRankAreEverything) {
  Add("a", 10, 0);

  EXPECT_THAT(WrittenBy(1, {.tensors = {"a"}}), ElementsAre(ElementsAre("a")));
}

TEST_F(Shares, RefuseWhatIsNotThereAndWhatIsTiedToARanksOwn) {
  Add("a", 10, 0);
  Add("tied", 10, 0);

  const auto unknown = ShareOut(state_.table(), {.tensors = {"b"}}, 0, 2);
  const auto half = ShareOut(state_.table(), {.tensors = {"tied"}}, 0, 2);

  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(), HasSubstr("\"b\""));
  EXPECT_EQ(half.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(half.status().message(), HasSubstr("\"tied\" and \"a\" share memory"));
}

TEST_F(Shares, AreKeptUntilTheTableOrWhatIsReplicatedChanges) {
  Add("a", 10, 0);
  Add("b", 10, 20);
  const Replicated both{.tensors = {"a", "b"}, .alike = {{"lr", "0.1"}}};
  Sharing sharing(0, 2);
  const Share first = *sharing.Of(state_.table(), both);

  const Share again = *sharing.Of(state_.table(), Replicated(both));

  EXPECT_EQ(again.table, first.table);
  EXPECT_EQ(again.alike, first.alike);
  EXPECT_EQ(first.alike->digest, DigestAlike(first.alike->all));
  EXPECT_NE(sharing.Of(state_.table(), {.tensors = {"a", "b"}, .alike = {{"lr", "0.2"}}})->alike->digest,
            first.alike->digest);
  EXPECT_EQ(sharing.Of(state_.table(), {.tensors = {"b"}})->table->size(), 2U);
  Add("c", 10, 40);
  EXPECT_EQ(sharing.Of(state_.table(), {.tensors = {"b"}})->table->size(), 3U);
  EXPECT_FALSE(sharing.Of(state_.table(), {.tensors = {"gone"}}).ok());
  const State other;
  EXPECT_EQ(sharing.Of(other.table(), {})->table, other.table());
}

TEST_F(Shares, DoNotHoldTheCallersOwnTable) {
  Add("a", 10, 0);
  Sharing sharing(0, 2);
  ASSERT_TRUE(sharing.Of(state_.table(), {}).ok());
  const std::weak_ptr<const TensorTable> before = state_.table();

  state_ = State();

  EXPECT_TRUE(before.expired()) << "it lives on for the next save's sake";
}

TEST_F(Shares, SayDTypeAndShape) {
  Add("a", 10, 0);
  Add("b", 10, 0);

  const auto share = ShareOut(state_.table(), {.tensors = {"a", "b"}, .alike = {{"lr", "0.1"}}}, 1, 2);

  EXPECT_THAT(share->alike->all,
              ElementsAre(Alike{"lr", "0.1"}, Alike{"a", "U8 [10]"}, Alike{"b", "U8 [10] tied to \"a\""}));
}

TEST_F(Shares, SayWhichPartOfAWholeATensorIs) {
  std::byte memory{};
  ASSERT_TRUE(state_
                  .Add("w", {.data = &memory,
                             .dtype = DType::kU8,
                             .shape = {1},
                             .part = TensorPart{.logical_name = "w", .global_shape = {4}, .offset = {2}}})
                  .ok());

  const auto share = ShareOut(state_.table(), {.tensors = {"w"}}, 0, 2);

  EXPECT_THAT(share->alike->all, ElementsAre(Alike{"w", "U8 [1] at [2] of \"w\""}));
}

std::vector<Alike> Many() {
  std::vector<Alike> all;
  for (int i = 0; i < 500; ++i) all.emplace_back("name " + std::to_string(i), std::to_string(i));
  return all;
}

TEST(Alikes, AreAlikeInAnyOrder) {
  const std::vector<Alike> one = Many();
  const std::vector<Alike> other(one.rbegin(), one.rend());

  EXPECT_EQ(FirstDifference(DigestAlike(one), DigestAlike(other)), -1);
  EXPECT_EQ(FirstDifference(DigestAlike({}), DigestAlike({})), -1);
  EXPECT_THAT(DigestAlike({}), IsEmpty());
}

// Each name in turn: changed, missing, and exchanged with its neighbour.
TEST(Alikes, ThatDifferAreFoundAndNamed) {
  const std::vector<Alike> one = Many();
  for (std::size_t i = 0; i + 1 < one.size(); i += 7) {
    std::vector<Alike> changed = one;
    changed[i].second = "else";
    std::vector<Alike> missing = one;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    std::vector<Alike> exchanged = one;
    std::swap(exchanged[i].second, exchanged[i + 1].second);
    for (const auto& other : {changed, missing, exchanged}) {
      const int bucket = FirstDifference(DigestAlike(one), DigestAlike(other));
      ASSERT_GE(bucket, 0);

      const Status status = CompareBuckets(7, EncodeBucket(one, bucket), 2, EncodeBucket(other, bucket));

      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.message(), HasSubstr("step 7"));
      EXPECT_THAT(status.message(), testing::AnyOf(HasSubstr("\"" + one[i].first + "\": rank 0 has " + one[i].second),
                                                   HasSubstr("\"" + one[i + 1].first + "\"")));
      EXPECT_THAT(status.message(), HasSubstr("rank 2 has"));
    }
  }
}

TEST(Alikes, OfOneRankAloneDiffer) { EXPECT_GE(FirstDifference(DigestAlike({}), DigestAlike(Many())), 0); }

TEST(Alikes, AreNoWordsOfAnotherVersion) {
  for (const char* text : {"no json", "{}", "[1]", R"([["a"]])", R"([["a", 1]])"}) {
    const Status status = CompareBuckets(1, "[]", 3, text);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << text;
    EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  }
}

}  // namespace
}  // namespace cairn
