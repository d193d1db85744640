// How NFS differs from a local disk (see NfsDouble): nothing is lost, misreported, or left for good.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
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

using ::testing::AllOf;
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
  /// Without those of a slow disk.
  [[nodiscard]] std::vector<std::string> Warnings() {
    MutexLock lock(mutex_);
    std::erase_if(warnings_, [](const std::string& one) { return one.find("has waited for the disk") != one.npos; });
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

// The file that the next save links is open: it must not hold up the removal of any step that has it. A link whose
// reply was lost is found to be there; one that is refused is a copy.
TEST_F(Nfs, LinksWhatIsFrozen) {
  const auto plan = FaultPlan::Make();
  auto checkpointer = OpenOrFail(OptionsOnNfs(), OnNfs(plan));
  ASSERT_NE(checkpointer, nullptr);
  FrozenTensor frozen;
  frozen.Fill(5);
  const auto save = [&](std::uint64_t step) {
    const auto small = SmallState(step);
    const auto one = checkpointer->Save(step, frozen.With(small->state()));
    ASSERT_TRUE(one.ok()) << one.status();
    ASSERT_EQ(one->WaitDurable(Soon()), Status::Ok());
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  };
  save(1);
  save(2);
  plan->FailAfter({.op = IoOp::kLink, .nth = 1}, EEXIST);
  save(3);
  EXPECT_THAT(Warnings(), IsEmpty());
  plan->Fail({.op = IoOp::kLink, .nth = 1}, EMLINK);
  save(4);
  save(5);

  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 4, 5));
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("step 4: what is frozen was copied")));
  ExpectFrozenIn(root(), 5);
  checkpointer.reset();
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

// Two clients. What one makes the other sees late.
class NfsLate : public Nfs {
 protected:
  static constexpr std::size_t kLooks = 4;  // Two at once, and one after each pause.

  void OpenBoth(std::chrono::nanoseconds group_timeout) {
    Options options = OptionsOnNfs();
    options.group_timeout = group_timeout;
    ranks_ = OpenRanks(2, options, [&](int rank) {
      Wiring wiring;
      wiring.wrap_queue = [client = clients_[rank], plan = plans_[rank]](IoQueueFactory inner) {
        return plan->Wrap(client->Wrap(std::move(inner)));
      };
      return wiring;
    });
    ASSERT_EQ(ranks_.size(), 2U);
    for (const auto& rank : ranks_) AbandonAtOnce(*rank);
  }
  std::vector<SaveHandle> StartBoth(std::uint64_t step) {
    std::vector<SaveHandle> saves;
    for (int rank = 0; rank < 2; ++rank) {
      states_.push_back(SmallState(step, rank));
      saves.push_back(*ranks_[static_cast<std::size_t>(rank)]->Save(step, states_.back()->state()));
    }
    return saves;
  }
  static std::vector<Status> WaitBoth(const std::vector<SaveHandle>& saves) {
    return {saves[0].WaitDurable(Soon()), saves[1].WaitDurable(Soon())};
  }
  /// That `rank` looks for a name again and again.
  [[nodiscard]] bool Looks(int rank) const { return clients_[rank]->WaitLooks(kLooks, Soon()) >= kLooks; }
  [[nodiscard]] static std::string NotYet(const std::string& name, int rank) {
    return fmt::format("{} is not visible yet on rank {} (", name, rank);
  }

  struct Late {
    int rank;
    std::string part;
    std::string maker;
  };
  /// What rank 0 must open of rank 1, and rank 1 of rank 0.
  static std::vector<Late> All() {
    return {{1, ".attempt-", "which rank 0 has made,"}, {0, ShardName(1), "which rank 1 has written,"}};
  }

  std::array<std::shared_ptr<NfsDouble>, 2> clients_{NfsDouble::Make(), NfsDouble::Make()};
  std::array<std::shared_ptr<FaultPlan>, 2> plans_{FaultPlan::Make(), FaultPlan::Make()};
  std::vector<std::unique_ptr<Tensors>> states_;
  std::vector<std::unique_ptr<Checkpointer>> ranks_;
};

