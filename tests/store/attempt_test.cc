#include "store/attempt.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/bytes.h"
#include "store/commit.h"
#include "store/names.h"
#include "store/shard_check.h"
#include "store_case.h"
#include "support/faulty_queue.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AttemptTest : public ::testing::Test {
 protected:
  [[nodiscard]] AttemptSpec Spec(std::uint64_t file_bytes = 3 * kBlock) const {
    return {.folder = Folder(), .step = 1, .file_bytes = file_bytes};
  }
  [[nodiscard]] std::shared_ptr<AttemptFolder> Folder(unsigned mode = 0755) const {
    return std::make_shared<AttemptFolder>(root_.path(), "u", mode);
  }
  [[nodiscard]] std::string Sole(const std::string& part) const {
    for (const auto& entry : fs::recursive_directory_iterator(root_.path())) {
      if (entry.path().string().find(part) != std::string::npos && entry.is_regular_file()) return entry.path();
    }
    return {};
  }

  [[nodiscard]] std::size_t IndexOfLast(IoOp op) const {
    const std::vector<SeenOperation> seen = plan_->Seen();
    std::size_t i = seen.size();
    while (i > 0 && seen[i - 1].op != op) --i;
    return i - 1;
  }

  TempDir root_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::unique_ptr<IoQueue> queue_ = MakeQueue(plan_->Wrap(PlainFactory()));
};

TEST_F(AttemptTest, CommittedStepHoldsExactlyEveryRanksBytes) {
  const TestSave save{.step = 42, .shards = 3};
  TestRanks ranks(*queue_, root_.path(), save);

  ASSERT_EQ(ranks.Save(), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(42)));
  EXPECT_THAT(Names(root_ / StepName(42)),
              ElementsAre(kIndexName, kManifestName, ShardName(0), ShardName(1), ShardName(2)));
  EXPECT_EQ(ranks.rank(0).bytes_written(), ranks.memory(0).size());
  EXPECT_TRUE(ranks.rank(0).direct());
}

TEST_F(AttemptTest, NothingIsListedBeforeTheRename) {
  TestRanks ranks(*queue_, root_.path(), {.step = 1});

  ASSERT_EQ(ranks.Begin(), Status::Ok());
  EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());
  ASSERT_EQ(ranks.Write(), Status::Ok());
  EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());
  ASSERT_EQ(ranks.Seal(), Status::Ok());
  EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());

  ASSERT_EQ(ranks.Commit(), Status::Ok());
  EXPECT_THAT(GoodSteps(root_.path()), ElementsAre(1));
}

TEST_F(AttemptTest, UsesTheSpecifiedModes) {
  const mode_t before = ::umask(0);
  AttemptSpec spec = Spec();
  spec.file_mode = 0640;
  spec.folder = Folder(0750);
  const auto attempt = std::make_unique<Attempt>(*queue_, spec);

  const Status begun = WaitFor(*queue_, [&](StatusDone done) { attempt->Begin(std::move(done)); });
  ::umask(before);

  ASSERT_EQ(begun, Status::Ok());
  EXPECT_EQ(fs::status(root_ / ".attempt-u").permissions(), fs::perms(0750));
  EXPECT_EQ(fs::status(Sole("shard-00000")).permissions(), fs::perms(0640));
}

TEST_F(AttemptTest, SavingAStepTwiceFailsAndKeepsTheFirst) {
  const TestSave first{.step = 5, .seed = 1};
  ASSERT_EQ(SaveTo(*queue_, root_.path(), first), Status::Ok());

  const Status status = SaveTo(*queue_, root_.path(), {.step = 5, .seed = 2});

  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("step 5 is committed already"));
  EXPECT_EQ(CheckContent(root_.path(), first), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(5)));
}

TEST_F(AttemptTest, ReplacingExchangesOldAndNew) {
  const TestSave second{.step = 5, .seed = 2, .shards = 2, .replace = true};
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 5, .seed = 1}), Status::Ok());

  EXPECT_EQ(SaveTo(*queue_, root_.path(), second), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), second), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(5)));
}

TEST_F(AttemptTest, ReplacingAMissingStepSavesIt) {
  const TestSave save{.step = 5, .replace = true};

  EXPECT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
}

