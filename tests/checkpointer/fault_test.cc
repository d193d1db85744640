// One operation of a save fails: the save reports it, earlier checkpoints stay, and the next save works.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "cairn/cairn.h"
#include "support/points.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A root with step 1, opened through a plan that records only later operations.
class Fault : public testing::Test {
 protected:
  void SetUp() override {
    Options options = SmallOptions(dir_ / "run");
    options.on_event = [this](const Event& event) {
      MutexLock lock(mutex_);
      events_.push_back(event);
    };
    checkpointer_ = OpenOrFail(options, Through(plan_));
    ASSERT_NE(checkpointer_, nullptr);
    ASSERT_EQ(SaveDurably(*checkpointer_, 1), Status::Ok());
  }

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] std::vector<Event> EventsOf(EventKind kind, std::uint64_t step) {
    MutexLock lock(mutex_);
    std::vector<Event> found;
    for (const Event& event : events_) {
      if (event.kind == kind && event.step == step) found.push_back(event);
    }
    return found;
  }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  Mutex mutex_;
  std::vector<Event> events_ CAIRN_GUARDED_BY(mutex_);
  std::unique_ptr<Checkpointer> checkpointer_;
};

// Every operation of a save, one after the other, with every error; also of one that has linked what is frozen, and
// writes it anew because it differs.
class FaultAtEach : public Fault, public testing::WithParamInterface<std::tuple<int, bool>> {
 protected:
  FaultAtEach() { frozen_.version = std::nullopt; }
  [[nodiscard]] int error() const { return std::get<0>(GetParam()); }
  Status SaveAndWait(std::uint64_t step) {
    if (!std::get<1>(GetParam())) return SaveDurably(*checkpointer_, step);
    frozen_.Fill(step, kSecondBlock);
    const auto small = SmallState(step);
    const auto save = checkpointer_->Save(step, frozen_.With(small->state()));
    return save.ok() ? save->WaitDurable(Soon()) : save.status();
  }
  void ExpectSaved(std::uint64_t step) {
    ASSERT_EQ(RestoreAndCompare(*checkpointer_, Step(step)), Status::Ok());
    if (!std::get<1>(GetParam())) return;
    FrozenTensor read;
    ASSERT_TRUE(ReadAlone(*checkpointer_, Step(step), read.With({}), {.resume = false}).ok());
    EXPECT_TRUE(read == frozen_);
  }

 private:
  static constexpr std::size_t kSecondBlock = (1U << 20) / sizeof(std::uint64_t);
  FrozenTensor frozen_;
};

TEST_P(FaultAtEach, FailsTheSaveAndTheNextOneWorks) {
  std::uint64_t step = 2;
  std::uint64_t operations = 0;
  const Points points = SomePoints(3);
  ASSERT_EQ(SaveAndWait(step++), Status::Ok());
  for (std::uint64_t k = 1 + points.first;; k += points.stride) {
    plan_->Clear();
    const std::size_t before = plan_->Seen().size();
    plan_->Fail({.nth = k}, error());

    const Status status = SaveAndWait(step);

    ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
    plan_->Clear();
    operations = plan_->Seen().size() - before;
    if (operations < k) {
      ASSERT_TRUE(status.ok()) << status;
      break;
    }
    const SeenOperation hit = plan_->Seen()[before + k - 1];
    SCOPED_TRACE(testing::Message() << IoOpName(hit.op) << " of " << hit.path << " " << hit.path2 << ": " << status);
    if (status.ok()) {
      // After the commit, or an O_DIRECT open whose error means that it is unsupported.
      EXPECT_EQ(EventsOf(EventKind::kSaveDurable, step).size(), 1U);
    } else {
      EXPECT_EQ(checkpointer_->LastFailure(), status);
      const std::vector<Event> failed = EventsOf(EventKind::kSaveFailed, step);
      ASSERT_EQ(failed.size(), 1U);
      EXPECT_EQ(failed[0].status, status);
      EXPECT_EQ(failed[0].severity, Severity::kError);
      EXPECT_THAT(status.message(), HasSubstr(std::generic_category().message(error())));
      EXPECT_THAT(status.message(), AnyOf(HasSubstr(root()), HasSubstr("descriptor")));
    }
    // A failed fsync of the root may leave the step, so continue with another one.
    ++step;
    ASSERT_EQ(SaveAndWait(step), Status::Ok());
    ExpectSaved(step);
    ++step;
    if (HasFailure()) return;
  }
  EXPECT_GT(operations, 15U);
  checkpointer_.reset();
  ExpectNothingLost(root(), step);
}

INSTANTIATE_TEST_SUITE_P(Errno, FaultAtEach,
                         testing::Combine(testing::Values(EIO, ENOSPC, EAGAIN, EINTR, ECANCELED), testing::Bool()),
                         [](const auto& test) {
                           const std::string kind = std::get<1>(test.param) ? "OfWhatIsFrozen" : "";
                           return std::string(::strerrorname_np(std::get<0>(test.param))) + kind;
                         });

