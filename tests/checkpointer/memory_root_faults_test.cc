// A root in memory whose process is killed at any operation, whose copies are damaged or of another run, and beside
// which the disk hangs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "checkpointer/memory_root_fixture.h"
#include "format/manifest.h"
#include "store/names.h"
#include "store/writer.h"
#include "support/forked.h"
#include "support/points.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(MemoryRootTest, ADamagedCopyIsPassedOverForTheDisksOfTheSameSave) {
  KeepAndDie({1, 2}, /*holds=*/false);
  FlipBit(InFolder(2));

  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  const auto state = SmallState(0);
  const Result<Restored> restored = checkpointer->Restore(Latest(), state->state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 2U);
  EXPECT_TRUE(Holds(*state, 2));
  EXPECT_THAT(restored->passed_over, ElementsAre(HasSubstr(memory_.path())));
  // The disk's still counts.
  EXPECT_EQ(checkpointer->stats().newest_step, 2U);
}

TEST_F(MemoryRootTest, ADamagedCopyThatIsTheOnlyOneIsNoReasonForAnOlderStep) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);
  FlipBit(InFolder(2));

  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  const auto state = SmallState(0);
  EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).status().code(), StatusCode::kCorrupt);
  const Result<Restored> older = checkpointer->Restore(Latest().FallBack(), state->state());
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ(older->step, 1U);
  EXPECT_TRUE(Holds(*state, 1));
}

TEST_F(MemoryRootTest, ADamagedManifestThatIsTheOnlyOneStays) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);
  std::ofstream(InFolder(2) + "/" + std::string(kManifestName)) << "{";

  for (int run = 0; run < 2; ++run) {
    const auto checkpointer = OpenOrFail(WithMemory());
    ASSERT_NE(checkpointer, nullptr);
    const auto state = SmallState(0);
    EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).status().code(), StatusCode::kCorrupt);
  }
}

TEST_F(MemoryRootTest, ADamagedManifestStaysWhereTheDiskHasItsStepOfBefore) {
  KeepAndDie({1, 2}, /*holds=*/false);
  Forked child([&](const Say&) {
    const auto plan = FaultPlan::Make();
    const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
    const auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan));
    if (!checkpointer.ok() || !RestoreAndCompare(**checkpointer, Latest()).ok()) return 2;
    const auto state = SmallState(2);
    const auto save = (*checkpointer)->Save(2, state->state(), {.if_exists = IfExists::kReplace});
    if (!save.ok() || !save->WaitKept(Soon()).ok()) return 3;
    ::kill(::getpid(), SIGKILL);
    return 4;
  });
  ASSERT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);
  const std::string manifest = InFolder(2) + "/" + std::string(kManifestName);
  fs::resize_file(manifest, fs::file_size(manifest) - 1);

  for (int run = 0; run < 2; ++run) {
    const auto checkpointer = OpenOrFail(WithMemory());
    ASSERT_NE(checkpointer, nullptr);
    const auto state = SmallState(0);
    EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).status().code(), StatusCode::kCorrupt);
  }
}

// The disk has a higher step, which training has left behind.
TEST_F(MemoryRootTest, ADamagedManifestStaysBelowStepsOfAnEarlierLine) {
  KeepAndDie({1, 2, 5}, /*holds=*/false);
  Forked child([&](const Say&) {
    const auto plan = FaultPlan::Make();
    const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
    const auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan));
    if (!checkpointer.ok() || !RestoreAndCompare(**checkpointer, Step(1)).ok()) return 2;
    if (!Keep(**checkpointer, 3).ok()) return 3;
    ::kill(::getpid(), SIGKILL);
    return 4;
  });
  ASSERT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);
  const std::string manifest = InFolder(3) + "/" + std::string(kManifestName);
  fs::resize_file(manifest, fs::file_size(manifest) - 1);

  for (int run = 0; run < 2; ++run) {
    const auto checkpointer = OpenOrFail(WithMemory());
    ASSERT_NE(checkpointer, nullptr);
    const auto state = SmallState(0);
    EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).status().code(), StatusCode::kCorrupt);
  }
}