TEST_F(AttemptTest, ReplacingADamagedStepNeedsNoManifest) {
  const TestSave second{.step = 5, .seed = 2, .replace = true};
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 5, .seed = 1}), Status::Ok());
  fs::remove(Sole("manifest.json"));

  EXPECT_EQ(SaveTo(*queue_, root_.path(), second), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), second), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(5)));
}

TEST_F(AttemptTest, ReplacingWithoutExchangeKeepsTheOldOneAside) {
  const TestSave first{.step = 5, .seed = 1};
  ASSERT_EQ(SaveTo(*queue_, root_.path(), first), Status::Ok());
  const std::string pin = root_ / (StepName(5) + "/pinned");
  ASSERT_EQ(SetPin(*queue_, root_.path(), 5, PinOwner::kUser, 0644), Status::Ok());
  plan_->RefuseRenameFlags();
  std::vector<std::string> between;
  plan_->CallBefore({.op = IoOp::kRename, .path = ".attempt-", .rename = RenameMode::kPlain, .nth = 1},
                    [&](const SeenOperation&) { between = Names(root_.path()); });
  const TestSave second{.step = 5, .seed = 2, .shards = 2, .replace = true};
  TestRanks ranks(*queue_, root_.path(), second);

  EXPECT_EQ(ranks.Save(), Status::Ok());

  EXPECT_THAT(between, ElementsAre(AttemptName(ranks.uuid()), ReplacedName(5, ranks.uuid())));
  // Moving the old one aside is durable before the new one takes its name.
  std::vector<std::string> order;
  for (const SeenOperation& seen : plan_->Seen()) {
    const bool aside = seen.path2.find(".replaced-") != std::string::npos;
    const bool taken =
        seen.path.find(".attempt-") != std::string::npos && seen.path2.find("step-") != std::string::npos;
    if (seen.result == 0 && seen.op == IoOp::kRename && (aside || taken)) order.emplace_back(aside ? "aside" : "taken");
    if (seen.op == IoOp::kFsync && seen.path == root_.path()) order.emplace_back("fsync");
  }
  order.erase(order.begin(), std::find(order.begin(), order.end(), "aside"));
  EXPECT_THAT(std::vector<std::string>(order.begin(), order.begin() + 4),
              ElementsAre("aside", "fsync", "taken", "fsync"));
  EXPECT_EQ(CheckContent(root_.path(), second), Status::Ok());
  EXPECT_TRUE(fs::exists(pin));
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(5)));
}

TEST_F(AttemptTest, FailedReplacementInTwoRenamesRestoresTheOldOne) {
  const TestSave first{.step = 5, .seed = 1};
  ASSERT_EQ(SaveTo(*queue_, root_.path(), first), Status::Ok());
  plan_->RefuseRenameFlags();
  plan_->Fail({.op = IoOp::kRename, .path = ".attempt-", .rename = RenameMode::kPlain, .nth = 1}, EIO);

  const Status status = SaveTo(*queue_, root_.path(), {.step = 5, .seed = 2, .replace = true});

  EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
  EXPECT_EQ(CheckContent(root_.path(), first), Status::Ok());
  EXPECT_THAT(Names(root_.path()), ElementsAre(StepName(5)));
}

// An opening writer that found no step-5 would restore what it had replaced, so that is removed first.
TEST_F(AttemptTest, StepIsRemovedAfterWhatItReplaced) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 5, .seed = 1}), Status::Ok());
  plan_->RefuseRenameFlags();
  plan_->Fail({.op = IoOp::kRename, .path = ".retired-", .nth = 1}, EIO);
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 5, .seed = 2, .replace = true}), Status::Ok());
  ASSERT_THAT(Names(root_.path()), SizeIs(2));
  plan_->Clear();
  plan_->Fail({.op = IoOp::kRename, .path = ".replaced-"}, EIO);

  const Status stays = Remove(*queue_, root_.path(), 5);
  plan_->Clear();
  const Status goes = Remove(*queue_, root_.path(), 5);

  EXPECT_EQ(stays.code(), StatusCode::kIoError) << stays;
  EXPECT_EQ(goes, Status::Ok());
  EXPECT_THAT(Names(root_.path()), IsEmpty());
}

