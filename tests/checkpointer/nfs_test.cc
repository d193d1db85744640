// How NFS differs from a local disk (see NfsDouble): nothing is lost, misreported, or left for good.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/cairn.h"
#include "store/names.h"
#include "support/lost_lock.h"
#include "support/nfs_double.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Nfs : public testing::Test {
 protected:
  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  /// Queues on the double that follow a plan.
  [[nodiscard]] Wiring OnNfs(const std::shared_ptr<FaultPlan>& plan = FaultPlan::Make()) const {
    Wiring wiring;
    wiring.wrap_queue = [nfs = nfs_, plan](IoQueueFactory inner) { return plan->Wrap(nfs->Wrap(std::move(inner))); };
    return wiring;
  }
  /// Nothing is recycled, because NFS has no leases.
  [[nodiscard]] Options OptionsOnNfs() {
    Options options = SmallOptions(root());
    options.keep_last = 2;
    options.recycle = false;
    options.on_event = [this](const Event& event) {
      MutexLock lock(mutex_);
      if (event.severity == Severity::kWarning) warnings_.push_back(event.message);
    };
    return options;
  }
  [[nodiscard]] std::vector<std::string> Warnings() {
    MutexLock lock(mutex_);
    return warnings_;
  }
  /// Files with silly names, anywhere under the root.
  [[nodiscard]] std::vector<std::string> SillyNames() const {
    nfs_->Settle();
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root())) {
      if (entry.path().filename().string().starts_with(".nfs")) names.push_back(entry.path());
    }
    return names;
  }
  void ExpectNothingLeft() const {
    EXPECT_THAT(SillyNames(), IsEmpty());
    EXPECT_THAT(Leftovers(root()), IsEmpty());
  }
  [[nodiscard]] UniqueFd OpenShard(const std::string& folder) const {
    UniqueFd fd(::open((root() + "/" + folder + "/" + ShardName(0)).c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_TRUE(fd.valid()) << folder;
    return fd;
  }

  const TempDir dir_;
  const std::shared_ptr<NfsDouble> nfs_ = NfsDouble::Make();
  Mutex mutex_;
  std::vector<std::string> warnings_ CAIRN_GUARDED_BY(mutex_);
};

TEST_F(Nfs, SavesRetiresAndRestores) {
  for (const std::uint64_t from : {1, 5}) {  // The second time on the first run's leftovers.
    const auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
    ASSERT_NE(checkpointer, nullptr);

    for (std::uint64_t step = from; step < from + 4; ++step) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

    EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(from + 2, from + 3));
    for (std::uint64_t step = from + 2; step < from + 4; ++step) {
      EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(step)), Status::Ok());
    }
  }
  EXPECT_THAT(Warnings(), IsEmpty());
  EXPECT_GE(nfs_->refused(), 8U);
  ExpectNothingLeft();
}

TEST_F(Nfs, SaveOfAnExistingStepFails) {
  const auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  // Unknown to this writer, so only the rename can detect it.
  std::filesystem::copy(root() + "/" + StepName(1), root() + "/" + StepName(2));

  const Status status = SaveDurably(*checkpointer, 2, {}, 1);

  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status;
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(1)), Status::Ok());
  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(SillyNames(), IsEmpty());
}

TEST_F(Nfs, ReplacedStepLeavesNothingOfTheOldOne) {
  auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());

  EXPECT_EQ(SaveDurably(*checkpointer, 2, {.if_exists = IfExists::kReplace}, 1), Status::Ok());

  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(2), 1), Status::Ok());
  EXPECT_THAT(Warnings(), IsEmpty());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2));
  checkpointer.reset();
  ExpectNothingLeft();
}

// A client that repeats a request because the reply was lost finds nothing to rename.
TEST_F(Nfs, RepeatedRenameThatFindsNothingIsACommit) {
  const auto plan = FaultPlan::Make();
  const auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs(plan));
  ASSERT_NE(checkpointer, nullptr);
  plan->FailAfter({.op = IoOp::kRename, .path = StepName(1), .nth = 2}, ENOENT);  // The first has flags.

  EXPECT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());

  EXPECT_EQ(plan->Count({.op = IoOp::kRename, .path = StepName(1)}), 2U);
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(1)), Status::Ok());
}

class NfsFaultOf : public Nfs, public testing::WithParamInterface<IoOp> {};

// Whatever a failure leaves open.
TEST_P(NfsFaultOf, LosesNothingAndLeavesNothing) {
  const auto plan = FaultPlan::Make();
  auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs(plan));
  ASSERT_NE(checkpointer, nullptr);
  std::uint64_t step = 1;
  std::uint64_t hits = 0;
  for (std::uint64_t nth = 1;; ++nth) {
    // As many as are kept, so that the next commit is followed by a removal.
    for (int kept = 0; kept < 2; ++kept) ASSERT_EQ(SaveDurably(*checkpointer, step++), Status::Ok());
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    const std::size_t seen = plan->Count({.op = GetParam()});
    const FaultMatch match{.op = GetParam(), .nth = nth};
    // A failed close has still closed the file.
    GetParam() == IoOp::kClose ? plan->FailAfter(match, EIO) : plan->Fail(match, EIO);

    const Status status = SaveDurably(*checkpointer, step++);

    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    plan->Clear();
    if (plan->Count({.op = GetParam()}) - seen < nth) break;
    ++hits;
    SCOPED_TRACE(testing::Message() << "the " << nth << "th: " << status);
    if (status.ok()) {
      EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(step - 1)), Status::Ok());
    }
    ASSERT_EQ(SaveDurably(*checkpointer, step++), Status::Ok());
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
    EXPECT_THAT(SillyNames(), IsEmpty());
    if (HasFailure()) return;
  }
  EXPECT_GT(hits, 0U);
  checkpointer.reset();
  ExpectNothingLost(root(), step - 2);
}

