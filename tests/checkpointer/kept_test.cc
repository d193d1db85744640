// Frozen tensors: written once, linked into the checkpoints that follow, and written again wherever they may have
// changed.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "checkpointer/kept_run.h"
#include "engine/kept_file.h"
#include "support/forked.h"
#include "support/small_run.h"
#include "testing/local_group.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(Kept, IsWrittenOnceAndLinkedIntoTheNext) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  const std::uint64_t first = written_;

  ASSERT_EQ(Save(2), Status::Ok());
  const std::uint64_t second = written_;
  ASSERT_EQ(Save(3), Status::Ok());

  EXPECT_GT(first - second, kFrozenBytes);
  EXPECT_LT(first - second, kFrozenBytes + 3 * 4096);
  EXPECT_EQ(std::filesystem::hard_link_count(KeptPath(3)), 3U);
  EXPECT_TRUE(Linked(1, 3));
  EXPECT_EQ(KeptOf(3), KeptOf(1));
  EXPECT_EQ(KeptOf(1).front().kept->step, 1U);
  EXPECT_EQ(KeptOf(1).front().kept->attempt, ReadManifest(Folder(1)).attempt);
  EXPECT_EQ(plan_->Count({.op = IoOp::kLink}), 2U);
  ExpectWhole();
  EXPECT_THAT(warnings(), IsEmpty());
}

TEST_F(Kept, NothingFrozenIsAsBefore) {
  Open();
  const auto small = SmallState(1);

  ASSERT_EQ(Save(1, small->state()), Status::Ok());

  EXPECT_THAT(ReadWholeFile(Folder(1) + "/manifest.json"), Not(HasSubstr("kept")));
}

TEST_F(Kept, AllMayBeFrozen) {
  Open();
  const State all = frozen_.With({});

  ASSERT_EQ(Save(1, all), Status::Ok());
  ASSERT_EQ(Save(2, all), Status::Ok());

  EXPECT_TRUE(Linked(1, 2));
  ExpectFrozen(*checkpointer_, kSeed);
}

TEST_F(Kept, TooLittleIsWrittenWithTheRest) {
  Open();
  std::vector<float> frozen(1000);
  const auto small = SmallState(1);
  State state = small->state();
  ASSERT_EQ(state.Add("bias", {.data = frozen.data(), .shape = {1000}, .frozen = true}), Status::Ok());

  ASSERT_EQ(Save(1, state), Status::Ok());
  ASSERT_EQ(Save(2, state), Status::Ok());

  EXPECT_THAT(KeptOf(2), IsEmpty());
}

TEST_F(Kept, SurvivesRetentionAndIsNoSpare) {
  Open(1);

  for (std::uint64_t step = 1; step <= 5; ++step) ASSERT_EQ(Save(step), Status::Ok());

  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 5)) << "the first has surely what its step had";
  EXPECT_EQ(std::filesystem::hard_link_count(KeptPath(5)), 2U);
  EXPECT_EQ(KeptOf(5).front().kept->step, 1U);
  ExpectWhole();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root())) {
    const bool spare = entry.path().string().find("/.spare-") != std::string::npos;
    EXPECT_FALSE(spare && entry.path().filename().string().starts_with("kept-")) << entry.path();
  }
  const CheckpointerStats stats = checkpointer_->stats();
  if (stats.not_recycled_reason.empty()) {
    EXPECT_EQ(stats.shards_recycled, 2U);
  }
}

TEST_F(Kept, OfSavesInFlightEachLinksOnlyWhatIsCommitted) {
  Open();
  std::vector<std::unique_ptr<Tensors>> states;
  std::vector<SaveHandle> saves;
  const auto save = [&](std::uint64_t step) {
    states.push_back(SmallState(step));
    const auto one = checkpointer_->Save(step, frozen_.With(states.back()->state()));
    ASSERT_TRUE(one.ok()) << one.status();
    saves.push_back(*one);
  };
  const FaultGate gate = plan_->Hold({.op = IoOp::kRename, .path = "step-", .nth = 1});
  save(1);
  ASSERT_TRUE(gate.WaitHeld(Soon()));
  save(2);
  ASSERT_EQ(saves.back().WaitCaptured(Soon()), Status::Ok());
  gate.Release();
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  for (std::uint64_t step = 3; step <= 5; ++step) save(step);
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());

  EXPECT_FALSE(Linked(1, 2)) << "step 1 was not committed";
  for (const std::uint64_t step : {3U, 4U, 5U}) EXPECT_TRUE(Linked(2, step)) << step;
  ExpectWhole();
}