TEST_F(AttemptTest, UsesAPlainRenameWithoutNoReplace) {
  const TestSave save{.step = 5};
  plan_->Fail({.op = IoOp::kRename, .nth = 1}, EINVAL);
  EXPECT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok());
  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());

  plan_->Clear();
  plan_->Fail({.op = IoOp::kRename, .nth = 1}, ENOSYS);
  const Status again = SaveTo(*queue_, root_.path(), {.step = 5, .seed = 2});

  EXPECT_EQ(again.code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
}

TEST_F(AttemptTest, RejectedDirectIoIsBufferedWithWriteBack) {
  const TestSave save{.step = 5};
  plan_->Fail({.op = IoOp::kOpen, .path = "shard-", .nth = 1}, EINVAL);
  TestRanks ranks(*queue_, root_.path(), save);

  ASSERT_EQ(ranks.Save(), Status::Ok());

  EXPECT_FALSE(ranks.rank(0).direct());
  EXPECT_EQ(plan_->Count({.op = IoOp::kSyncRange}), 2U);
  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
}

TEST_F(AttemptTest, FileOfARejectedDirectOpenIsMadeAgain) {
  // Like the kernel on a filesystem without O_DIRECT.
  const TestSave save{.step = 5};
  plan_->FailAfter({.op = IoOp::kOpen, .path = "shard-", .nth = 1}, EINVAL);

  EXPECT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
}

TEST_F(AttemptTest, FailedWriteBackIsFinal) {
  plan_->Fail({.op = IoOp::kOpen, .path = "shard-", .nth = 1}, EINVAL);
  plan_->Fail({.op = IoOp::kSyncRange, .nth = 2}, EIO);
  TestRanks ranks(*queue_, root_.path(), {.step = 5});
  ASSERT_EQ(ranks.Begin(), Status::Ok());

  EXPECT_EQ(ranks.Write().code(), StatusCode::kIoError);
  EXPECT_EQ(ranks.Seal().code(), StatusCode::kIoError);
}

TEST_F(AttemptTest, WorksWithoutFallocate) {
  plan_->Fail({.op = IoOp::kFallocate}, EOPNOTSUPP);

  EXPECT_EQ(SaveTo(*queue_, root_.path(), {.step = 5}), Status::Ok());
}

TEST_F(AttemptTest, FirstErrorIsFinalAndLaterCallsDoNothing) {
  plan_->Fail({.op = IoOp::kWrite, .nth = 1}, EIO);
  TestRanks ranks(*queue_, root_.path(), {.step = 5});
  ASSERT_EQ(ranks.Begin(), Status::Ok());
  const Status first = ranks.Write();
  const std::size_t before = plan_->Count({}) - plan_->Count({.op = IoOp::kClose});

  const Status sealed = ranks.Seal();
  const Status committed = ranks.Commit();

  EXPECT_EQ(first.code(), StatusCode::kIoError);
  EXPECT_THAT(first.message(), HasSubstr("shard-00000.safetensors"));
  EXPECT_EQ(sealed, first);
  EXPECT_EQ(committed, first);
  EXPECT_EQ(plan_->Count({}) - plan_->Count({.op = IoOp::kClose}), before);
}

TEST_F(AttemptTest, CallsOutOfOrderAreRejected) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5});

  EXPECT_EQ(ranks.Seal().code(), StatusCode::kInternal);
  EXPECT_EQ(ranks.Commit().code(), StatusCode::kInternal);
  EXPECT_EQ(ranks.Write().code(), StatusCode::kInternal);
  ASSERT_EQ(ranks.Begin(), Status::Ok());
  EXPECT_EQ(ranks.Begin().code(), StatusCode::kInternal);
  EXPECT_EQ(ranks.Commit().code(), StatusCode::kInternal);
}

TEST_F(AttemptTest, ManifestOfAnotherSaveIsRejected) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5});
  ASSERT_EQ(ranks.Begin(), Status::Ok());
  ASSERT_EQ(ranks.Write(), Status::Ok());
  ASSERT_EQ(ranks.Seal(), Status::Ok());
  const Manifest other = ManifestOf({.step = 6}, ranks.uuid());

  const Status status =
      WaitFor(*queue_, [&](StatusDone done) { ranks.rank(0).Commit(other, {}, false, std::move(done)); });

  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());
}