// The operation takes effect but reports an error.
TEST_F(Fault, LosesNothingIfAnOperationSucceedsButReportsAnError) {
  std::uint64_t step = 2;
  const Points points = SomePoints(3);
  for (std::uint64_t k = 1 + points.first;; k += points.stride) {
    plan_->Clear();
    const std::size_t before = plan_->Seen().size();
    plan_->FailAfter({.nth = k}, EIO);

    const Status status = SaveDurably(*checkpointer_, step);

    ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
    plan_->Clear();
    if (plan_->Seen().size() - before < k) break;
    const SeenOperation hit = plan_->Seen()[before + k - 1];
    SCOPED_TRACE(testing::Message() << IoOpName(hit.op) << " of " << hit.path << ": " << status);
    ++step;
    ASSERT_EQ(SaveDurably(*checkpointer_, step), Status::Ok());
    ASSERT_EQ(RestoreAndCompare(*checkpointer_, Step(step)), Status::Ok());
    ++step;
  }
  checkpointer_.reset();
  ExpectNothingLost(root(), step);
}

TEST_F(Fault, ResumesAShortWriteAtAnyLength) {
  std::uint64_t step = 2;
  for (const std::uint64_t bytes : {1ULL, 4095ULL, 4096ULL, 4097ULL, 100'000ULL, (1ULL << 20) - 1}) {
    for (const std::uint64_t nth : {1ULL, 2ULL}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes of write " << nth);
      plan_->Clear();
      plan_->Shorten({.op = IoOp::kWrite, .path = "shard-", .nth = nth}, bytes);
      ASSERT_EQ(SaveDurably(*checkpointer_, step), Status::Ok());
      ASSERT_EQ(RestoreAndCompare(*checkpointer_, Step(step)), Status::Ok());
      ++step;
    }
  }
}

TEST_F(Fault, FailsASaveWithoutProgress) {
  plan_->Shorten({.op = IoOp::kWrite, .path = "shard-"}, 0);

  const Status status = SaveDurably(*checkpointer_, 2);

  EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
  plan_->Clear();
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1));
  EXPECT_EQ(SaveDurably(*checkpointer_, 3), Status::Ok());
}

// The ring itself breaks during a save.
TEST_F(Fault, FailsEverySaveOnABrokenRing) {
  if (checkpointer_->stats().io_queue != "io_uring") GTEST_SKIP() << checkpointer_->stats().io_queue_reason;
  plan_->CallBefore({.op = IoOp::kWrite, .path = "shard-", .nth = 2}, [](const SeenOperation&) {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry, gone);
      if (target == "anon_inode:[io_uring]") ::dup2(nothing, std::stoi(entry.path().filename()));
    }
    ::close(nothing);
  });

  const Status status = SaveDurably(*checkpointer_, 2);
  const Status next = SaveDurably(*checkpointer_, 3);

  EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
  EXPECT_EQ(next.code(), StatusCode::kIoError) << next;
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  checkpointer_.reset();
  ExpectNothingLost(root(), 1);
}

struct FsyncCase {
  friend void PrintTo(const FsyncCase& one, std::ostream* out) { *out << one.name; }

  std::string name;
  // A part of the fsynced path.
  std::string path;
  // Which fsync of that path fails.
  std::uint64_t nth;
  // How many fsyncs of it there are: parallel ones have begun.
  std::uint64_t all;
};

class FailedFsync : public Fault, public testing::WithParamInterface<FsyncCase> {};

TEST_P(FailedFsync, FailsTheSaveAndIsNotRetried) {
  const FaultMatch match{.op = IoOp::kFsync, .path = GetParam().path, .nth = GetParam().nth};
  const std::size_t before = plan_->Count(match);
  plan_->Fail(match, EIO);

  const Status status = SaveDurably(*checkpointer_, 2);

  EXPECT_EQ(status.code(), StatusCode::kIoError) << status;
  EXPECT_THAT(status.message(), HasSubstr("fsync"));
  EXPECT_EQ(plan_->Count(match) - before, GetParam().all);
  EXPECT_EQ(checkpointer_->LastFailure(), status);
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1));
  EXPECT_THAT(Leftovers(root()), testing::IsEmpty());
  plan_->Clear();
  EXPECT_EQ(SaveDurably(*checkpointer_, 2), Status::Ok());
}

INSTANTIATE_TEST_SUITE_P(Of, FailedFsync,
                         testing::Values(FsyncCase{"Shard", "shard-00000", 1, 1},
                                         FsyncCase{"Manifest", "manifest.json", 1, 1},
                                         // Between the manifest's and the shard's, whose paths match too.
                                         FsyncCase{"Folder", ".attempt-", 2, 3}),
                         [](const auto& test) { return test.param.name; });

