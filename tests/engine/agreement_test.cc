#include "engine/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using testing::HasSubstr;

const ManifestShard kShard{.file = "shard-00000.safetensors", .length = 1ULL << 40, .header_digest = 0xfedcba98};

TEST(Agreement, TheAttemptIsTheCoordinators) {
  const auto uuid = AgreeOnAttempt({EncodeAttemptWord({"the-uuid", 7}), EncodeAttemptWord({"", 7})});

  ASSERT_TRUE(uuid.ok()) << uuid.status();
  EXPECT_EQ(*uuid, "the-uuid");
}

TEST(Agreement, RefusesRanksThatSaveDifferentSteps) {
  const Status status = AgreeOnAttempt({EncodeAttemptWord({"u", 7}), EncodeAttemptWord({"", 8})}).status();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 saves 7, rank 1 saves 8"));
}

// {uuid, step, generation, parent, admitted}, of a rank that takes part.
std::string Continues(std::uint64_t generation, const std::string& parent) {
  return EncodeAttemptWord({"", 7, generation, parent, true});
}

TEST(Agreement, RefusesRanksThatContinueDifferentCheckpoints) {
  const auto status = [](const std::string& first, const std::string& other) {
    return AgreeOnAttempt({first, other}).status();
  };

  EXPECT_EQ(status(Continues(1, "a"), Continues(1, "a")), Status::Ok());
  for (const auto& [generation, parent] : std::vector<std::pair<int, std::string>>{{1, "b"}, {2, "a"}, {1, ""}}) {
    const Status refused = status(Continues(1, "a"), Continues(static_cast<std::uint64_t>(generation), parent));
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << generation << parent;
    EXPECT_THAT(refused.message(), HasSubstr("rank 0 generation 1 from attempt \"a\", rank 1 generation " +
                                             std::to_string(generation) + " from attempt \"" + parent + '"'));
  }
}

TEST(Agreement, ComparesTheCheckpointsOfThoseAloneWhoTakePart) {
  const std::string gave_up = EncodeAttemptWord({"", 7, 9, "z", false});

  EXPECT_EQ(AgreeOnAttempt({gave_up, Continues(1, "a"), gave_up, Continues(1, "a")}).status(), Status::Ok());
  const Status refused = AgreeOnAttempt({gave_up, Continues(1, "a"), gave_up, Continues(1, "b")}).status();

  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), testing::AllOf(HasSubstr("rank 1 generation 1 from attempt \"a\""),
                                                HasSubstr("rank 3 generation 1 from attempt \"b\"")));
}

TEST(Agreement, GathersTheShardsByRank) {
  ManifestShard other = kShard;
  other.file = "shard-00001.safetensors";

  const auto shards = AgreeOnShards({EncodePrepared(kShard), EncodePrepared(other)});

  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ(*shards, (std::vector<ManifestShard>{kShard, other}));
}

TEST(Agreement, OneFailureAbortsAllAndIsNamed) {
  const Status failure(StatusCode::kNoSpace, "disk full at \"x\"\xff");

  const Status status = AgreeOnShards({EncodePrepared(kShard), EncodeFailure(failure)}).status();

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("rank 1: disk full at \"x\""));
}

TEST(Agreement, CarriesTheOutcome) {
  EXPECT_EQ(DecodeOutcome(EncodeOutcome(Status::Ok())), Status::Ok());
  const Status unknown(StatusCode::kUnknownOutcome, "fsync of the root failed");
  EXPECT_EQ(DecodeOutcome(EncodeOutcome(unknown)), unknown);
}

TEST(Agreement, RefusesWordsOfAnotherKind) {
  for (const std::string word : {"", "{}", "[]", "no json", "{\"file\":1}"}) {
    EXPECT_EQ(AgreeOnAttempt({word}).status().code(), StatusCode::kInternal) << word;
    EXPECT_EQ(AgreeOnShards({word}).status().code(), StatusCode::kInternal) << word;
    EXPECT_EQ(DecodeOutcome(word).code(), StatusCode::kInternal) << word;
  }
}

}  // namespace
}  // namespace cairn