TEST_F(AttemptTest, UnalignedWritesAreRejected) {
  alignas(kBlock) std::byte memory[2 * kBlock] = {};
  const auto attempt = std::make_unique<Attempt>(*queue_, Spec());
  ASSERT_EQ(WaitFor(*queue_, [&](StatusDone done) { attempt->Begin(std::move(done)); }), Status::Ok());
  const auto write = [&](std::uint64_t offset, Bytes bytes) {
    return WaitFor(*queue_, [&](StatusDone done) { attempt->Write(offset, bytes, std::move(done)); }).code();
  };
  const Bytes all(memory);

  EXPECT_EQ(write(1, all.first(kBlock)), StatusCode::kInternal);
  EXPECT_EQ(write(0, all.first(100)), StatusCode::kInternal);
  EXPECT_EQ(write(0, all.subspan(512, kBlock)), StatusCode::kInternal);
  EXPECT_EQ(write(0, {}), StatusCode::kInternal);
  EXPECT_EQ(write(2 * kBlock, all), StatusCode::kInternal);
  EXPECT_EQ(write(~std::uint64_t{0} - kBlock + 1, all.first(kBlock)), StatusCode::kInternal);
  EXPECT_EQ(plan_->Count({.op = IoOp::kWrite}), 0U);
}

TEST_F(AttemptTest, ShortWritesResumeAtTheirLastBlock) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock - 1}) {
    const TestSave save{.step = 100 + bytes};
    plan_->Clear();
    plan_->Shorten({.op = IoOp::kWrite, .path = "shard-", .nth = 1}, bytes);

    EXPECT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok()) << bytes;

    EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok()) << bytes;
  }
}

TEST_F(AttemptTest, ShortWriteOfTheManifestIsResumed) {
  const TestSave save{.step = 5};
  plan_->Shorten({.op = IoOp::kWrite, .path = "manifest", .nth = 1}, 10);
  plan_->Shorten({.op = IoOp::kWrite, .path = "manifest", .nth = 2}, 1);

  EXPECT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
}

TEST_F(AttemptTest, WritesWithoutProgressAreAnError) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, kBlock - 1}) {
    plan_->Clear();
    plan_->Shorten({.op = IoOp::kWrite, .path = "shard-"}, bytes);

    const Status status = SaveTo(*queue_, root_.path(), {.step = 5});

    EXPECT_EQ(status.code(), StatusCode::kIoError) << bytes;
    EXPECT_THAT(status.message(), HasSubstr(" bytes, wrote ")) << bytes;
    EXPECT_THAT(Names(root_.path()), IsEmpty()) << bytes;
  }
}

TEST_F(AttemptTest, SpaceIsCheckedBeforeTheFirstByte) {
  const auto attempt = std::make_unique<Attempt>(*queue_, Spec(std::uint64_t{1} << 60));

  const Status status = WaitFor(*queue_, [&](StatusDone done) { attempt->Begin(std::move(done)); });

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("needs 1152921504606846976 bytes"));
  EXPECT_THAT(status.message(), HasSubstr("are free under " + root_.path()));
  EXPECT_THAT(Names(root_.path()), IsEmpty());

  AttemptSpec spec = Spec();
  spec.kept = KeptSpec{.name = "kept-00000-a.safetensors", .bytes = std::uint64_t{1} << 60};
  const auto kept = std::make_unique<Attempt>(*queue_, spec);
  const Status too_much = WaitFor(*queue_, [&](StatusDone done) { kept->Begin(std::move(done)); });
  EXPECT_EQ(too_much.code(), StatusCode::kNoSpace);
  EXPECT_THAT(too_much.message(), HasSubstr("/kept-00000-a.safetensors, with shard-00000.safetensors, needs"));
}

TEST_F(AttemptTest, ImpossibleFileSizesAreRejected) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0} / 2 + 1}) {
    const auto attempt = std::make_unique<Attempt>(*queue_, Spec(bytes));

    const Status status = WaitFor(*queue_, [&](StatusDone done) { attempt->Begin(std::move(done)); });

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bytes;
  }
}

TEST_F(AttemptTest, SpaceUsedByOthersMeanwhileIsNoSpace) {
  plan_->Fail({.op = IoOp::kFallocate}, ENOSPC);

  const Status status = SaveTo(*queue_, root_.path(), {.step = 5});

  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(Names(root_.path()), IsEmpty());
}