TEST_F(NfsLate, NameSeenLateDelaysTheSaveAndIsReportedOnce) {
  OpenBoth(std::chrono::hours(1));
  std::uint64_t step = 0;
  for (const Late& late : All()) {
    clients_[late.rank]->HideLate(late.part);

    const std::vector<SaveHandle> saves = StartBoth(++step);
    const bool looked = Looks(late.rank);
    clients_[late.rank]->Show();

    EXPECT_THAT(WaitBoth(saves), Each(Status::Ok()));
    EXPECT_TRUE(looked);
    EXPECT_THAT(Warnings(), SizeIs(step));
    EXPECT_THAT(Warnings().back(),
                AllOf(HasSubstr(late.part), HasSubstr(NotYet(late.maker, late.rank)), HasSubstr("); looking for it")));
  }
  EXPECT_THAT(ListedSteps(*ranks_[0]), ElementsAre(1, 2));
}

TEST_F(NfsLate, NameNeverSeenFailsTheSaveAfterTheDeadline) {
  OpenBoth(std::chrono::seconds(1));
  std::uint64_t step = 0;
  for (const Late& late : All()) {
    clients_[late.rank]->HideLate(late.part);

    const std::vector<Status> statuses = WaitBoth(StartBoth(++step));

    clients_[late.rank]->Show();
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(
          status.message(),
          AllOf(HasSubstr(late.part), HasSubstr(late.maker + fmt::format(" is not visible on rank {} (", late.rank)),
                HasSubstr(") after "), HasSubstr(": either the filesystem shows new names late"),
                HasSubstr("is a mount missing")));
    }
    EXPECT_THAT(WaitBoth(StartBoth(++step)), Each(Status::Ok()));
  }
}

TEST_F(NfsLate, FailureOfRank0EndsTheLooking) {
  OpenBoth(std::chrono::hours(1));
  for (const Late& late : All()) {
    clients_[late.rank]->HideLate(late.part);
    const FaultGate writes = plans_[0]->Hold({.op = IoOp::kWrite, .path = ShardName(0)});
    const std::vector<SaveHandle> saves = StartBoth(1);
    const bool looked = Looks(late.rank);

    saves[0].Cancel();

    EXPECT_EQ(saves[1].WaitDurable(Soon()).code(), StatusCode::kCancelled);
    EXPECT_TRUE(looked);
    writes.Release();
    EXPECT_EQ(saves[0].WaitDurable(Soon()).code(), StatusCode::kCancelled);
    clients_[late.rank]->Show();
  }
  EXPECT_THAT(WaitBoth(StartBoth(1)), Each(Status::Ok()));
}

TEST_F(NfsLate, ClosingEndsTheLooking) {
  for (const Late& late : All()) {
    OpenBoth(std::chrono::hours(1));
    clients_[late.rank]->HideLate(late.part);
    const std::vector<SaveHandle> saves = StartBoth(1);
    const bool looked = Looks(late.rank);

    ranks_[static_cast<std::size_t>(late.rank)].reset();

    EXPECT_TRUE(looked);
    for (const Status& status : WaitBoth(saves)) EXPECT_FALSE(status.ok());
    ranks_.clear();
    clients_[late.rank]->Show();
  }
}

TEST_F(NfsLate, RootSeenLateDelaysTheOpening) {
  clients_[1]->HideLate(root());
  std::thread shows([this] {
    EXPECT_EQ(clients_[1]->WaitLooks(2, Soon()), 2U);
    clients_[1]->Show();
  });

  OpenBoth(std::chrono::hours(1));

  shows.join();
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr(NotYet(root() + "/.writer, which rank 0 has written,", 1))));
}

}  // namespace
}  // namespace cairn