TEST_F(MemoryRootTest, ADamagedManifestHidesNoNewerSaveOfAStepThatTheDiskHas) {
  KeepAndDie({1, 2}, /*holds=*/false);
  const std::string manifest = InFolder(2) + "/" + std::string(kManifestName);
  fs::resize_file(manifest, fs::file_size(manifest) - 1);
  {
    const auto checkpointer = OpenOrFail(WithMemory());
    ASSERT_NE(checkpointer, nullptr);
    EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok()) << "the disk has the same save";
  }
  // The same with a save of the step that the disk does not have.
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  const auto state = SmallState(2);
  const auto save = checkpointer->Save(2, state->state(), {.if_exists = IfExists::kReplace});
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());
  fs::resize_file(manifest, fs::file_size(manifest) - 1);

  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()).code(), StatusCode::kCorrupt);
  gate.Release();
}

TEST_F(MemoryRootTest, ADrainCommitsNothingThatHasChangedInMemory) {
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(Keep(*checkpointer, 1), Status::Ok());
  const auto save = Save(*checkpointer, 2);
  ASSERT_TRUE(save.ok());
  ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());
  FlipBit(InFolder(2));
  gate.Release();

  const Status status = save->WaitDurable(Soon());

  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("bytes 0 to 1048576"));
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok()) << "the failure was heard";
  // The next save is as good as ever.
  EXPECT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  checkpointer.reset();
  const auto reader = OpenOrFail(WithoutMemory());
  ASSERT_NE(reader, nullptr);
  EXPECT_THAT(ListedSteps(*reader), ElementsAre(1, 3));
}

TEST_F(MemoryRootTest, AnotherRootsFolderIsIgnored) {
  KeepAndDie({1}, /*holds=*/true);
  WriterRecord record = **ReadWriter(PathAt(Folder()));
  record.root = "00000000-0000-4000-8000-000000000000";
  std::ofstream(Folder() + "/.writer") << EncodeWriter(record);
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();

  const auto checkpointer = OpenOrFail(options);

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(messages.Seen(), Contains(HasSubstr("is of another root")));
  const auto state = SmallState(0);
  EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  EXPECT_EQ(checkpointer->stats().saves_kept, 0U);
  EXPECT_TRUE(fs::exists(InFolder(1))) << "it is left alone";
}

// As if the root's disk had been replaced by an older copy of it.
TEST_F(MemoryRootTest, OfARootThatWasPutBackNothingIsRead) {
  KeepAndDie({1}, /*holds=*/false);
  const fs::path writer = root_ + "/.writer";
  const fs::path before = dir_ / "writer";
  fs::copy_file(writer, before);
  KeepAndDie({2}, /*holds=*/true);
  fs::copy_file(before, writer, fs::copy_options::overwrite_existing);
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();

  // In the second run the numbers would not tell any more.
  for (int run = 0; run < 2; ++run) {
    const auto checkpointer = OpenOrFail(options);
    ASSERT_NE(checkpointer, nullptr);
    EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
    EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  }

  EXPECT_THAT(messages.Seen(), ElementsAre(HasSubstr("an older copy")));
  // It is not lost either.
  const std::string aside = Folder();
  EXPECT_THAT(aside, HasSubstr("-aside-"));
  EXPECT_THAT(messages.Seen().front(), HasSubstr(aside));
  EXPECT_TRUE(fs::exists(aside + "/" + StepName(2)));
}

// The numbers of lines meet again then.
TEST_F(MemoryRootTest, OfARootThatWasPutBackAndHasGoneOnNothingIsRead) {
  KeepAndDie({1}, /*holds=*/false);
  const fs::path writer = root_ + "/.writer";
  const fs::path before = dir_ / "writer";
  fs::copy_file(writer, before);
  KeepAndDie({20}, /*holds=*/true);
  fs::copy_file(before, writer, fs::copy_options::overwrite_existing);
  {
    const auto without = OpenOrFail(WithoutMemory());
    ASSERT_NE(without, nullptr);
    ASSERT_EQ(RestoreAndCompare(*without, Latest()), Status::Ok());
    ASSERT_EQ(SaveDurably(*without, 15), Status::Ok());
  }
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();

  const auto checkpointer = OpenOrFail(options);

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(messages.Seen(), ElementsAre(HasSubstr("step 20 of line")));
  EXPECT_THAT(NamesIn(memory_.path()), Contains(HasSubstr("-aside-")));
  const auto state = SmallState(0);
  EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).value().step, 15U);
}