TEST_F(Kept, IsWrittenAgainWhereItMayHaveChanged) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  FrozenTensor other;
  other.Fill(kSeed);
  const auto small = SmallState(2);

  ASSERT_EQ(Save(2, other.With(small->state())), Status::Ok());
  EXPECT_FALSE(Linked(1, 2)) << "another memory";
  ASSERT_EQ(Save(3, other.With(SmallState(3)->state())), Status::Ok());
  EXPECT_TRUE(Linked(2, 3));

  FrozenTensor elsewhere;
  ASSERT_TRUE(checkpointer_->Restore(Step(1), elsewhere.With({})).ok());
  ASSERT_EQ(Save(3, other.With(SmallState(3)->state()), {.if_exists = IfExists::kReplace}), Status::Ok());
  EXPECT_TRUE(Linked(2, 3)) << "a restore into other memory";

  const auto into = SmallState(0);
  ASSERT_TRUE(ReadAlone(*checkpointer_, Step(1), other.With(into->state()), {.resume = false}).ok());
  ASSERT_EQ(Save(4, other.With(SmallState(4)->state())), Status::Ok());
  EXPECT_FALSE(Linked(3, 4)) << "a restore";

  const auto rest = SmallState(5);
  State more = other.With(rest->state());
  std::vector<double> added(1000, 1.5);
  ASSERT_EQ(
      more.Add("added", {.data = added.data(), .dtype = DType::kF64, .shape = {1000}, .frozen = true, .version = 0}),
      Status::Ok());
  ASSERT_EQ(Save(5, more), Status::Ok());
  EXPECT_FALSE(Linked(4, 5)) << "one more tensor";
  ASSERT_EQ(Save(6, other.With(SmallState(6)->state())), Status::Ok());
  EXPECT_FALSE(Linked(5, 6)) << "one fewer";
  ASSERT_EQ(Save(7, SmallState(7)->state()), Status::Ok());
  EXPECT_THAT(KeptOf(7), IsEmpty());
  ASSERT_EQ(Save(8, other.With(SmallState(8)->state())), Status::Ok());
  EXPECT_TRUE(Linked(6, 8)) << "the file of before is still good";
  std::vector<double> read(1000);
  State wanted;
  ASSERT_EQ(wanted.Add("added", {.data = read.data(), .dtype = DType::kF64, .shape = {1000}}), Status::Ok());
  ASSERT_TRUE(ReadAlone(*checkpointer_, Step(5), wanted, {.resume = false}).ok());
  EXPECT_EQ(read, added);
}

TEST(MayChangeFrozen, GoesByTheMemoryThatIsWritten) {
  std::vector<float> memory(400);
  const auto table_of = [](const TensorView& view) {
    State state;
    EXPECT_EQ(state.Add("one", view), Status::Ok());
    return state.table();
  };
  const auto frozen = table_of({.data = &memory[100], .shape = {100}, .frozen = true});
  const auto touches = [&](const TensorView& view) { return MayChangeFrozen(*frozen, *table_of(view)); };

  EXPECT_FALSE(touches({.data = memory.data(), .shape = {100}}));
  EXPECT_FALSE(touches({.data = &memory[200], .shape = {200}}));
  EXPECT_TRUE(touches({.data = memory.data(), .shape = {101}}));
  EXPECT_TRUE(touches({.data = &memory[199], .shape = {1}}));
  EXPECT_TRUE(touches({.data = memory.data(), .shape = {2}, .strides = {150}}));
  EXPECT_FALSE(touches({.data = memory.data(), .shape = {0}}));
  const auto both = [&] {
    State state;
    EXPECT_EQ(state.Add("whole", {.data = memory.data(), .shape = {150}}), Status::Ok());
    EXPECT_EQ(state.Add("first", {.data = &memory[10], .shape = {10}}), Status::Ok());
    return state.table();
  }();
  EXPECT_TRUE(MayChangeFrozen(*frozen, *both)) << "the last that begins before it is not the farthest";
  EXPECT_FALSE(MayChangeFrozen(*both, *both)) << "nothing is frozen";
}

