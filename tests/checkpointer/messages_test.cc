// The ranks' messages about a save: lost, late, malformed or too many, and groups that break.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "cairn/cairn.h"
#include "engine/agreement.h"
#include "store/names.h"
#include "support/all_ranks.h"
#include "support/small_run.h"
#include "support/three_ranks.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Received by one rank for one save.
constexpr std::uint64_t kMostBytesHeard = 4096;

class RanksMessages : public Ranks {};

TEST_F(RanksMessages, ReportTheCoordinatorsRefusal) {
  OpenAll();
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));

  const auto refused = rank(0).Save(1, SmallState(1, 0)->state());
  const std::vector<SaveHandle> others = {Start(1, 1), Start(2, 1)};

  EXPECT_EQ(refused.status().code(), StatusCode::kAlreadyExists);
  for (const Status& status : WaitAll(others)) {
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
    EXPECT_EQ(status.detail(), StatusDetail::kStepCommitted);
    EXPECT_THAT(status.message(), HasSubstr("rank 0: step 1 is committed already"));
  }
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
  ExpectWorksFrom(2);
}

TEST_F(RanksMessages, SentEarlyAreReceivedLater) {
  OpenAll();

  const SaveHandle early = Start(2, 1);
  ASSERT_TRUE(rank(1).GiveUp(1, Status(StatusCode::kInvalidArgument, "no such thing")).ok());
  const SaveHandle last = Start(0, 1);

  EXPECT_THAT(early.WaitDurable(Soon()).message(), HasSubstr("rank 1: no such thing"));
  EXPECT_THAT(last.WaitDurable(Soon()).message(), HasSubstr("rank 1: no such thing"));
  ExpectWorksFrom(2);
}

