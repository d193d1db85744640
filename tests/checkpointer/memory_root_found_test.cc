// What an earlier run has left in memory alone: the next one that opens it brings it to the disk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "checkpointer/memory_root_fixture.h"
#include "format/manifest.h"
#include "store/names.h"
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

/// Header and data. In memory the header is longer than its text, to fill the slot.
std::string ShardIn(const std::string& folder) {
  std::ifstream file(folder + "/" + ShardName(0), std::ios::binary);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  header.erase(header.find_last_not_of(' ') + 1);
  return header + std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

class MemoryRootFound : public MemoryRootTest {
 protected:
  /// Step 1 is on the disk, and step 2 in memory alone.
  void SetUp() override {
    KeepAndDie({1}, /*holds=*/false);
    KeepAndDie({2}, /*holds=*/true);
  }
  [[nodiscard]] FaultGate HoldDisk() const { return plan_->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"}); }
  /// Without the memory, as after the machine has ended.
  void ExpectOnDisk(const std::vector<std::uint64_t>& steps) {
    const auto reader = OpenOrFail(WithoutMemory());
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(ListedSteps(*reader), steps);
    for (const std::uint64_t step : steps) EXPECT_EQ(RestoreAndCompare(*reader, Step(step)), Status::Ok());
  }

  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
};

TEST_F(MemoryRootFound, GoesToTheDiskAtTheNextOpening) {
  const std::string shard = ShardIn(InFolder(2));
  {
    const auto checkpointer = OpenOrFail(WithMemory());
    ASSERT_NE(checkpointer, nullptr);
    EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    EXPECT_EQ(checkpointer->stats().newest_step, 2U);
    EXPECT_EQ(checkpointer->stats().saves_started, 0U);
    const auto list = checkpointer->List();
    ASSERT_TRUE(list.ok());
    EXPECT_EQ(list->back().parent, 1U);
  }
  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
  EXPECT_TRUE(ShardIn(root_ + "/" + StepName(2)) == shard);
  ExpectOnDisk({1, 2});
}

TEST_F(MemoryRootFound, CloseWaitsUntilTheDiskHasIt) {
  OpenOrFail(WithMemory()).reset();

  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
  ExpectOnDisk({1, 2});
}

TEST_F(MemoryRootFound, ItIsReadAndContinuedMeanwhile) {
  const FaultGate gate = HoldDisk();
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  EXPECT_EQ(checkpointer->Drain(Deadline::In({})).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Save(*checkpointer, 1).status().code(), StatusCode::kFailedPrecondition) << "first restore";

  ASSERT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  EXPECT_EQ(Save(*checkpointer, 2).status().code(), StatusCode::kAlreadyExists);
  for (const std::uint64_t step : {3, 4}) ASSERT_EQ(Keep(*checkpointer, step), Status::Ok());

  gate.Release();
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(Save(*checkpointer, 2).status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2, 4));
  EXPECT_EQ(ShardsIn(Folder()).first, 5U) << "it had a slot like any other";
}

TEST_F(MemoryRootFound, ItsStepMayBeSavedAnewInAnotherLine) {
  const FaultGate gate = HoldDisk();
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(RestoreAndCompare(*checkpointer, Step(1)), Status::Ok());
  constexpr std::uint64_t kAnother = 1;
  const auto state = SmallState(2, 0, kAnother);

  const auto save = checkpointer->Save(2, state->state());

  ASSERT_TRUE(save.ok()) << save.status();
  gate.Release();
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest(), kAnother), Status::Ok());
}

TEST_F(MemoryRootFound, ItMayBeRemovedBeforeTheDiskHasIt) {
  const FaultGate gate = HoldDisk();
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan_));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_TRUE(gate.WaitHeld(Soon()));

  EXPECT_EQ(checkpointer->Remove(2), Status::Ok());

  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
  gate.Release();
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
}

TEST_F(MemoryRootFound, ADamagedOneIsNeverCommitted) {
  FlipBit(InFolder(2));
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();
  for (int run = 0; run < 2; ++run) {
    const auto checkpointer = OpenOrFail(options);
    ASSERT_NE(checkpointer, nullptr);
    EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    EXPECT_THAT(messages.Seen(), Contains(HasSubstr("step 2: not written to the disk: bytes 0 to 1048576")));
    EXPECT_EQ(Save(*checkpointer, 1).status().code(), StatusCode::kFailedPrecondition) << "first restore";
    const auto state = SmallState(0);
    EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).status().code(), StatusCode::kCorrupt);
    // Who goes on from an older one is not told again.
    EXPECT_TRUE(checkpointer->Restore(Latest().FallBack(), state->state()).ok());
    EXPECT_EQ(checkpointer->CheckFailures(), Status::Ok());
  }
  EXPECT_FALSE(fs::exists(root_ + "/" + StepName(2)));
  EXPECT_TRUE(fs::exists(InFolder(2)));
}