TEST_F(Kept, OfASaveInFlightAtARestoreIsNotLinked) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  FrozenTensor other;
  other.Fill(kSeed + 1);
  const auto small = SmallState(2);
  const FaultGate gate = plan_->Hold({.op = IoOp::kRename, .path = "step-", .nth = 1});
  const auto save = checkpointer_->Save(2, other.With(small->state()));
  ASSERT_TRUE(save.ok() && gate.WaitHeld(Soon()));

  ASSERT_TRUE(checkpointer_->Restore(Step(1), other.With({})).ok());
  gate.Release();
  ASSERT_EQ(save->WaitDurable(Soon()), Status::Ok());
  ASSERT_EQ(Save(3, other.With(SmallState(3)->state())), Status::Ok());

  EXPECT_FALSE(Linked(2, 3)) << "it has what was there before the restore";
  FrozenTensor read;
  ASSERT_TRUE(ReadAlone(*checkpointer_, Step(3), read.With({}), {.resume = false}).ok());
  EXPECT_TRUE(read.Holds(kSeed));
}

// It moves to what changes, and stays there: what is kept beside it is not written again and again.
TEST_F(Kept, ATensorOfAnotherVersionIsWrittenWithWhatChanges) {
  Open();
  FrozenTensor moves(1);
  moves.Fill(1);
  const auto save = [&](std::uint64_t step) {
    const auto small = SmallState(step);
    return Save(step, moves.With(frozen_.With(small->state())));
  };
  ASSERT_EQ(save(1), Status::Ok());
  EXPECT_GT(KeptOf(1).front().length, 2 * kFrozenBytes);

  for (std::uint64_t step = 2; step <= 4; ++step) {
    moves.Fill(step);
    moves.version = step;
    ASSERT_EQ(save(step), Status::Ok());
  }

  for (std::uint64_t step = 1; step <= 4; ++step) {
    FrozenTensor read(1);
    ASSERT_TRUE(ReadAlone(*checkpointer_, Step(step), read.With({}), {.resume = false}).ok());
    EXPECT_TRUE(read.Holds(step));
  }
  EXPECT_FALSE(Linked(1, 2));
  EXPECT_TRUE(Linked(2, 4));
  EXPECT_LT(KeptOf(4).front().length, 2 * kFrozenBytes);

  frozen_.version = 9;
  ASSERT_EQ(save(5), Status::Ok());
  ASSERT_EQ(save(6), Status::Ok());
  EXPECT_FALSE(Linked(4, 5));
  EXPECT_TRUE(Linked(5, 6));
  EXPECT_GT(KeptOf(6).front().length, 2 * kFrozenBytes) << "nothing is left to link, so all begins anew";
  ExpectWhole();
}

TEST_F(Kept, WhatCannotBeLinkedIsCopiedFromTheFile) {
  for (const int error : {EPERM, EMLINK, EXDEV, EACCES, EINVAL}) {
    SCOPED_TRACE(std::strerror(error));
    std::filesystem::remove_all(root());
    frozen_.Fill(kSeed);
    Open();
    ASSERT_EQ(Save(1), Status::Ok());
    frozen_.Fill(kSeed + 1);  // No copy may come from here.

    plan_->Fail({.op = IoOp::kLink}, error);
    ASSERT_EQ(Save(2), Status::Ok());
    ASSERT_EQ(Save(3), Status::Ok());
    plan_->Clear();
    ASSERT_EQ(Save(4), Status::Ok());

    EXPECT_FALSE(Linked(1, 2));
    EXPECT_FALSE(Linked(2, 3));
    EXPECT_TRUE(Linked(3, 4));
    ExpectWhole();
    EXPECT_THAT(warnings(), ElementsAre(HasSubstr("step 2: what is frozen was copied")));
    checkpointer_.reset();
    MutexLock lock(mutex_);
    warnings_.clear();
  }
}