/// Fails the fsync of the root.
class FailedRootFsync : public Fault {
 protected:
  /// Fails the fsync that follows the next rename to a step.
  void FailNextRootFsync() {
    plan_->CallAfter({.op = IoOp::kRename, .path = "step-", .nth = 1},
                     [this](const SeenOperation&) { plan_->Fail({.op = IoOp::kFsync, .nth = 1}, EIO); });
  }
};

TEST_F(FailedRootFsync, IsUnknownAndNeverDurable) {
  FailNextRootFsync();

  const auto state = SmallState(2);
  const auto save = checkpointer_->Save(2, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  const Status status = save->WaitDurable(Soon());

  EXPECT_EQ(status.code(), StatusCode::kUnknownOutcome) << status;
  EXPECT_THAT(status.message(), AnyOf(HasSubstr("step 2")));
  EXPECT_EQ(save->stats().phase, SavePhase::kFailed);
  EXPECT_EQ(checkpointer_->LastFailure(), status);
  EXPECT_TRUE(EventsOf(EventKind::kSaveDurable, 2).empty());
  // It is intact in any case.
  EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(1)), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(2)), Status::Ok());
}

TEST_F(FailedRootFsync, DoesNotCountTheStepForRetention) {
  checkpointer_.reset();
  Options options = SmallOptions(root());
  options.keep_last = 1;
  checkpointer_ = OpenOrFail(options, Through(plan_));
  FailNextRootFsync();

  ASSERT_EQ(SaveDurably(*checkpointer_, 2).code(), StatusCode::kUnknownOutcome);
  ASSERT_TRUE(checkpointer_->Drain(Soon()).ok());

  EXPECT_THAT(ListedSteps(*checkpointer_), Contains(1));
  plan_->Clear();
  EXPECT_EQ(SaveDurably(*checkpointer_, 3), Status::Ok());
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), testing::AllOf(Contains(3), testing::Not(Contains(1))));
}

// After "unknown" the step may be saved again.
TEST_F(FailedRootFsync, LetsTheStepBeSavedAgain) {
  FailNextRootFsync();
  ASSERT_EQ(SaveDurably(*checkpointer_, 2).code(), StatusCode::kUnknownOutcome);
  plan_->Clear();

  EXPECT_EQ(SaveDurably(*checkpointer_, 2, {}, 7), Status::Ok());

  EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(2), 7), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 2));
}

// Retention's operations fail: the save is still durable, and the removal is repeated next time.
TEST_F(Fault, LosesNothingIfARemovalFailsAtAnyOperation) {
  checkpointer_.reset();
  Options options = SmallOptions(root());
  options.keep_last = 1;
  checkpointer_ = OpenOrFail(options, Through(plan_));
  std::uint64_t step = 2;
  std::uint64_t operations = 0;
  const Points points = SomePoints(3);
  for (std::uint64_t k = 1 + points.first;; k += points.stride) {
    plan_->Clear();
    std::size_t before = 0;
    // Operations after the committing fsync belong to the removal.
    plan_->CallAfter({.op = IoOp::kRename, .path = "step-", .nth = 1}, [&](const SeenOperation&) {
      before = plan_->Seen().size() + 1;
      plan_->Fail({.nth = k + 1}, EIO);
    });
    ASSERT_EQ(SaveDurably(*checkpointer_, step), Status::Ok());
    ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
    plan_->Clear();
    operations = plan_->Seen().size() - before;
    ASSERT_THAT(ListedSteps(*checkpointer_), Contains(step));
    ASSERT_EQ(RestoreAndCompare(*checkpointer_, Step(step)), Status::Ok());
    ++step;
    // Restoring the newest begins no new line.
    ASSERT_EQ(SaveDurably(*checkpointer_, step), Status::Ok());
    ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
    ASSERT_THAT(ListedSteps(*checkpointer_), ElementsAre(step));
    ++step;
    if (operations < k) break;
  }
  EXPECT_GT(operations, 6U);
  checkpointer_.reset();
  ExpectNothingLost(root(), step - 1);
}

TEST_F(Fault, FailsOneOfThreeSavesInFlightAndCommitsTheOthers) {
  plan_->Fail({.op = IoOp::kWrite, .path = "shard-", .nth = 4}, EIO);
  std::vector<std::unique_ptr<Tensors>> states;
  std::vector<SaveHandle> saves;
  for (std::uint64_t step = 2; step <= 4; ++step) {
    states.push_back(SmallState(step));
    const auto save = checkpointer_->Save(step, states.back()->state());
    ASSERT_TRUE(save.ok()) << save.status();
    saves.push_back(*save);
  }

  int failed = 0;
  for (const SaveHandle& save : saves) {
    const Status status = save.WaitDurable(Soon());
    ASSERT_NE(status.code(), StatusCode::kDeadlineExceeded);
    if (!status.ok()) ++failed;
    if (status.ok()) {
      EXPECT_EQ(RestoreAndCompare(*checkpointer_, Step(save.step())), Status::Ok());
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(checkpointer_->stats().saves_failed, 1U);
  checkpointer_.reset();
  ExpectNothingLost(root(), 3);
}

}  // namespace
}  // namespace cairn
