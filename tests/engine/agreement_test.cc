#include "engine/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

PreparedMessage Prepared() {
  return {.step = 7,
          .restored = "the-parent",
          .shard = {.file = "shard-00003.safetensors",
                    .length = 1ULL << 40,
                    .header_digest = 0xfedcba98,
                    .nonfinite = NonFinite::kNaN,
                    .long_values = true}};
}

TEST(Agreement, EncodesTheAttempt) {
  const AttemptProposal message{.uuid = "the-uuid",
                                .step = ~0ULL,
                                .line = 3,
                                .parent = ManifestParent{.step = 6, .attempt = "the-parent"},
                                .replace = true,
                                .replica_digests = "00ff"};

  const auto read = DecodeAttempt(EncodeAttempt(message));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->refusal, Status::Ok());
  EXPECT_EQ(read->uuid, message.uuid);
  EXPECT_EQ(read->step, message.step);
  EXPECT_EQ(read->line, message.line);
  EXPECT_EQ(read->parent, message.parent);
  EXPECT_EQ(read->replace, message.replace);
  EXPECT_EQ(read->replica_digests, message.replica_digests);
}

TEST(Agreement, EncodesARefusal) {
  const Status refusal(StatusCode::kAlreadyExists, "step 7 is committed already");

  const auto read = DecodeAttempt(EncodeAttempt({.step = 7, .refusal = refusal}));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->refusal, refusal);
  EXPECT_EQ(read->step, 7U);
}

TEST(Agreement, EncodesAShard) {
  const auto read = DecodePrepared(3, EncodePrepared(Prepared()));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->failure, Status::Ok());
  EXPECT_EQ(read->step, 7U);
  EXPECT_EQ(read->restored, "the-parent");
  EXPECT_EQ(read->shard, Prepared().shard);
  EXPECT_LT(read->bucket, 0);
}

TEST(Agreement, EncodesAFailureWithAnyBytes) {
  const Status failure(StatusCode::kNoSpace, "disk full at \"x\"\xff");

  const auto read = DecodePrepared(3, EncodePrepared({.failure = failure}));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->failure.code(), StatusCode::kNoSpace);
  EXPECT_THAT(read->failure.message(), HasSubstr("disk full at \"x\""));
}

TEST(Agreement, TruncatesLongMessages) {
  const Status failure(StatusCode::kIoError, std::string(100'000, 'x'));

  EXPECT_LT(EncodeOutcome(failure).size(), 2'100U);
  EXPECT_LT(EncodePrepared({.failure = failure}).size(), 2'100U);
}

TEST(Agreement, EncodesDifferingValues) {
  const auto read = DecodePrepared(3, EncodePrepared({.bucket = 63, .texts = R"([["lr","0.1"]])"}));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->bucket, 63);
  EXPECT_EQ(read->texts, R"([["lr","0.1"]])");
}

TEST(Agreement, EncodesTheOutcome) {
  const Status unknown(StatusCode::kUnknownOutcome, "fsync of the root failed");

  EXPECT_EQ(DecodeOutcome(EncodeOutcome(Status::Ok())), Status::Ok());
  EXPECT_EQ(DecodeOutcome(EncodeOutcome(unknown)), unknown);
  const Status committed(StatusCode::kAlreadyExists, "step 7 is committed already", StatusDetail::kStepCommitted);
  EXPECT_EQ(DecodeOutcome(EncodeOutcome(committed)), committed);
  EXPECT_EQ(DecodeOutcome(R"({"code":3,"message":"","detail":99})"), std::nullopt);
}

TEST(Agreement, RejectsRanksThatSaveDifferentSteps) {
  const Status status = CheckSameLine(7, "", 2, 8, "");

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.detail(), StatusDetail::kStepsDiffer);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 saves 7, rank 2 saves 8"));
}

TEST(Agreement, RejectsRanksThatContinueDifferentCheckpoints) {
  EXPECT_EQ(CheckSameLine(7, "a", 2, 7, "a"), Status::Ok());
  EXPECT_EQ(CheckSameLine(7, "", 2, 7, ""), Status::Ok());
  for (const std::string other : {"b", ""}) {
    const Status status = CheckSameLine(7, "a", 2, 7, other);

    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("step 7"), HasSubstr("rank 0 from attempt \"a\", rank 2 from")));
  }
}