// Put back as it was while the process ran, before that had begun another line.
TEST_F(MemoryRootTest, OfALineThatTheRootHasLostNothingIsRead) {
  const fs::path writer = root_ + "/.writer";
  const fs::path before = dir_ / "writer";
  Forked child([&](const Say&) {
    const auto plan = FaultPlan::Make();
    const auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan));
    if (!checkpointer.ok()) return 2;
    for (const std::uint64_t step : {1, 2}) {
      if (!SaveDurably(**checkpointer, step).ok()) return 3;
    }
    fs::copy_file(writer, before);
    const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
    if (!RestoreAndCompare(**checkpointer, Step(1)).ok() || !Keep(**checkpointer, 20).ok()) return 4;
    ::kill(::getpid(), SIGKILL);
    return 5;
  });
  ASSERT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);
  fs::copy_file(before, writer, fs::copy_options::overwrite_existing);
  for (const std::uint64_t step : {15, 16}) {
    const auto without = OpenOrFail(WithoutMemory());
    ASSERT_NE(without, nullptr);
    ASSERT_EQ(RestoreAndCompare(*without, Latest()), Status::Ok());
    ASSERT_EQ(SaveDurably(*without, step), Status::Ok());
  }

  const auto checkpointer = OpenOrFail(WithMemory());

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2, 15, 16));
}

// Longer than a record reaches back: each opening records in memory that what is there is the root's.
TEST_F(MemoryRootTest, ManyOpeningsThatSaveNothingLoseNothing) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);
  for (int run = 0; run < 30; ++run) KeepAndDie({}, /*holds=*/true);

  const auto checkpointer = OpenOrFail(WithMemory());

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2));
}

// They record nothing in memory.
TEST_F(MemoryRootTest, ManyOpeningsThatDoNotComeToTheMemoryLoseNothing) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);
  fs::permissions(Folder(), fs::perms::others_exec, fs::perm_options::add);
  for (int run = 0; run < 30; ++run) {
    EXPECT_EQ(Checkpointer::Open(WithMemory()).status().code(), StatusCode::kFailedPrecondition);
  }
  for (int run = 0; run < 30; ++run) EXPECT_TRUE(Checkpointer::Open(WithoutMemory()).ok());
  fs::permissions(Folder(), fs::perms::others_exec, fs::perm_options::remove);

  const auto checkpointer = OpenOrFail(WithMemory());

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2));
}

TEST_F(MemoryRootTest, AnotherRootsCheckpointIsIgnored) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);
  const TempDir other;
  const TempDir other_memory{"/dev/shm"};
  Options elsewhere = InMemory(other / "run", other_memory.path());
  {
    const auto checkpointer = OpenOrFail(elsewhere);
    ASSERT_NE(checkpointer, nullptr);
    ASSERT_EQ(SaveDurably(*checkpointer, 9), Status::Ok());
  }
  fs::copy(other / ("run/" + StepName(9)), InFolder(9));
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();

  const auto checkpointer = OpenOrFail(options);

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(messages.Seen(), Contains(HasSubstr("is ignored")));
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2));
  EXPECT_EQ(checkpointer->Restore(Step(9), SmallState(0)->state()).status().code(), StatusCode::kNotFound);
  const auto state = SmallState(0);
  const Result<Restored> restored = checkpointer->Restore(Latest(), state->state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_TRUE(Holds(*state, 2));
}

TEST_F(MemoryRootTest, AnOlderLineIsNotTakenForTheNewest) {
  KeepAndDie({100}, /*holds=*/true);
  {
    const auto without = OpenOrFail(WithoutMemory());
    ASSERT_NE(without, nullptr);
    ASSERT_EQ(SaveDurably(*without, 5), Status::Ok());
  }
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();

  const auto checkpointer = OpenOrFail(options);

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(messages.Seen(), Contains(HasSubstr("older than step 5")));
  const auto state = SmallState(0);
  const Result<Restored> restored = checkpointer->Restore(Latest(), state->state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 5U);
  EXPECT_EQ(SaveDurably(*checkpointer, 6), Status::Ok());
}