INSTANTIATE_TEST_SUITE_P(Each, NfsFaultOf,
                         testing::Values(IoOp::kOpen, IoOp::kClose, IoOp::kWrite, IoOp::kFsync, IoOp::kFallocate,
                                         IoOp::kFtruncate, IoOp::kRename, IoOp::kUnlink, IoOp::kMkdir, IoOp::kRmdir,
                                         IoOp::kCall),
                         [](const auto& test) { return std::string(IoOpName(test.param)); });

// Retention meets a reader without a lock, like any tool but Cairn's.
TEST_F(Nfs, FileBeingReadIsRemovedAfterItIsClosed) {
  auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  UniqueFd reader = OpenShard(StepName(1));

  for (const std::uint64_t step : {2, 3}) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(2, 3));
  EXPECT_THAT(SillyNames(), SizeIs(1));
  EXPECT_THAT(Warnings(), Contains(HasSubstr(".retired-")));
  // While it is read, a sweep cannot remove it either; nothing else is delayed.
  checkpointer.reset();
  checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  EXPECT_EQ(SaveDurably(*checkpointer, 4), Status::Ok());
  EXPECT_THAT(SillyNames(), SizeIs(1));
  checkpointer.reset();
  reader.Reset();
  checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  ExpectNothingLeft();
}

TEST_F(Nfs, AttemptWithAnOpenFileIsSwept) {
  auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  checkpointer.reset();
  const std::string attempt = AttemptName("0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11");
  std::filesystem::copy(root() + "/" + StepName(1), root() + "/" + attempt);
  UniqueFd straggler = OpenShard(attempt);

  checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  EXPECT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  EXPECT_FALSE(std::filesystem::exists(root() + "/" + attempt));
  EXPECT_THAT(SillyNames(), SizeIs(1));
  EXPECT_THAT(Warnings(), Contains(HasSubstr(".retired-")));
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2));
  checkpointer.reset();
  straggler.Reset();
  checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  ExpectNothingLeft();
}

TEST_F(Nfs, DisplacedWriterFailsAndLeavesNothing) {
  auto first = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(first, nullptr);
  ASSERT_EQ(SaveDurably(*first, 1), Status::Ok());
  Options taking = OptionsOnNfs();
  taking.take_over = true;

  auto second = OpenOrFail(taking, OnNfs());
  ASSERT_NE(second, nullptr);

  const Status late = SaveDurably(*first, 2);
  EXPECT_EQ(late.code(), StatusCode::kFailedPrecondition) << late;
  EXPECT_EQ(SaveDurably(*second, 2), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*second, Step(2)), Status::Ok());
  first.reset();
  second.reset();
  second = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(second, nullptr);
  ASSERT_EQ(second->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*second), ElementsAre(1, 2));
  ExpectNothingLeft();
}

TEST_F(Nfs, LostLockFailsEverySaveUntilTheRootIsOpenedAgain) {
  const auto first = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(first, nullptr);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*first, step), Status::Ok());
  ASSERT_GT(DropLock(root() + "/.lock"), 0);

  const Status lost = SaveDurably(*first, 3);

  EXPECT_EQ(lost.code(), StatusCode::kFailedPrecondition) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("the lock of " + root() + " was lost"));
  EXPECT_EQ(first->LastFailure(), lost);
  EXPECT_EQ(SaveDurably(*first, 4), lost);
  EXPECT_EQ(first->Remove(1), lost);
  EXPECT_THAT(ListedSteps(*first), ElementsAre(1, 2));
  EXPECT_THAT(Leftovers(root()), IsEmpty());

  const auto second = OpenOrFail(OptionsOnNfs(), OnNfs());
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(SaveDurably(*second, 3), Status::Ok());
  EXPECT_FALSE(SaveDurably(*first, 4).ok());
  EXPECT_EQ(SaveDurably(*second, 4), Status::Ok());
  ASSERT_EQ(second->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*second), ElementsAre(3, 4));
}

TEST_F(Nfs, RanksCommitAndAbandonTogether) {
  constexpr int kRanks = 3;
  const auto plan = FaultPlan::Make();
  auto ranks = OpenRanks(kRanks, OptionsOnNfs(), [&](int rank) { return OnNfs(rank == 1 ? plan : FaultPlan::Make()); });
  ASSERT_EQ(ranks.size(), 3U);
  const auto save_all = [&](std::uint64_t step) {
    std::vector<std::unique_ptr<Tensors>> states;
    std::vector<SaveHandle> saves;
    std::vector<Status> statuses;
    for (int rank = 0; rank < kRanks; ++rank) {
      states.push_back(SmallState(step, rank));
      saves.push_back(*ranks[static_cast<std::size_t>(rank)]->Save(step, states.back()->state()));
    }
    for (const SaveHandle& save : saves) statuses.push_back(save.WaitDurable(Soon()));
    return statuses;
  };
  ASSERT_THAT(save_all(1), Each(Status::Ok()));

  plan->Fail({.op = IoOp::kFsync, .path = "shard-", .nth = 1}, EIO);
  for (const Status& status : save_all(2)) EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
  plan->Clear();

  for (const std::uint64_t step : {3, 4}) EXPECT_THAT(save_all(step), Each(Status::Ok()));
  ASSERT_EQ(ranks[0]->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*ranks[1]), ElementsAre(3, 4));
  ranks.clear();
  // If one rank had its file open when another removed the attempt, the next sweep removes the folder.
  EXPECT_THAT(SillyNames(), IsEmpty());
  ExpectNothingLost(root(), 4, kRanks);
}

}  // namespace
}  // namespace cairn