TEST(Agreement, NamesTheRankOfAnInvalidMessage) {
  std::vector<std::string> bad = {"",
                                  "{}",
                                  "[]",
                                  "no json",
                                  "7",
                                  R"({"code":0,"message":""})",
                                  R"({"code":99,"message":""})",
                                  R"({"code":1})",
                                  R"({"bucket":-1,"texts":""})",
                                  R"({"bucket":1})",
                                  R"({"step":{"step":7}})"};
  const std::string good = EncodePrepared(Prepared());
  for (std::size_t cut = 1; cut < good.size(); ++cut) bad.push_back(good.substr(0, cut));
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"step\":7", "\"step\":\"7\""},
                                                        {"\"step\":7", "\"step\":-7"},
                                                        {"\"step\":7", "\"step\":7,\"step\":7"},
                                                        {"shard-00003", "shard-00002"},
                                                        {"shard-00003", "../shard-00003"},
                                                        {"4275878552", "42758785520"},
                                                        {"\"nonfinite\":2", "\"nonfinite\":3"},
                                                        {"\"long_values\":1", "\"long_values\":2"},
                                                        {"\"restored\":", "\"restore\":"}}) {
    ASSERT_THAT(good, HasSubstr(from));
    std::string changed = good;
    bad.push_back(changed.replace(changed.find(from), from.size(), to));
  }
  for (const std::string& message : bad) {
    const Status status = DecodePrepared(3, message).status();

    EXPECT_EQ(status.code(), StatusCode::kInternal) << message;
    EXPECT_THAT(status.message(), HasSubstr("rank 3")) << message;
  }
}

TEST(Agreement, RejectsInvalidAttempts) {
  for (const std::string message :
       {"", "{}", "[]", "no json", R"({"code":0,"message":""})",
        R"({"attempt":"../x","step":1,"generation":0,"replace":0,"identical":""})",
        R"({"attempt":"x","step":1,"generation":0,"replace":0,"identical":"","parent":"y"})",
        R"({"attempt":"x","generation":0,"replace":0,"identical":""})"}) {
    const Status status = DecodeAttempt(message).status();

    EXPECT_EQ(status.code(), StatusCode::kInternal) << message;
    EXPECT_THAT(status.message(), HasSubstr("rank 0")) << message;
  }
}

TEST(Agreement, EncodesTheChoice) {
  const auto chosen =
      DecodeChoice(EncodeChoice({.asked = "the newest", .step = ~0ULL, .attempt = "the-uuid", .path = "/root/step-1"}));
  const Status damage(StatusCode::kCorrupt, "manifest.json is empty");
  const auto passed_over = DecodeChoice(EncodeChoice({.step = 7, .path = "/root/step-7", .refusal = damage}));
  const Status end(StatusCode::kNotFound, "there is no checkpoint");
  const auto ended = DecodeChoice(EncodeChoice({.refusal = end}));

  ASSERT_TRUE(chosen.ok() && passed_over.ok() && ended.ok());
  EXPECT_EQ(chosen->asked, "the newest");
  EXPECT_EQ(chosen->step, ~0ULL);
  EXPECT_EQ(chosen->attempt, "the-uuid");
  EXPECT_EQ(chosen->path, "/root/step-1");
  EXPECT_EQ(chosen->refusal, Status::Ok());
  EXPECT_EQ(passed_over->refusal, damage);
  EXPECT_EQ(passed_over->path, "/root/step-7");
  EXPECT_EQ(ended->refusal, end);
  EXPECT_EQ(ended->path, "");
}

TEST(Agreement, EncodesTheVerdict) {
  const Status damage(StatusCode::kCorrupt, "shard-00003.safetensors: CRC32C");

  const auto damaged = DecodeVerdict(EncodeVerdict({.rank = 3, .status = damage, .missing = ",1,"}));
  const auto good = DecodeVerdict(EncodeVerdict({}));
  const auto again = DecodeVerdict(EncodeVerdict({.again = true}));

  ASSERT_TRUE(damaged.ok() && good.ok() && again.ok());
  EXPECT_EQ(damaged->missing, ",1,");
  EXPECT_TRUE(again->again && !good->again);
  EXPECT_EQ(damaged->rank, 3);
  EXPECT_EQ(damaged->status, damage);
  EXPECT_EQ(good->status, Status::Ok());
}

TEST(Agreement, RejectsInvalidChoicesAndVerdicts) {
  for (const std::string message : {"", "[]", "{}", R"({"step": 1})", R"({"path": "/root"})", R"({"code": "Ok"})"}) {
    for (const Status& status : {DecodeChoice(message).status(), DecodeVerdict(message).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInternal) << message;
      EXPECT_THAT(status.message(), HasSubstr("rank 0")) << message;
    }
  }
}

TEST(Agreement, RejectsInvalidOutcomes) {
  for (const std::string message : {"", "{}", "[]", "no json", R"({"code":"x","message":""})"}) {
    EXPECT_EQ(DecodeOutcome(message), std::nullopt) << message;
  }
}

}  // namespace
}  // namespace cairn