TEST_F(RanksMessages, FailureWithoutAReasonIsRejected) {
  OpenAll();

  EXPECT_EQ(rank(1).GiveUp(1, Status::Ok()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rank(1).GiveUp(1, Status(StatusCode::kUnknownOutcome, "?")).status().code(), StatusCode::kInvalidArgument);

  ExpectWorksFrom(1);
}

// However long its deadline is, a save that fails at its start only costs the others what they had in flight.
TEST_F(RanksMessages, FailureStopsTheOthersWriting) {
  OpenAll(kNever);
  Tensors large;
  large.Add("large", std::size_t{4} << 20);  // 16 chunks.
  std::vector<FaultGate> gates;
  for (int of = 0; of < kRanks; ++of) gates.push_back(plan(of).Hold({.op = IoOp::kWrite, .path = "shard-"}));
  std::vector<SaveHandle> saves;
  for (int of = 0; of < kRanks; ++of) {
    const auto save = rank(of).Save(1, large.state());
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }
  for (const FaultGate& gate : gates) ASSERT_TRUE(gate.WaitHeld(Soon()));

  EXPECT_TRUE(saves[1].Cancel());
  for (const int of : {0, 2}) {
    EXPECT_THAT(saves[static_cast<std::size_t>(of)].WaitCaptured(Soon()).message(),
                HasSubstr("rank 1: step 1: cancel"));
  }
  for (const FaultGate& gate : gates) gate.Release();

  EXPECT_THAT(WaitAll(saves), Each(HasCode(StatusCode::kCancelled)));
  for (const int of : {0, 2}) {
    EXPECT_LE(plan(of).Count({.op = IoOp::kWrite, .path = "shard-"}),
              static_cast<std::size_t>(SmallOptions("").queue_depth));
  }
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(RanksMessages, InvalidOnesNameTheirRank) {
  OpenAll(kNever);
  std::uint64_t step = 1;
  for (const std::string message : {"{]", "", R"({"code":1})", R"({"step":1})", "\xff\xfe"}) {
    SCOPED_TRACE(message);
    group(1).Say("prepared/", message);

    const Statuses statuses = SaveAll(step++);

    EXPECT_THAT(statuses, Each(HasCode(StatusCode::kInternal)));
    for (const Status& status : statuses) EXPECT_THAT(status.message(), HasSubstr("rank 1 sent an invalid message"));
    EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  }
}

TEST_F(RanksMessages, OfAnotherStepOrCheckpointCommitNothing) {
  OpenAll(kNever);
  const ManifestShard shard{.file = ShardName(1), .length = 4096, .header_digest = 1};

  group(1).Say("prepared/", EncodePrepared({.step = 8, .shard = shard}));
  const Statuses steps = SaveAll(1);
  group(1).Say("prepared/", EncodePrepared({.step = 2, .restored = "another", .shard = shard}));
  const Statuses checkpoints = SaveAll(2);

  for (const Status& status : steps) EXPECT_THAT(status.message(), HasSubstr("rank 1 saves 8"));
  for (const Status& status : checkpoints) EXPECT_THAT(status.message(), HasSubstr("rank 1 from attempt \"another\""));
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
}

TEST_F(RanksMessages, InvalidOnesOfTheCoordinatorFailTheSave) {
  OpenAll(kNever);
  group(0).Say("attempt/", "{}");

  const Statuses statuses = SaveAll(1);

  EXPECT_THAT(statuses, Each(HasCode(StatusCode::kInternal)));
  for (const Status& status : statuses) EXPECT_THAT(status.message(), HasSubstr("rank 0 sent an invalid message"));
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
}

TEST_F(RanksMessages, InvalidOutcomeSendsTheOthersToTheDisk) {
  OpenAll(kNever);
  const FaultGate commit = plan(0).Hold({.op = IoOp::kRename, .path = "step-"});
  group(0).Say("outcome/", "what?");
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(commit.WaitHeld(Soon()));

  commit.Release();

  EXPECT_THAT(WaitAll(saves), Each(Status::Ok()));
}

// The coordinator dies after its rename, and the store with it.
TEST_F(RanksMessages, BrokenGroupAfterTheCommitIsResolvedFromTheDisk) {
  OpenAll(kNever);
  group(0).Lose("outcome/");
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_EQ(saves[0].WaitDurable(Soon()), Status::Ok());

  for (int of = 1; of < kRanks; ++of) group(of).Break();

  EXPECT_THAT(WaitAll(saves), Each(Status::Ok()));
}

TEST_F(RanksMessages, BrokenGroupBeforeTheCommitPollsTheDisk) {
  OpenAll(kNever);
  std::vector<std::promise<void>> looked(kRanks);
  for (int of = 1; of < kRanks; ++of) {
    plan(of).CallAfter({.op = IoOp::kOpen, .path = StepName(1), .nth = 3},
                       [&looked, of](const SeenOperation&) { looked[static_cast<std::size_t>(of)].set_value(); });
  }
  const FaultGate commit = plan(0).Hold({.op = IoOp::kRename, .path = "step-"});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(commit.WaitHeld(Soon()));

  for (int of = 1; of < kRanks; ++of) group(of).Break();
  for (std::size_t of = 1; of < kRanks; ++of) {
    EXPECT_EQ(looked[of].get_future().wait_until(Soon().when()), std::future_status::ready);
  }
  commit.Release();

  EXPECT_THAT(WaitAll(saves), Each(Status::Ok()));
}

// The rank that renames the attempt away first has decided; the coordinator's late commit does not find it.
TEST_F(RanksMessages, BrokenGroupGivesTheAttemptUpIfNobodyCommits) {
  OpenAll(std::chrono::milliseconds(300));
  const FaultGate commit = plan(0).Hold({.op = IoOp::kRename, .path = "step-"});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(commit.WaitHeld(Soon()));

  for (int of = 1; of < kRanks; ++of) group(of).Break();

  for (std::size_t of = 1; of < kRanks; ++of) {
    const Status status = saves[of].WaitDurable(Soon());
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(status.message(), HasSubstr("was given up before it was committed"));
  }
  commit.Release();
  const Status late = saves[0].WaitDurable(Soon());
  EXPECT_EQ(late.code(), StatusCode::kFailedPrecondition) << late;
  EXPECT_THAT(late.message(), HasSubstr("its attempt was given up before it was committed"));
  EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(RanksMessages, GivingUpAfterTheRenameFindsTheCommit) {
  OpenAll(kNever);
  group(0).Lose("outcome/");
  const FaultGate commit = plan(0).Hold({.op = IoOp::kRename, .path = "step-"});
  std::vector<FaultGate> aborts;
  for (const int of : {1, 2}) aborts.push_back(plan(of).Hold({.op = IoOp::kRename, .path = ".retired-"}));
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(commit.WaitHeld(Soon()));
  for (const int of : {1, 2}) group(of).Expire("outcome/");
  for (const FaultGate& abort : aborts) ASSERT_TRUE(abort.WaitHeld(Soon()));

  commit.Release();
  EXPECT_EQ(saves[0].WaitDurable(Soon()), Status::Ok());
  for (const FaultGate& abort : aborts) abort.Release();

  EXPECT_THAT(WaitAll(saves), Each(Status::Ok()));
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
}

// A closing rank must not fail an attempt that the others may be about to commit.
TEST_F(RanksMessages, ClosingRankLeavesTheAttemptToTheCoordinator) {
  Options options = SmallOptions(root());
  options.group_timeout = kNever;
  OpenAll(options);
  const FaultGate commit = plan(0).Hold({.op = IoOp::kRename, .path = "step-"});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(commit.WaitHeld(Soon()));

  AbandonAtOnce(rank(1));
  ranks_[1].reset();
  commit.Release();

  EXPECT_EQ(saves[1].WaitDurable(Soon()).code(), StatusCode::kUnknownOutcome);
  EXPECT_EQ(saves[0].WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(saves[2].WaitDurable(Soon()), Status::Ok());
}

TEST_F(RanksMessages, HangingRankLeavesNothingBehind) {
  OpenAll(std::chrono::milliseconds(300));
  const FaultGate gate = plan(2).Hold({.op = IoOp::kWrite, .path = "shard-"});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  for (const int of : {0, 1}) {
    const Status status = saves[static_cast<std::size_t>(of)].WaitDurable(Soon());
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(status.message(), HasSubstr("nothing from rank 2"));
  }

  EXPECT_THAT(Leftovers(root()), IsEmpty());
  gate.Release();
  EXPECT_FALSE(saves[2].WaitDurable(Soon()).ok());
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

TEST_F(RanksMessages, BrokenGroupBeforePreparedFailsTheSave) {
  OpenAll(kNever);
  const FaultGate gate = plan(1).Hold({.op = IoOp::kWrite, .path = "shard-"});
  const std::vector<SaveHandle> saves = StartAll(1);
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  group(1).Break();
  gate.Release();

  EXPECT_EQ(saves[1].WaitDurable(Soon()).code(), StatusCode::kIoError);
  // Nobody can receive it, as if the rank were gone.
  group(0).Expire("prepared/");
  EXPECT_EQ(saves[0].WaitDurable(Soon()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(saves[2].WaitDurable(Soon()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Leftovers(root()), IsEmpty());
}

// A mount that appears or disappears on one node: the coordinator does not find what that rank has written.
TEST_F(RanksMessages, AreNotTrustedIfTheShardIsMissing) {
  OpenAll(std::chrono::seconds(3));
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  const auto shard_of_rank_1 = [this] {
    for (const std::string& name : Leftovers(root())) {
      const std::string shard = root() + "/" + name + "/" + ShardName(1);
      if (name.starts_with(".attempt-") && std::filesystem::exists(shard)) return shard;
    }
    return std::string();
  };
  for (const int number : {1, 2}) {
    const bool gone = number == 1;
    const std::string key = "prepared/" + std::to_string(number);
    SCOPED_TRACE(key);
    group(0).Hold(key);
    const std::vector<SaveHandle> saves = StartAll(2);
    for (int of = 1; of < kRanks; ++of) ASSERT_TRUE(group(of).WaitSaid(key, Soon()));
    const std::string shard = shard_of_rank_1();
    ASSERT_FALSE(shard.empty());
    if (gone) {
      std::filesystem::remove(shard);
    } else {
      std::fstream(shard, std::ios::in | std::ios::out | std::ios::binary).seekp(100).put('~');
    }
    group(0).Release();

    for (const SaveHandle& save : saves) {
      const Status status = save.WaitDurable(Soon());
      EXPECT_EQ(status.code(), gone ? StatusCode::kFailedPrecondition : StatusCode::kCorrupt) << status;
      EXPECT_THAT(status.message(), HasSubstr(gone ? "rank 1 has written" : "rank 1 has written header digest"));
    }
    EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
  }
}

TEST_F(RanksMessages, AreFewForOtherRanks) {
  OpenAll();
  std::vector<float> same(2000, 1.5F);
  State state;
  Replicated replicated{.identical_values = {{"lr", "0.1"}}};
  for (float& element : same) {
    replicated.tensors.push_back("a name of some length " + std::to_string(replicated.tensors.size()));
    ASSERT_TRUE(state.Add(replicated.tensors.back(), {.data = &element, .shape = {1}}).ok());
  }
  std::vector<SaveHandle> saves;
  for (int of = 0; of < kRanks; ++of) {
    const auto save = rank(of).Save(1, state, {.replicated = replicated});
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }

  ASSERT_THAT(WaitAll(saves), Each(Status::Ok()));

  EXPECT_LE(group(1).bytes_heard(), kMostBytesHeard);
  EXPECT_GT(group(1).bytes_heard(), 0U);
}

TEST(ManyRanks, SaveAndRestoreTogether) {
  constexpr int kMany = 64;
  const TempDir dir;
  Options options = SmallOptions(dir / "run");
  options.worker_threads = 1;
  const auto ranks = OpenRanks(kMany, options);
  ASSERT_EQ(ranks.size(), static_cast<std::size_t>(kMany));
  for (const std::uint64_t step : {1, 2}) {
    std::vector<std::unique_ptr<Tensors>> states;
    std::vector<SaveHandle> saves;
    for (int of = kMany - 1; of >= 0; --of) {
      states.push_back(SmallState(step, of));
      const auto save = ranks[static_cast<std::size_t>(of)]->Save(step, states.back()->state());
      ASSERT_TRUE(save.ok()) << save.status();
      saves.push_back(*save);
    }

    for (const SaveHandle& save : saves) EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
  }

  EXPECT_THAT(ListedSteps(*ranks[0]), ElementsAre(1, 2));
  OnAllRanks(kMany, [&](int of) {
    const auto fresh = SmallState(0, of);
    EXPECT_EQ(ranks[static_cast<std::size_t>(of)]->Restore(Latest(), fresh->state()).status(), Status::Ok());
    EXPECT_TRUE(Holds(*fresh, 2, of));
  });
}

/// The coordinator's end of a group whose other ranks, except `absent`, report prepared as soon as they are asked.
/// Counts what each of them receives. All their shards are links to one file.
class FakeRanks final : public Group {
 public:
  FakeRanks(int size, int absent, std::string root) : size_(size), absent_(absent), root_(std::move(root)) {}
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return size_; }
  void Send(const std::string& /*key*/, std::string /*message*/) override { ADD_FAILURE() << "the coordinator sends"; }
  void Await(const std::string& /*key*/, Deadline /*deadline*/, OnAnnounced /*on_announced*/) override {
    ADD_FAILURE() << "the coordinator awaits";
  }
  void Announce(const std::string& key, std::string message) override {
    bytes_ += key.size() + message.size();
    if (!key.starts_with("attempt/")) return;
    const auto attempt = DecodeAttempt(message);
    ASSERT_TRUE(attempt.ok()) << attempt.status();
    uuid_ = attempt->uuid;
  }
  void Collect(const std::string& /*key*/, Deadline /*deadline*/, OnMessage on_message, OnEnd end) override {
    std::string header(4096, '\0');
    header[1] = 8;  // The length of the rest, 2,048 bytes.
    const std::string file = root_ + "/file";
    std::ofstream(file, std::ios::binary) << header;
    const std::uint32_t digest = Crc32c(std::as_bytes(std::span(header)).first(8 + 2048));
    std::filesystem::create_directory(root_ + "/" + AttemptName(uuid_));
    for (int of = 1; of < size_; ++of) {
      if (of == absent_) continue;
      const std::string name = ShardName(static_cast<std::uint64_t>(of));
      std::filesystem::create_hard_link(file, root_ + "/" + AttemptName(uuid_) + "/" + name);
      const ManifestShard shard{.file = name, .length = 4096, .header_digest = digest};
      on_message(of, EncodePrepared({.step = 1, .shard = shard}));
    }
    if (absent_ == 0) end(Status::Ok());
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  const int size_;
  const int absent_;
  const std::string root_;
  std::string uuid_;
  std::atomic<std::uint64_t> bytes_ = 0;
};

TEST(ManyRanks, ReceiveFewBytes) {
  constexpr int kMany = 4096;
  const TempDir dir;
  for (const int absent : {0, kMany - 1}) {
    const auto group = std::make_shared<FakeRanks>(kMany, absent, dir / std::to_string(absent));
    Options options = SmallOptions(dir / std::to_string(absent));
    options.group = group;
    options.group_timeout = absent == 0 ? kNever : std::chrono::milliseconds(100);
    const auto checkpointer = OpenOrFail(options);
    ASSERT_NE(checkpointer, nullptr);
    SaveOptions save;
    for (int i = 0; i < 1000; ++i) save.replicated.identical_values.emplace_back("value " + std::to_string(i), "1");

    const Status status = SaveDurably(*checkpointer, 1, save);

    EXPECT_EQ(status.code(), absent == 0 ? StatusCode::kOk : StatusCode::kDeadlineExceeded) << status;
    EXPECT_LE(group->bytes(), kMostBytesHeard);
    EXPECT_GT(group->bytes(), 0U);
  }
}

// One rank's disk hangs: its message never comes while the others wait.
TEST_F(RanksMessages, HangingDiskOfAnotherIsNeverDurable) {
  for (int slow = 0; slow < kRanks; ++slow) {
    SCOPED_TRACE(testing::Message() << "rank " << slow);
    OpenAll(kNever);
    const FaultGate gate = plan(slow).Hold({.op = IoOp::kFsync, .path = "shard-"});
    const std::vector<SaveHandle> saves = StartAll(1);
    ASSERT_TRUE(gate.WaitHeld(Soon()));
    for (int of = 1; of < kRanks; ++of) ASSERT_TRUE(of == slow || group(of).WaitSaid("prepared/", Soon()));

    if (slow != 0) group(0).Expire("prepared/");
    for (int of = 1; of < kRanks && slow == 0; ++of) group(of).Expire("outcome/");
    for (int of = 0; of < kRanks; ++of) {
      if (of == slow) continue;
      const Status status = saves[static_cast<std::size_t>(of)].WaitDurable(Soon());
      EXPECT_EQ(saves[static_cast<std::size_t>(of)].stats().phase, SavePhase::kFailed);
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    }
    gate.Release();

    const Status late = saves[static_cast<std::size_t>(slow)].WaitDurable(Soon());
    if (slow == 0) {
      // The others have given the attempt up: it cannot commit although it has all their messages.
      EXPECT_THAT(late.message(), HasSubstr("has given the attempt up"));
    }
    EXPECT_EQ(saves[static_cast<std::size_t>(slow)].stats().phase, SavePhase::kFailed) << late;
    EXPECT_THAT(ListedSteps(rank(0)), IsEmpty());
    CloseAll();
    ExpectNothingLost(root(), std::nullopt, kRanks);
    std::filesystem::remove_all(root());
  }
}

// The commit is done, but the outcome is lost: the disk has it.
TEST_F(RanksMessages, LostOutcomeIsFoundOnTheDisk) {
  OpenAll(kNever);
  group(0).Lose("outcome/");

  const Statuses statuses = WaitAllWithoutTheOutcome(StartAll(1));

  EXPECT_THAT(statuses, Each(Status::Ok()));
  for (int of = 1; of < kRanks; ++of) {
    // A rank without an outcome fsyncs the root itself before it returns.
    const std::vector<SeenOperation> seen = plan(of).Seen();
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back().op, IoOp::kFsync);
    EXPECT_EQ(seen.back().path, root());
  }
  groups_.clear();
  ranks_.clear();
  ExpectNothingLost(root(), 1, kRanks);
}

TEST_F(RanksMessages, LostOutcomeFailsIfTheStepIsAnotherAttempts) {
  OpenAll(kNever);
  ASSERT_THAT(SaveAll(1), Each(Status::Ok()));
  group(0).Lose("outcome/");
  plan(0).Fail({.op = IoOp::kRename, .nth = 1}, EIO);

  std::vector<SaveHandle> saves;
  for (int of = 0; of < kRanks; ++of) saves.push_back(Start(of, 1, {.if_exists = IfExists::kReplace}));
  const Statuses statuses = WaitAllWithoutTheOutcome(saves);

  EXPECT_EQ(statuses[0].code(), StatusCode::kIoError) << statuses[0];
  EXPECT_EQ(statuses[1].code(), StatusCode::kDeadlineExceeded) << statuses[1];
  EXPECT_EQ(statuses[2].code(), StatusCode::kDeadlineExceeded) << statuses[2];
  EXPECT_THAT(ListedSteps(rank(0)), ElementsAre(1));
}

TEST_F(RanksMessages, LostOutcomeIsUnknownIfTheDiskCannotBeRead) {
  OpenAll(kNever);
  group(0).Lose("outcome/");
  plan(1).Fail({.op = IoOp::kRead}, EIO);
  plan(2).CallBefore({.op = IoOp::kRead}, [this](const SeenOperation&) { plan(2).Fail({.op = IoOp::kFsync}, EIO); });

  const Statuses statuses = WaitAllWithoutTheOutcome(StartAll(1));

  EXPECT_EQ(statuses[0], Status::Ok());
  EXPECT_EQ(statuses[1].code(), StatusCode::kUnknownOutcome) << statuses[1];
  EXPECT_EQ(statuses[2].code(), StatusCode::kUnknownOutcome) << statuses[2];
}

}  // namespace
}  // namespace cairn