// The disk got step 2 alone, which is newer than what is in memory, but of the same line.
TEST_F(MemoryRootTest, WhatIsOlderAsItMustBeIsNotWarnedOf) {
  Forked child([&](const Say&) {
    const auto checkpointer = Checkpointer::Open(WithMemory());
    if (!checkpointer.ok() || !SaveDurably(**checkpointer, 1).ok()) return 2;
    if (!SaveDurably(**checkpointer, 2, {.pin = true}).ok()) return 3;
    ::kill(::getpid(), SIGKILL);
    return 4;
  });
  ASSERT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();

  const auto checkpointer = OpenOrFail(options);

  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(messages.Seen(), IsEmpty());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(2)), Status::Ok());
}

TEST_F(MemoryRootTest, ADamagedCopyGoesWhenANewerOneIsKept) {
  KeepAndDie({1}, /*holds=*/true);
  std::ofstream(InFolder(1) + "/" + std::string(kManifestName)) << "{";
  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  FlipBit(InFolder(2));
  ASSERT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());

  ASSERT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());

  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_FALSE(fs::exists(InFolder(1)));
  EXPECT_FALSE(fs::exists(InFolder(2)));
  EXPECT_EQ(ShardsIn(Folder()).first, 5U) << "no slot is lost";
}

class MemoryRootHangs : public MemoryRootTest {
 protected:
  MemoryRootHangs() : MemoryRootTest("/dev/shm") {}  // Else the real disk may stall, too.
  [[nodiscard]] Options Stalling() {
    Options options = WithMemory();
    options.stall_timeout = std::chrono::seconds(1);
    options.on_event = messages_.callback();
    return options;
  }
  [[nodiscard]] FaultGate HoldDisk() const { return plan_->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"}); }

  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  Messages messages_;
};

TEST_F(MemoryRootHangs, AHungDiskHoldsUpNoKeptSave) {
  const FaultGate gate = HoldDisk();
  const auto checkpointer = OpenOrFail(Stalling(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  const auto first = Save(*checkpointer, 1);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->WaitDurable(Soon()).detail(), StatusDetail::kDiskHangs);
  EXPECT_EQ(first->stats().phase, SavePhase::kKept);
  EXPECT_EQ(first->WaitKept(), Status::Ok());

  for (std::uint64_t step = 2; step <= 4; ++step) ASSERT_EQ(Keep(*checkpointer, step), Status::Ok());
  const SaveHandle newest = Save(*checkpointer, 5).value();
  ASSERT_EQ(newest.WaitKept(Soon()), Status::Ok());

  EXPECT_EQ(checkpointer->Fence({}, Soon()), Status::Ok());
  const Status idle = checkpointer->Drain();
  EXPECT_EQ(idle.detail(), StatusDetail::kDiskHangs);
  EXPECT_THAT(idle.message(), HasSubstr("step 5, kept in memory, waits for the disk"));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(5)), Status::Ok());
  plan_->Clear();
  gate.Release();
  EXPECT_EQ(newest.WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->stats().newest_step, 5U);
}

// After a restore in mid-run: what is kept of it must have a number that the disk has.
TEST_F(MemoryRootHangs, AKeptSaveFailsIfItsLineCannotBeBegun) {
  const auto checkpointer = OpenOrFail(Stalling(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  ASSERT_EQ(RestoreAndCompare(*checkpointer, Step(1)), Status::Ok());
  const FaultGate gate = plan_->Hold({.op = IoOp::kRename, .path = root_ + "/.writer"});

  const Status status = Keep(*checkpointer, 2);

  EXPECT_EQ(status.detail(), StatusDetail::kDiskHangs);
  EXPECT_THAT(status.message(), HasSubstr("its line could not be begun on the disk"));
  const auto state = SmallState(0);
  EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).value().step, 2U);
  EXPECT_TRUE(Holds(*state, 2)) << "that of before";
  plan_->Clear();
  gate.Release();
  EXPECT_NE(checkpointer->stats().memory_root, "");
  Status saved = SaveDurably(*checkpointer, 3);
  while (saved.detail() == StatusDetail::kDiskHangs) saved = SaveDurably(*checkpointer, 3);  // It answers soon.
  EXPECT_EQ(saved, Status::Ok());
  EXPECT_EQ(checkpointer->stats().saves_kept, 3U);
}