TEST_F(Kept, WhoseNamesAreAllGoneIsCopied) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  std::filesystem::remove_all(Folder(1));

  ASSERT_EQ(Save(2), Status::Ok());
  ASSERT_EQ(Save(3), Status::Ok());

  EXPECT_TRUE(Linked(2, 3));
  EXPECT_THAT(warnings(), ElementsAre()) << "that says nothing of the filesystem";
  ExpectWhole();
}

TEST_F(Kept, ThatWasCutFailsOneSaveAndIsWrittenAnew) {
  Open();
  for (const bool linked : {true, false}) {
    ASSERT_EQ(Save(linked ? 1 : 3), Status::Ok());
    for (const auto& file : std::filesystem::directory_iterator(Folder(linked ? 1 : 3))) {
      if (!file.path().filename().string().starts_with("kept-")) continue;
      std::filesystem::resize_file(file.path(), 5000);
      if (!linked) std::filesystem::remove(file.path());
    }

    EXPECT_EQ(Save(linked ? 2 : 4).code(), StatusCode::kCorrupt);
    if (!linked) {
      ASSERT_EQ(Save(5), Status::Ok());
    }
  }
}

TEST_F(Kept, AnotherErrorOfTheLinkFailsTheSaveAndNoOther) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  plan_->Fail({.op = IoOp::kLink, .nth = 1}, EIO);

  EXPECT_EQ(Save(2).code(), StatusCode::kIoError);
  ASSERT_EQ(Save(3), Status::Ok());

  EXPECT_FALSE(Linked(1, 3)) << "written anew";
  EXPECT_THAT(Leftovers(root()), testing::Each(testing::StartsWith(".spare-")));
  ExpectWhole();
}

// What it links or copies comes from a committed file, never from the tensors.
TEST_F(Kept, CapturedWaitsForNoLinkAndNoName) {
  const auto ranks = OpenRanks(2, SmallOptions(root()), [this](int) { return Through(plan_); });
  ASSERT_EQ(ranks.size(), 2U);
  FrozenTensor other(1);
  other.Fill(kSeed);
  const auto save = [&](std::uint64_t step, int rank, Tensors& small) {
    FrozenTensor& frozen = rank == 0 ? frozen_ : other;
    auto one = ranks[static_cast<std::size_t>(rank)]->Save(step, frozen.With(small.state()));
    EXPECT_TRUE(one.ok()) << one.status();
    return *std::move(one);
  };
  const auto zero = SmallState(1);
  const auto one = SmallState(1, 1);
  static_cast<void>(save(1, 0, *zero));
  ASSERT_EQ(save(1, 1, *one).WaitDurable(Soon()), Status::Ok());
  const FaultGate gate = plan_->Hold({.op = IoOp::kMkdir, .path = ".attempt-"});
  plan_->Fail({.op = IoOp::kLink}, EPERM);

  const SaveHandle second = save(2, 1, *one);
  ASSERT_EQ(second.WaitCaptured(Soon()), Status::Ok());
  other.Fill(kSeed + 1);
  const SaveHandle first = save(2, 0, *zero);
  ASSERT_TRUE(gate.WaitHeld(Soon()));
  ASSERT_EQ(first.WaitCaptured(Soon()), Status::Ok());
  frozen_.Fill(kSeed + 1);
  gate.Release();

  ASSERT_EQ(first.WaitDurable(Soon()), Status::Ok());
  ASSERT_EQ(second.WaitDurable(Soon()), Status::Ok());
  ExpectFrozenIn(root(), kSeed, 2);
}

TEST_F(Kept, OfAWriterThatWasDisplacedIsNotLinked) {
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  ASSERT_EQ(Save(2), Status::Ok());
  Options taking = SmallOptions(root());
  taking.keep_last = 0;
  taking.take_over = true;
  const auto displaced = std::exchange(checkpointer_, OpenOrFail(taking));
  ASSERT_NE(checkpointer_, nullptr);

  const auto small = SmallState(3);
  const auto late = displaced->Save(3, frozen_.With(small->state()));
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->WaitDurable(Soon()).code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(Save(3), Status::Ok());
  ASSERT_EQ(Save(4), Status::Ok());

  EXPECT_TRUE(Linked(1, 2));
  EXPECT_FALSE(Linked(2, 3));
  EXPECT_TRUE(Linked(3, 4));
  ExpectWhole();
}