TEST_F(AttemptTest, TwoRanksWithOneShardNumberAreAnError) {
  const auto first = std::make_unique<Attempt>(*queue_, Spec());
  ASSERT_EQ(WaitFor(*queue_, [&](StatusDone done) { first->Begin(std::move(done)); }), Status::Ok());
  AttemptSpec spec = Spec();
  ASSERT_EQ(RunTaskBlocking(*queue_, spec.folder->Open()), Status::Ok());
  const auto second = std::make_unique<Attempt>(*queue_, spec);

  const Status status = WaitFor(*queue_, [&](StatusDone done) { second->Begin(std::move(done)); });
  EXPECT_EQ(WaitFor(*queue_, [&](StatusDone done) { second->Abandon(std::move(done)); }), Status::Ok());

  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("two ranks write the same shard"));
  EXPECT_NE(Sole("shard-00000"), "");
}

TEST_F(AttemptTest, AbandonedAtAnyPointLeavesNothing) {
  for (int calls = 0; calls < 4; ++calls) {
    TestRanks ranks(*queue_, root_.path(), {.step = 5, .shards = 2});
    if (calls > 0) {
      ASSERT_EQ(ranks.Begin(), Status::Ok());
    }
    if (calls > 1) {
      ASSERT_EQ(ranks.Write(), Status::Ok());
    }
    if (calls > 2) {
      ASSERT_EQ(ranks.Seal(), Status::Ok());
    }

    EXPECT_EQ(ranks.Abandon(), Status::Ok());

    EXPECT_THAT(Names(root_.path()), IsEmpty()) << calls;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const Status again = WaitFor(*queue_, [&](StatusDone done) { ranks.rank(rank).Begin(std::move(done)); });
      EXPECT_EQ(again.code(), StatusCode::kCancelled);
    }
    EXPECT_EQ(ranks.Abandon(), Status::Ok());
  }
}

TEST_F(AttemptTest, MissingFolderIsNamed) {
  AttemptFolder folder(root_.path(), "u", 0755);

  const Status status = RunTaskBlocking(*queue_, folder.Open());

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(root_ / ".attempt-u"));
}

TEST_F(AttemptTest, AbandonByTheMakerRemovesAllRanksShards) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5, .shards = 3});
  ASSERT_EQ(ranks.Begin(), Status::Ok());
  ASSERT_EQ(ranks.Write(), Status::Ok());
  const Bytes header = ranks.memory(1).first(kBlock);

  EXPECT_EQ(WaitFor(*queue_, [&](StatusDone done) { ranks.rank(0).Abandon(std::move(done)); }), Status::Ok());

  EXPECT_THAT(Names(root_.path()), IsEmpty());
  const Status late = WaitFor(*queue_, [&](StatusDone done) { ranks.rank(1).Seal(header, std::move(done)); });
  EXPECT_EQ(late.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(late.message(), HasSubstr("has given the attempt up"));
}

TEST_F(AttemptTest, AbandonByAnotherRankKeepsTheOthersShards) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5, .shards = 2});
  ASSERT_EQ(ranks.Begin(), Status::Ok());

  EXPECT_EQ(WaitFor(*queue_, [&](StatusDone done) { ranks.rank(1).Abandon(std::move(done)); }), Status::Ok());

  EXPECT_THAT(Names(root_ / AttemptName(ranks.uuid())), ElementsAre(ShardName(0)));
}