TEST_F(MemoryRootHangs, CloseLeavesWhatTheDiskDoesNotTake) {
  const FaultGate gate = HoldDisk();
  auto checkpointer = OpenOrFail(Stalling(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(Keep(*checkpointer, step), Status::Ok());

  checkpointer.reset();  // Not only at its deadline.

  EXPECT_THAT(messages_.Seen(), Contains(HasSubstr("step 2 is kept in memory alone")));
  // The locks of both places are released once the disk answers.
  plan_->Clear();
  gate.Release();
  Options again = WithMemory();
  again.open_timeout = std::chrono::minutes(1);
  const auto next = OpenOrFail(again);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(RestoreAndCompare(*next, Step(2)), Status::Ok());
  EXPECT_EQ(SaveDurably(*next, 3), Status::Ok());
  EXPECT_EQ(next->stats().saves_kept, 1U);
}

TEST_F(MemoryRootTest, AKillWhileItIsRemovedLeavesNothingThatLooksDamaged) {
  for (std::uint64_t k = 1;; ++k) {
    SCOPED_TRACE(testing::Message() << "killed before operation " << k << " of the removal");
    Forked child([&](const Say&) {
      const auto plan = FaultPlan::Make();
      auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan));
      if (!checkpointer.ok()) return 2;
      if (k > 1 && !RestoreAndCompare(**checkpointer, Latest()).ok()) return 3;
      if (!Keep(**checkpointer, k).ok() || !(*checkpointer)->Drain(Soon()).ok()) return 4;
      plan->KillBefore({.path = memory_.path(), .nth = k});
      checkpointer->reset();
      return 0;
    });
    const Forked::End end = child.Wait(Soon());
    for (const bool read_only : {true, false}) {
      Options options = WithMemory();
      options.read_only = read_only;
      const auto checkpointer = OpenOrFail(options);
      ASSERT_NE(checkpointer, nullptr);
      const auto state = SmallState(0);
      const Result<Restored> restored = checkpointer->Restore(Latest(), state->state());
      ASSERT_TRUE(restored.ok()) << restored.status();
      ASSERT_EQ(restored->step, k);
    }
    ASSERT_THAT(NamesIn(memory_.path()), IsEmpty());
    if (end.how == Forked::How::kKilled) continue;
    ASSERT_EQ(end.how, Forked::How::kExited);
    ASSERT_EQ(end.value, 0);
    EXPECT_GT(k, 10U);
    break;
  }
}