TEST_F(MemoryRootFound, OneWithADamagedHeaderIsNeverCommitted) {
  std::fstream file(InFolder(2) + "/" + ShardName(0), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(20);
  file.put('#');
  file.close();
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();
  {
    const auto checkpointer = OpenOrFail(options);
    ASSERT_NE(checkpointer, nullptr);
    EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
    const auto state = SmallState(0);
    EXPECT_EQ(checkpointer->Restore(Latest(), state->state()).status().code(), StatusCode::kCorrupt);
  }
  EXPECT_THAT(messages.Seen(), Contains(HasSubstr("the disk does not get it")));
  EXPECT_FALSE(fs::exists(root_ + "/" + StepName(2)));
  EXPECT_TRUE(fs::exists(InFolder(2)));
}

TEST_F(MemoryRootFound, SurvivesAKillAtAnyOperationOnItsWay) {
  const TempDir copies;
  fs::copy(root_, copies / "root", fs::copy_options::recursive);
  const std::string folder = Folder();
  fs::copy(folder, copies / "memory", fs::copy_options::recursive);
  const Points points = SomePoints(7);
  for (std::uint64_t k = 1 + points.first;; k += points.stride) {
    SCOPED_TRACE(testing::Message() << "killed before operation " << k);
    Forked child([&](const Say& say) {
      const auto plan = FaultPlan::Make();
      plan->KillBefore({.nth = k});
      const auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan));
      if (!checkpointer.ok() || !(*checkpointer)->Drain(Soon()).ok()) return 1;
      say("durable");
      return 0;
    });
    const Forked::End end = child.Wait(Soon());
    if (end.how == Forked::How::kExited) {
      ASSERT_EQ(end.value, 0);
      ASSERT_GT(k, 20U);
      break;
    }
    ASSERT_EQ(end.how, Forked::How::kKilled);
    if (end.lines.empty()) {
      const auto checkpointer = OpenOrFail(WithMemory());
      ASSERT_NE(checkpointer, nullptr);
      ASSERT_EQ(ListedSteps(*checkpointer).back(), 2U);
      ASSERT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
    }
    ExpectOnDisk({1, 2});
    for (const std::string& left : {root_, folder}) fs::remove_all(left);
    fs::copy(copies / "root", root_, fs::copy_options::recursive);
    fs::copy(copies / "memory", folder, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      fs::permissions(entry, entry.is_directory() ? fs::perms(0700) : fs::perms(0600));
    }
    fs::permissions(folder, fs::perms(0700));
  }
}

TEST_F(MemoryRootFound, NoAdviceToRenameWhatTheMemoryHas) {
  Forked child([&](const Say&) {
    plan_->KillBefore({.op = IoOp::kRename, .path = root_ + "/.attempt"});
    const auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan_));
    return checkpointer.ok() && (*checkpointer)->Drain(Soon()).ok() ? 1 : 2;
  });
  ASSERT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);
  Messages messages;
  Options options = WithMemory();
  options.on_event = messages.callback();

  OpenOrFail(options).reset();

  EXPECT_THAT(messages.Seen(), IsEmpty());
  EXPECT_THAT(Leftovers(root_), IsEmpty());
  ExpectOnDisk({1, 2});
}

// Values too long for a header, tied tensors and empty ones lie in the shard as the save has laid them out.
TEST_F(MemoryRootTest, WhatIsFoundHasAllThatAStateCanHold) {
  std::vector<float> weight(400'000, 1.5F);
  std::vector<std::uint8_t> bytes(777, 7);
  const std::string text = "\"" + std::string(1'500'000, 'x') + "\"";
  const auto add = [&](State& state) {
    return state.Add("weight", {.data = weight.data(), .dtype = DType::kF32, .shape = {400'000}}).ok() &&
           state.Add("tied", {.data = weight.data(), .dtype = DType::kF32, .shape = {400'000}}).ok() &&
           state.Add("bytes", {.data = bytes.data(), .dtype = DType::kU8, .shape = {777}}).ok() &&
           state.Add("none", {.data = nullptr, .dtype = DType::kF64, .shape = {0, 3}}).ok();
  };
  Forked child([&](const Say&) {
    const auto plan = FaultPlan::Make();
    const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
    const auto checkpointer = Checkpointer::Open(WithMemory(), Through(plan));
    State state;
    if (!checkpointer.ok() || !add(state) || !state.Set("long", Json{text}).ok() || !state.Set("lr", 0.5).ok()) {
      return 2;
    }
    const auto save = (*checkpointer)->Save(3, state);
    if (!save.ok() || !save->WaitKept(Soon()).ok()) return 3;
    ::kill(::getpid(), SIGKILL);
    return 4;
  });
  ASSERT_EQ(child.Wait(Soon()).how, Forked::How::kKilled);
  const std::string shard = ShardIn(InFolder(3));

  OpenOrFail(WithMemory()).reset();

  EXPECT_TRUE(ShardIn(root_ + "/" + StepName(3)) == shard);
  const auto reader = OpenOrFail(WithoutMemory());
  ASSERT_NE(reader, nullptr);
  std::ranges::fill(weight, 0.0F);
  std::ranges::fill(bytes, std::uint8_t{0});
  State state;
  ASSERT_TRUE(add(state));
  const Result<Restored> restored = reader->Restore(Latest(), state);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(std::ranges::count(weight, 1.5F), 400'000);
  EXPECT_EQ(std::ranges::count(bytes, 7), 777);
  EXPECT_EQ(std::get<Json>(restored->values.at("long")).text, text);
  EXPECT_EQ(reader->Verify(Latest()), Status::Ok());
}

}  // namespace
}  // namespace cairn