TEST_F(AttemptTest, AbandonAfterTheCommitKeepsTheCheckpoint) {
  const TestSave save{.step = 5};
  TestRanks ranks(*queue_, root_.path(), save);
  ASSERT_EQ(ranks.Save(), Status::Ok());

  EXPECT_EQ(ranks.Abandon(), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
}

TEST_F(AttemptTest, RenameReportedAsFailedIsFoundCommitted) {
  const TestSave save{.step = 5};
  plan_->FailAfter({.op = IoOp::kRename}, EIO);

  EXPECT_EQ(SaveTo(*queue_, root_.path(), save), Status::Ok());

  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
}

TEST_F(AttemptTest, FailedFsyncOfTheRootIsUnknownAndNotRetried) {
  const TestSave first{.step = 5, .seed = 1};
  const TestSave second{.step = 5, .seed = 2, .replace = true};
  ASSERT_EQ(SaveTo(*queue_, root_.path(), first), Status::Ok());
  plan_->CallBefore({.op = IoOp::kRename}, [this](const SeenOperation&) { plan_->Fail({.op = IoOp::kFsync}, EIO); });
  TestRanks ranks(*queue_, root_.path(), second);

  const Status status = ranks.Save();

  EXPECT_EQ(status.code(), StatusCode::kUnknownOutcome);
  EXPECT_THAT(status.message(), HasSubstr("was renamed into place"));
  EXPECT_EQ(plan_->Count({.op = IoOp::kUnlink}), 0U) << ToString(plan_->Seen());
  const std::size_t renamed = IndexOfLast(IoOp::kRename);
  EXPECT_EQ(IndexOfLast(IoOp::kFsync), renamed + 1) << ToString(plan_->Seen());
  // After a power cut the old one may have the step's name, so it must be complete.
  EXPECT_THAT(Names(root_ / AttemptName(ranks.uuid())), SizeIs(2));
  EXPECT_EQ(CheckContent(root_.path(), second), Status::Ok());
}

TEST_F(AttemptTest, FailedFsyncOfTheShardIsFinal) {
  plan_->Fail({.op = IoOp::kFsync, .path = "shard-", .nth = 1}, EIO);

  EXPECT_EQ(SaveTo(*queue_, root_.path(), {.step = 5}).code(), StatusCode::kIoError);

  EXPECT_EQ(plan_->Count({.op = IoOp::kFsync, .path = "shard-"}), 1U);
  EXPECT_EQ(plan_->Count({.op = IoOp::kRename, .path = "step-"}), 0U);
  EXPECT_THAT(Names(root_.path()), IsEmpty());
}

TEST_F(AttemptTest, ShardIsFsyncedOnceAfterWritesAndTruncate) {
  ASSERT_EQ(SaveTo(*queue_, root_.path(), {.step = 5}), Status::Ok());

  std::string order;
  for (const SeenOperation& seen : plan_->Seen()) {
    if (seen.path.find("shard-") != std::string::npos) order += std::string(IoOpName(seen.op)) + " ";
  }
  EXPECT_EQ(order, "open fallocate write write write ftruncate fsync check close ");
}

TEST_F(AttemptTest, EachRankFsyncsTheFolderWhenItSeals) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5, .shards = 3});
  ASSERT_EQ(ranks.Begin(), Status::Ok());
  ASSERT_EQ(ranks.Write(), Status::Ok());
  const FaultMatch fsync{.op = IoOp::kFsync, .path = ".attempt-"};
  ASSERT_EQ(plan_->Count(fsync), 0U);

  ASSERT_EQ(ranks.Seal(), Status::Ok());

  EXPECT_EQ(plan_->Count(fsync), 6U) << "a shard and the folder each: the coordinator may be on another node";
}

TEST_F(AttemptTest, ShardRemovedOrReplacedMeanwhileFailsTheSave) {
  for (const bool alone : {true, false}) {
    for (const bool replaced : {true, false}) {
      SCOPED_TRACE(std::to_string(alone) + std::to_string(replaced));
      TestRanks ranks(*queue_, root_.path(), {.step = 7, .shards = alone ? 1U : 2U});
      plan_->CallBefore({.op = IoOp::kFtruncate}, [replaced](const SeenOperation& seen) {
        if (replaced) fs::copy_file(seen.path, seen.path + ".copy");
        fs::remove(seen.path);
        if (replaced) fs::rename(seen.path + ".copy", seen.path);
      });

      const Status status = ranks.Save();

      EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status;
      EXPECT_THAT(status.message(), HasSubstr(replaced ? "replaced while it was written" : "removed while it was"));
      EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());
      plan_->Clear();
    }
  }
}

// Rank 0 looks for the others' shards through its own descriptor.
TEST_F(AttemptTest, MissingShardIsNamedUnlessTheAttemptWasGivenUp) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5, .shards = 2});
  ASSERT_EQ(ranks.Begin(), Status::Ok());
  ASSERT_EQ(ranks.Write(), Status::Ok());
  ASSERT_EQ(ranks.Seal(), Status::Ok());
  const ManifestShard shard = ManifestOf(ranks.save(), ranks.uuid()).shards[1];
  const auto checks =
      std::make_shared<ShardChecks>(*queue_, ranks.folder(0), std::chrono::seconds(0), [](const Event&) {});
  const auto check = [&] {
    return WaitFor(*queue_, [&](const StatusDone& done) {
      checks->Add(1, shard, [done](const Result<std::string>& run) { done(run.status()); });
    });
  };
  ASSERT_EQ(check(), Status::Ok());
  const std::string folder = root_ / AttemptName(ranks.uuid());

  fs::remove(folder + "/" + shard.file);
  const Status missing = check();
  fs::rename(folder, folder + "-given-up");
  const Status given_up = check();

  EXPECT_EQ(missing.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(),
              AllOf(HasSubstr(folder), HasSubstr(", which rank 1 has written, is not visible on rank 0")));
  EXPECT_EQ(given_up.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(given_up.message(), HasSubstr("has given the attempt up"));
}