// Like a loader's worker, which lives long.
TEST_F(MemoryRootTest, AForkedChildHoldsNoSlot) {
  const auto plan = FaultPlan::Make();
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  const FaultGate gate = plan->Hold({.op = IoOp::kWrite, .path = memory_.path()});
  const auto state = SmallState(1);
  const auto save = checkpointer->Save(1, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  const Forked child([](const Say&) { return ::pause(); });

  gate.Release();
  ASSERT_EQ(save->WaitDurable(Soon()), Status::Ok());
  for (std::uint64_t step = 2; step <= 12; ++step) ASSERT_EQ(Keep(*checkpointer, step), Status::Ok());
  EXPECT_EQ(checkpointer->stats().not_recycled_reason, "");
  EXPECT_EQ(ShardsIn(Folder()).first, 5U);
}

TEST_F(MemoryRootTest, NothingIsKeptInAFolderThatWasMoved) {
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();
  const auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  fs::rename(Folder(), memory_.path() + "/moved");

  EXPECT_EQ(Keep(*checkpointer, 2).code(), StatusCode::kFailedPrecondition);

  static_cast<void>(checkpointer->Drain(Soon()));  // Until the memory's engine has done with it.
  EXPECT_THAT(messages.Seen(), Contains(HasSubstr("was moved to")));
  EXPECT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
  EXPECT_EQ(checkpointer->stats().memory_root, "");
}

TEST_F(MemoryRootTest, AFailureOfTheMemoryLeavesTheDisk) {
  Messages messages;
  const auto plan = FaultPlan::Make();
  Options options = WithMemory();
  options.on_event = messages.callback();
  const auto checkpointer = OpenOrFail(options, Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  plan->Fail({.op = IoOp::kRename, .path = memory_.path() + "/cairn-", .nth = 1}, EIO);

  EXPECT_FALSE(SaveDurably(*checkpointer, 2).ok());

  EXPECT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(ShardsIn(Folder()).first, 1U) << "its slots are freed, but for what is kept";
  EXPECT_THAT(messages.Seen(), Contains(HasSubstr("saves go to the disk alone")));
  EXPECT_EQ(checkpointer->stats().memory_root, "");
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

// Kills at every operation of both roots.

// Two saves in flight, some that are left out of the disk or not, and a restore.
int RunKept(const std::string& root, const std::string& memory, const std::shared_ptr<FaultPlan>& plan,
            const Say& say) {
  Options options = InMemory(root, memory);
  options.keep_last = 2;
  options.on_event = SayOutcomes(say);
  const auto checkpointer = Checkpointer::Open(options, Through(plan));
  if (!checkpointer.ok()) return 2;
  std::vector<std::unique_ptr<Tensors>> states;
  const auto save = [&](std::uint64_t step) {
    states.push_back(SmallState(step));
    return (*checkpointer)->Save(step, states.back()->state()).ok();
  };
  for (std::uint64_t step = 11; step <= 14; ++step) {
    if (!save(step)) return 3;
  }
  if (!(*checkpointer)->Drain(Soon()).ok()) return 4;
  if (!RestoreAndCompare(**checkpointer, Latest()).ok()) return 5;
  for (std::uint64_t step = 15; step <= 16; ++step) {
    if (!save(step)) return 6;
  }
  return (*checkpointer)->Drain(Soon()).ok() ? 0 : 7;
}

TEST(MemoryRootCrash, LosesNothingKeptAtAnyOperation) {
  const TempDir dir;
  const TempDir memory{"/dev/shm"};
  const Points points = SomePoints(7);
  for (const bool before : {true, false}) {
    for (std::uint64_t k = 1 + points.first;; k += points.stride) {
      SCOPED_TRACE(testing::Message() << "killed " << (before ? "before" : "after") << " operation " << k);
      const std::string root = dir / std::to_string(k);
      Forked child([&](const Say& say) {
        const auto plan = FaultPlan::Make();
        before ? plan->KillBefore({.nth = k}) : plan->KillAfter({.nth = k});
        return RunKept(root, memory.path(), plan, say);
      });
      const Forked::End end = child.Wait(Soon());
      ASSERT_NE(end.how, Forked::How::kTimedOut);
      if (end.how == Forked::How::kExited) {
        ASSERT_EQ(end.value, 0);
        ASSERT_GT(k, 150U);
        break;
      }
      const std::optional<std::uint64_t> kept = NewestOf(end.lines, "kept ");
      const std::optional<std::uint64_t> durable = NewestOf(end.lines, "durable ");
      {
        const auto checkpointer = OpenOrFail(InMemory(root, memory.path()));
        ASSERT_NE(checkpointer, nullptr);
        ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
        const std::optional<std::uint64_t> newest = checkpointer->stats().newest_step;
        ASSERT_TRUE(!kept || newest >= kept) << "the disk has it now";
        for (const std::uint64_t step : ListedSteps(*checkpointer)) {
          const Status read = RestoreAndCompare(*checkpointer, Step(step));
          // What is not the newest in memory may go now.
          ASSERT_TRUE(read.ok() || (read.code() == StatusCode::kNotFound && step < newest)) << read;
        }
        const auto state = SmallState(0);
        const Result<Restored> restored = checkpointer->Restore(Latest(), state->state());
        ASSERT_TRUE(restored.ok() || !kept) << restored.status();
        const std::uint64_t found = restored.ok() ? restored->step : 0;
        ASSERT_GE(found, kept.value_or(0));
        ASSERT_EQ(SaveDurably(*checkpointer, found + 1), Status::Ok());
        ASSERT_EQ(checkpointer->stats().saves_kept, 1U) << "with its slots of before";
      }
      ExpectNothingLost(root, durable);
      ASSERT_THAT(NamesIn(memory.path()), IsEmpty());
      fs::remove_all(root);
    }
    fs::remove_all(dir.path());
    fs::create_directory(dir.path());
  }
}

}  // namespace
}  // namespace cairn