TEST_F(Kept, IsNotOpenInForkedChildren) {
  const auto open_files = [] {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const bool kept = std::filesystem::read_symlink(entry.path(), gone).filename().string().starts_with("kept-");
      files += kept ? 1 : 0;
    }
    return files;
  };
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  ASSERT_EQ(Save(2), Status::Ok());

  Forked child([&](const Say&) { return open_files(); });

  EXPECT_EQ(open_files(), 1);
  EXPECT_EQ(child.Wait(Soon()).value, 0);
}

TEST_F(Kept, IsInWhatReplacesAPinnedStepAndInWhatIsPublished) {
  Open(1);
  const std::string path = dir_ / "last.ckpt";
  ASSERT_EQ(Save(1, {.pin = true}), Status::Ok());
  ASSERT_EQ(Save(2), Status::Ok());

  ASSERT_EQ(Save(2, {.if_exists = IfExists::kReplace}), Status::Ok());
  ASSERT_EQ(Save(3), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 3));
  for (std::uint64_t step = 3; step <= 5; ++step) {
    if (step > 3) {
      ASSERT_EQ(Save(step), Status::Ok());
    }
    ASSERT_EQ(checkpointer_->Publish(step, path), Status::Ok());
  }

  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1));
  EXPECT_TRUE(std::filesystem::equivalent(KeptPath(1), path + "/" + KeptOf(1).front().file));
  EXPECT_EQ(std::filesystem::hard_link_count(KeptPath(1)), 2U);
  EXPECT_EQ(checkpointer_->Verify(cairn::Folder(path)), Status::Ok());
  EXPECT_THAT(warnings(), IsEmpty());
  ExpectWhole();
}

// And a change that nobody said is found then, and those that may lack it are marked.
TEST_F(Kept, IsWrittenAnewEverySoOften) {
  frozen_every_ = 4;
  Open(3);
  for (std::uint64_t step = 1; step <= 4; ++step) ASSERT_EQ(Save(step), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(Linked(1, 4));

  frozen_.Fill(kSeed + 1);
  ASSERT_EQ(Save(5), Status::Ok());

  EXPECT_EQ(KeptOf(5).front().kept->step, 5U);
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("step 5: \"rank0.frozen\", or what lies behind it")));
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(3, 4, 5)) << "the first is no longer needed";
  EXPECT_THAT(Suspects(), ElementsAre(3, 4));
  EXPECT_EQ(checkpointer_->Verify(Step(4)), Status::Ok());
  EXPECT_TRUE(ReadAlone(*checkpointer_, Step(4), SmallState(0)->state(), {.resume = false}).ok());
  EXPECT_THAT(warnings(), testing::Contains(HasSubstr("which is suspect")));
  for (std::uint64_t step = 6; step <= 9; ++step) ASSERT_EQ(Save(step), Status::Ok());
  EXPECT_TRUE(Linked(8, 7));
  EXPECT_EQ(KeptOf(9).front().kept->step, 9U);
  EXPECT_THAT(Suspects(), IsEmpty());
  ExpectFrozen(*checkpointer_, kSeed + 1);
}

TEST_F(Kept, WhatIsKnownToHaveChangedIsLinkedNoMore) {
  frozen_every_ = 3;
  Open();
  for (std::uint64_t step = 1; step <= 3; ++step) ASSERT_EQ(Save(step), Status::Ok());
  frozen_.Fill(kSeed + 1);
  const auto four = SmallState(4);
  const auto five = SmallState(5);
  const FaultGate gate = plan_->Hold({.op = IoOp::kRename, .path = "step-", .nth = 1});

  const auto finds = checkpointer_->Save(4, frozen_.With(four->state()));
  ASSERT_TRUE(finds.ok() && gate.WaitHeld(Soon()));
  const auto next = checkpointer_->Save(5, frozen_.With(five->state()));
  ASSERT_TRUE(next.ok() && next->WaitCaptured(Soon()).ok());
  gate.Release();
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());

  EXPECT_EQ(KeptOf(5).front().kept->step, 5U) << "step 4 was not committed";
  EXPECT_THAT(Suspects(), ElementsAre(2, 3));
}