TEST_F(AttemptTest, ShardTruncatedMeanwhileFailsTheSave) {
  plan_->CallAfter({.op = IoOp::kFtruncate}, [](const SeenOperation& seen) { fs::resize_file(seen.path, 4096); });

  const Status status = SaveTo(*queue_, root_.path(), {.step = 7});

  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status;
  EXPECT_THAT(status.message(), HasSubstr("found 4096"));
  EXPECT_THAT(GoodSteps(root_.path()), IsEmpty());
}

TEST_F(AttemptTest, FirstRejectedDirectWriteSwitchesToBuffered) {
  const TestSave save{.step = 7, .more = 20};
  TestRanks ranks(*queue_, root_.path(), save);
  // The two chunks are in flight at once.
  plan_->Fail({.op = IoOp::kWrite, .nth = 1}, EINVAL);
  plan_->Fail({.op = IoOp::kWrite, .nth = 2}, EINVAL);

  ASSERT_EQ(ranks.Save(), Status::Ok());

  EXPECT_FALSE(ranks.rank(0).direct());
  EXPECT_EQ(CheckContent(root_.path(), save), Status::Ok());
  EXPECT_EQ(plan_->Count({.op = IoOp::kSyncRange}), 2U) << "each buffered write is followed by its write-back";
}

TEST_F(AttemptTest, LaterRejectedDirectWriteIsAnError) {
  TestRanks ranks(*queue_, root_.path(), {.step = 7});
  plan_->Fail({.op = IoOp::kWrite, .path = "shard-", .nth = 3}, EINVAL);  // The header.

  EXPECT_EQ(ranks.Save().code(), StatusCode::kIoError);

  EXPECT_TRUE(ranks.rank(0).direct());
}

TEST_F(AttemptTest, RankWithoutOutcomeFindsItsCommittedAttempt) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5});
  ASSERT_EQ(ranks.Save(), Status::Ok());
  const auto find = [&](std::uint64_t step, const std::string& uuid) {
    return WaitFor(*queue_,
                   [&](StatusDone done) { FindCommitted(*queue_, root_.path(), step, uuid, std::move(done)); });
  };
  const FaultMatch root_fsync{.op = IoOp::kFsync, .path = root_.path()};
  const std::size_t before = plan_->Count(root_fsync);

  EXPECT_EQ(find(5, ranks.uuid()), Status::Ok());
  EXPECT_EQ(plan_->Count(root_fsync), before + 1);
  EXPECT_EQ(find(6, ranks.uuid()).code(), StatusCode::kNotFound);
  EXPECT_EQ(find(5, "another").code(), StatusCode::kNotFound);
}

TEST_F(AttemptTest, RankThatCannotReadTheDiskReturnsUnknown) {
  TestRanks ranks(*queue_, root_.path(), {.step = 5});
  ASSERT_EQ(ranks.Save(), Status::Ok());
  const auto find = [&](const std::string& root) {
    return WaitFor(*queue_, [&](StatusDone done) { FindCommitted(*queue_, root, 5, ranks.uuid(), std::move(done)); });
  };

  EXPECT_EQ(find(root_ / "unmounted").code(), StatusCode::kUnknownOutcome);
  for (const IoOp op : {IoOp::kOpen, IoOp::kRead, IoOp::kFsync}) {
    plan_->Clear();
    plan_->Fail({.op = op}, EIO);
    EXPECT_EQ(find(root_.path()).code(), StatusCode::kUnknownOutcome) << IoOpName(op);
  }
  plan_->Clear();
  fs::resize_file(Sole("manifest.json"), 20);
  EXPECT_EQ(find(root_.path()).code(), StatusCode::kUnknownOutcome);
}

}  // namespace
}  // namespace cairn