TEST_F(Kept, ASaveBesideTheOneThatFindsAChangeIsMarkedByTheNext) {
  frozen_every_ = 3;
  Open();
  for (std::uint64_t step = 1; step <= 3; ++step) ASSERT_EQ(Save(step), Status::Ok());
  frozen_.Fill(kSeed + 1);
  const auto four = SmallState(4);
  const auto five = SmallState(5);
  const FaultGate write = plan_->Hold({.op = IoOp::kWrite, .path = "/kept-", .nth = 1});
  const FaultGate link = plan_->Hold({.op = IoOp::kLink, .nth = 1});

  const auto finds = checkpointer_->Save(4, frozen_.With(four->state()));
  ASSERT_TRUE(finds.ok() && write.WaitHeld(Soon()));
  const auto beside = checkpointer_->Save(5, frozen_.With(five->state()));
  ASSERT_TRUE(beside.ok() && link.WaitHeld(Soon()));
  link.Release();
  write.Release();
  ASSERT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_TRUE(Linked(1, 5));
  ASSERT_EQ(Save(6), Status::Ok());

  EXPECT_TRUE(Linked(4, 6));
  EXPECT_THAT(Suspects(), ElementsAre(2, 3, 5));
}

TEST_F(Kept, IsWrittenByWhatReplacesTheCheckpointThatWroteIt) {
  Open(1);
  ASSERT_EQ(Save(1), Status::Ok());

  ASSERT_EQ(Save(1, {.if_exists = IfExists::kReplace}), Status::Ok());
  EXPECT_EQ(KeptOf(1).front().kept->attempt, ReadManifest(Folder(1)).attempt);
  for (const std::uint64_t step : {2, 3}) ASSERT_EQ(Save(step), Status::Ok());

  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 3)) << "the first has surely what its step had";
  ExpectWhole();
}

TEST_F(Kept, IsNotSuspectWhereItWasWritten) {
  frozen_every_ = 3;
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  plan_->Fail({.op = IoOp::kRename, .path = "step-", .nth = 1}, EIO);
  ASSERT_FALSE(Save(1, {.if_exists = IfExists::kReplace}).ok());
  ASSERT_EQ(Save(2), Status::Ok());
  frozen_.Fill(kSeed + 1);

  ASSERT_EQ(Save(3), Status::Ok());

  EXPECT_THAT(Suspects(), ElementsAre(2));
}

TEST_F(Kept, WhoseMarksCannotBeMadeAreReported) {
  frozen_every_ = 2;
  Open();
  ASSERT_EQ(Save(1), Status::Ok());
  ASSERT_EQ(Save(2), Status::Ok());
  frozen_.Fill(kSeed + 1);
  plan_->Fail({.op = IoOp::kOpen, .path = "/suspect"}, EROFS);

  ASSERT_EQ(Save(3), Status::Ok());

  EXPECT_THAT(warnings(), testing::Contains(HasSubstr("could be marked as suspect")));
}

TEST_F(Kept, EachFileHasItsOwnMark) {
  Options options = SmallOptions(root());
  options.nonfinite = MarkNonFinite::kMark;
  checkpointer_ = OpenOrFail(options);
  ASSERT_NE(checkpointer_, nullptr);
  std::vector<float> base(400'001, std::numeric_limits<float>::infinity());
  std::vector<float> adapter(300'001, std::numeric_limits<float>::quiet_NaN());
  State state;
  ASSERT_EQ(state.Add("base", {.data = base.data(), .shape = {400'001}, .frozen = true}), Status::Ok());
  ASSERT_EQ(state.Add("adapter", {.data = adapter.data(), .shape = {300'001}}), Status::Ok());

  ASSERT_EQ(Save(1, state), Status::Ok());
  std::ranges::fill(adapter, 1.0F);
  ASSERT_EQ(Save(2, state), Status::Ok());

  EXPECT_EQ(KeptOf(1).front().nonfinite, NonFinite::kInfinity);
  EXPECT_EQ(ReadManifest(Folder(1)).shards.front().nonfinite, NonFinite::kNaN);
  EXPECT_EQ(ReadManifest(Folder(2)).shards.front().nonfinite, NonFinite::kNone);
  const auto list = checkpointer_->List();
  ASSERT_TRUE(list.ok() && list->size() == 2);
  EXPECT_EQ((*list)[0].nonfinite, NonFinite::kNaN);
  EXPECT_EQ((*list)[1].nonfinite, NonFinite::kInfinity);
}

TEST_F(Kept, TiedTensorsAreKeptOnlyIfFrozenUnderEveryName) {
  Open();
  std::vector<float> tied(400'001, 1);
  std::vector<float> half(400'001, 2);
  const TensorView whole{.data = tied.data(), .shape = {400'001}, .frozen = true};
  State state;
  ASSERT_EQ(state.Add("embedding", whole), Status::Ok());
  ASSERT_EQ(state.Add("head", whole), Status::Ok());
  ASSERT_EQ(state.Add("frozen", {.data = half.data(), .shape = {400'001}, .frozen = true}), Status::Ok());
  ASSERT_EQ(state.Add("trained", {.data = half.data(), .shape = {400'001}}), Status::Ok());

  ASSERT_EQ(Save(1, state), Status::Ok());
  ASSERT_EQ(Save(2, state), Status::Ok());

  EXPECT_TRUE(Linked(1, 2));
  const auto details = checkpointer_->Inspect(Step(2));
  ASSERT_TRUE(details.ok()) << details.status();
  std::vector<std::string> names;
  for (const TensorInfo& tensor : details->tensors) {
    if (tensor.file == KeptOf(2).front().file) names.push_back(tensor.name);
  }
  EXPECT_THAT(names, ElementsAre("embedding", "head"));
}

// Each rank has its own, in the manifest and in the index; a world of another size finds them.
TEST_F(Kept, OfEachRank) {
  Options options = SmallOptions(root());
  options.keep_last = 2;
  const auto ranks = OpenRanks(3, options);
  ASSERT_EQ(ranks.size(), 3U);
  std::vector<std::unique_ptr<FrozenTensor>> frozen;
  for (int rank = 0; rank < 3; ++rank) {
    frozen.push_back(std::make_unique<FrozenTensor>(rank));
    frozen.back()->Fill(kSeed);
  }
  for (std::uint64_t step = 1; step <= 3; ++step) {
    std::vector<std::unique_ptr<Tensors>> states;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      states.push_back(SmallState(step, static_cast<int>(rank)));
      // Rank 1 has nothing that is frozen.
      const State& small = states.back()->state();
      ASSERT_TRUE(ranks[rank]->Save(step, rank == 1 ? small : frozen[rank]->With(small)).ok());
    }
    for (const auto& rank : ranks) ASSERT_EQ(rank->Drain(Soon()), Status::Ok());
  }

  ASSERT_THAT(KeptOf(3), SizeIs(2));
  EXPECT_EQ(KeptOf(3), KeptOf(2));
  EXPECT_EQ(KeptOf(3)[0].kept, (KeptOrigin{0, 1, KeptOf(3)[0].kept->attempt}));
  EXPECT_EQ(KeptOf(3)[1].kept->rank, 2U);
  for (const ManifestShard& kept : KeptOf(3)) {
    EXPECT_EQ(std::filesystem::hard_link_count(Folder(3) + "/" + kept.file), 3U);
  }
  EXPECT_TRUE(ReadManifest(Folder(3)).index.has_value());
  EXPECT_EQ(ranks[0]->Verify(Step(3)), Status::Ok());
  Options alone = SmallOptions(root());
  alone.read_only = true;
  std::vector<std::string> events;
  alone.on_event = [&](const Event& event) { events.push_back(event.message); };
  const auto reader = OpenOrFail(alone);
  ASSERT_NE(reader, nullptr);
  ExpectFrozen(*reader, kSeed, 0);
  ExpectFrozen(*reader, kSeed, 2);
  EXPECT_THAT(events, Not(testing::Contains(HasSubstr("reading the headers of all")))) << "the index names kept files";
}

}  // namespace
}  // namespace cairn
