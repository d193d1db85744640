// A root in memory: what is kept there survives the process, the disk gets what it can take, and a restore takes the
// newest of both.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/checkpointer_impl.h"
#include "base/unique_fd.h"
#include "cairn/cairn.h"
#include "checkpointer/memory_root_fixture.h"
#include "store/list.h"
#include "store/locks.h"
#include "store/memory_folder.h"
#include "store/names.h"
#include "store/writer.h"
#include "support/points.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(MemoryRootTest, KeepsEachSaveWhileTheDiskDoesNotAnswer) {
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  std::vector<SaveHandle> saves;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const auto save = Save(*checkpointer, step);
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());
    EXPECT_GT(save->stats().kept.count(), 0);
    saves.push_back(*save);
  }

  // The first is on its way, the last one waits, and those between them are left out, of which their waiters hear.
  for (const std::size_t left_out : {1, 2, 3}) {
    const Status status = saves[left_out].WaitDurable(Soon());
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    EXPECT_THAT(status.message(), HasSubstr("left out of the disk"));
    EXPECT_EQ(saves[left_out].stats().phase, SavePhase::kKept);
    EXPECT_EQ(saves[left_out].WaitKept(Soon()), Status::Ok());
  }
  EXPECT_EQ(saves[4].WaitDurable(Deadline::In({})).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(checkpointer->stats().saves_kept, 5U);
  EXPECT_EQ(checkpointer->stats().saves_durable, 0U);
  gate.Release();
  EXPECT_EQ(saves[0].WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(saves[4].WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(saves[4].stats().phase, SavePhase::kDurable);
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->stats().saves_durable, 2U);
  EXPECT_EQ(checkpointer->stats().saves_started, 5U);

  // The disk has whole checkpoints of both, which need nothing in memory; and nothing is left there.
  checkpointer.reset();
  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
  const auto reader = OpenOrFail(WithoutMemory());
  ASSERT_NE(reader, nullptr);
  EXPECT_THAT(ListedSteps(*reader), ElementsAre(1, 5));
  for (const std::uint64_t step : {1, 5}) EXPECT_EQ(RestoreAndCompare(*reader, Step(step)), Status::Ok());
}

TEST_F(MemoryRootTest, WhatIsKeptSurvivesAKill) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);
  struct stat found {};
  ASSERT_EQ(::stat(Folder().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0700U);

  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 2));
  const auto state = SmallState(0);
  const Result<Restored> restored = checkpointer->Restore(Latest(), state->state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 2U);
  EXPECT_TRUE(Holds(*state, 2));
  // And it goes on from there, in a line above.
  ASSERT_EQ(SaveDurably(*checkpointer, 3), Status::Ok());
  const auto list = checkpointer->List();
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->back().step, 3U);
  EXPECT_EQ(list->back().parent, 2U);
  EXPECT_GT(list->back().line, restored->line);
}

TEST_F(MemoryRootTest, WithoutItTheDiskIsRestored) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);

  const auto checkpointer = OpenOrFail(WithoutMemory());
  ASSERT_NE(checkpointer, nullptr);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

// Once straight to the disk, where no number but the line tells which of them is the newer.
TEST_F(MemoryRootTest, AStepThatIsSavedAnewIsTheNewest) {
  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  constexpr std::uint64_t kAnother = 1;

  ASSERT_EQ(SaveDurably(*checkpointer, 1, {.if_exists = IfExists::kReplace, .pin = true}, kAnother), Status::Ok());

  EXPECT_EQ(checkpointer->stats().saves_kept, 1U);
  EXPECT_TRUE(fs::exists(InFolder(1))) << "the first is still there";
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest(), kAnother), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Step(1), kAnother), Status::Ok());
}

TEST_F(MemoryRootTest, AStepMayBeSavedAnewBeforeTheDiskHasIt) {
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  constexpr std::uint64_t kAnother = 1;
  const auto save = [&](std::uint64_t step, std::uint64_t variant) {
    const auto state = SmallState(step, 0, variant);
    const auto saved = checkpointer->Save(step, state->state(), {.if_exists = IfExists::kReplace});
    EXPECT_TRUE(saved.ok() && saved->WaitKept(Soon()).ok()) << saved.status();
    return *saved;
  };
  const SaveHandle drained = save(1, 0);
  const SaveHandle again = save(1, kAnother);
  const SaveHandle waits = save(2, 0);
  const SaveHandle newest = save(2, kAnother);

  gate.Release();

  EXPECT_EQ(newest.WaitDurable(Soon()), Status::Ok());
  for (const SaveHandle& one : {drained, waits}) {
    EXPECT_EQ(one.WaitDurable(Soon()).code(), StatusCode::kCancelled);
    EXPECT_THAT(one.status().message(), HasSubstr("saved anew"));
  }
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest(), kAnother), Status::Ok());
  const auto reader = OpenOrFail([&] {
    Options options = WithoutMemory();
    options.read_only = true;
    return options;
  }());
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(RestoreAndCompare(*reader, Step(2), kAnother), Status::Ok());
}

// A save's caller hears that it is kept before the memory root does.
TEST_F(MemoryRootTest, AStepMayBeSavedAnewAsSoonAsItIsKept) {
  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  const auto state = SmallState(1);
  for (int i = 0; i < SomeRounds(300, 10); ++i) {
    const auto save = checkpointer->Save(1, state->state(), {.if_exists = IfExists::kReplace});
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());
  }
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

TEST_F(MemoryRootTest, TheDiskGetsWhatIsDue) {
  Options options = WithMemory();
  options.disk_every = 10;
  auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(Keep(*checkpointer, 1), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  std::vector<SaveHandle> saves;
  for (std::uint64_t step = 2; step <= 11; ++step) {
    saves.push_back(Save(*checkpointer, step).value());
    ASSERT_EQ(saves.back().WaitKept(Soon()), Status::Ok());
  }
  EXPECT_EQ(saves.back().WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(saves.front().WaitDurable(Soon()).code(), StatusCode::kCancelled);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1, 11));

  // One that somebody waits for is due, and the newest, once somebody waits for all.
  const SaveHandle wanted = Save(*checkpointer, 12).value();
  EXPECT_EQ(wanted.WaitDurable(Soon()), Status::Ok());
  ASSERT_EQ(Keep(*checkpointer, 13), Status::Ok());
  const SaveHandle newest = Save(*checkpointer, 14).value();
  ASSERT_EQ(newest.WaitKept(Soon()), Status::Ok());
  EXPECT_EQ(newest.stats().phase, SavePhase::kKept);
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(newest.status(), Status::Ok());
  EXPECT_EQ(newest.stats().phase, SavePhase::kDurable);
  ASSERT_EQ(Keep(*checkpointer, 15), Status::Ok());
  checkpointer.reset();
  EXPECT_THAT(NamesIn(memory_.path()), IsEmpty());
  const auto reader = OpenOrFail(WithoutMemory());
  ASSERT_NE(reader, nullptr);
  EXPECT_THAT(ListedSteps(*reader), ElementsAre(1, 11, 12, 14, 15));
}

// A step below what the disk has is of another line: it is due.
TEST_F(MemoryRootTest, TheDiskGetsWhatFollowsAnOlderStep) {
  Options options = WithMemory();
  options.disk_every = 10;
  const auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  for (const std::uint64_t step : {1, 11}) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
  ASSERT_EQ(RestoreAndCompare(*checkpointer, Step(1)), Status::Ok());

  const SaveHandle save = Save(*checkpointer, 2).value();

  ASSERT_EQ(save.WaitKept(Soon()), Status::Ok());
  const Deadline end = Soon();
  while (save.stats().phase != SavePhase::kDurable && !end.passed()) std::this_thread::yield();
  EXPECT_EQ(save.stats().phase, SavePhase::kDurable);
}

TEST_F(MemoryRootTest, AReaderThatIsGivenItReadsBothPlaces) {
  const auto plan = FaultPlan::Make();
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 1), Status::Ok());
  Options reading = WithMemory();
  reading.read_only = true;
  const auto reader = OpenOrFail(reading);
  ASSERT_NE(reader, nullptr);
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  ASSERT_EQ(Keep(*checkpointer, 2), Status::Ok());

  EXPECT_THAT(ListedSteps(*reader), ElementsAre(1, 2));
  const auto state = SmallState(0);
  const Result<Restored> restored = reader->Restore(Latest(), state->state());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 2U);
  EXPECT_TRUE(Holds(*state, 2));
  EXPECT_EQ(reader->Verify(Step(2)), Status::Ok());
  gate.Release();
}

// What leaves the memory meanwhile, the disk has by then; the other way round a reader would miss it in both.
TEST_F(MemoryRootTest, TheMemoryIsListedBeforeTheDisk) {
  KeepAndDie({1}, /*holds=*/false);
  KeepAndDie({2}, /*holds=*/true);
  const auto record = ReadWriter(root_);
  ASSERT_TRUE(record.ok() && *record);
  const std::string folder = Folder();
  const UniqueFd events(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_TRUE(events.valid());
  ASSERT_GE(::inotify_add_watch(events.get(), root_.c_str(), IN_OPEN), 0);
  const int memory = ::inotify_add_watch(events.get(), folder.c_str(), IN_OPEN);
  ASSERT_GE(memory, 0);

  const auto list = ListInfos(root_, {.path = folder, .root = (*record)->root});

  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->size(), 2U);
  alignas(inotify_event) std::array<char, 65536> buffer{};
  ASSERT_GE(::read(events.get(), buffer.data(), buffer.size()), static_cast<ssize_t>(sizeof(inotify_event)));
  inotify_event first{};
  std::memcpy(&first, buffer.data(), sizeof(first));
  EXPECT_EQ(first.wd, memory);
}

TEST_F(MemoryRootTest, TheDiskGetsTheNewestThoughAnOlderOneIsKeptLater) {
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(Keep(*checkpointer, 1), Status::Ok());
  const auto state = SmallState(2);
  const auto held =
      Inside::Of(*checkpointer).Save(2, state->state(), state->state().values(), {}, std::chrono::hours(1));
  ASSERT_TRUE(held.ok()) << held.status();
  const auto newest = Save(*checkpointer, 3);
  ASSERT_TRUE(newest.ok()) << newest.status();
  ASSERT_EQ(newest->WaitKept(Soon()), Status::Ok());

  Inside::Of(*held).Release();

  EXPECT_EQ(held->WaitKept(Soon()), Status::Ok());
  EXPECT_EQ(held->WaitDurable(Soon()).code(), StatusCode::kCancelled);
  gate.Release();
  EXPECT_EQ(newest->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

TEST_F(MemoryRootTest, AKeptSaveWaitsUntilItsLineIsRecordedOnTheDisk) {
  const auto plan = FaultPlan::Make();
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  for (const std::uint64_t step : {1, 2}) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
  ASSERT_EQ(RestoreAndCompare(*checkpointer, Step(1)), Status::Ok());
  const FaultGate gate = plan->Hold({.op = IoOp::kRename, .path = root_ + "/.writer"});

  const auto save = Save(*checkpointer, 2);

  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(gate.WaitHeld(Soon()));
  EXPECT_EQ(save->WaitKept(Deadline::In({})).code(), StatusCode::kDeadlineExceeded);
  gate.Release();
  EXPECT_EQ(save->WaitKept(Soon()), Status::Ok());
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
}

TEST_F(MemoryRootTest, CloseSaysWhatIsOnlyKept) {
  Messages messages;
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  Options options = WithMemory();
  options.on_event = messages.callback();
  options.close_timeout = std::chrono::seconds(1);
  {
    const auto checkpointer = OpenOrFail(options, Through(plan));
    ASSERT_NE(checkpointer, nullptr);
    const auto first = Save(*checkpointer, 1);
    const auto second = Save(*checkpointer, 2);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_EQ(second->WaitKept(Soon()), Status::Ok());
    AbandonAtOnce(*checkpointer);
    plan->CallBefore({.path = root_ + "/.attempt"}, [&gate](const SeenOperation&) { gate.Release(); });
    gate.Release();
  }
  const std::vector<std::string> seen = messages.Seen();

  // Unless the disk was quicker.
  const auto reader = OpenOrFail(WithMemory());
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(ListedSteps(*reader).back(), 2U);
  EXPECT_EQ(RestoreAndCompare(*reader, Latest()), Status::Ok());
  if (fs::exists(root_ + "/" + StepName(2))) return;
  EXPECT_THAT(seen, Contains(HasSubstr("step 2 is kept in memory alone")));
}

TEST_F(MemoryRootTest, AFenceDoesNotWaitForTheDisk) {
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  const auto state = SmallState(1);
  const auto save = checkpointer->Save(1, state->state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());

  EXPECT_EQ(checkpointer->Fence(), Status::Ok());

  state->Fill(99);
  EXPECT_FALSE(save->Cancel()) << "it is kept";
  gate.Release();
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
}

TEST_F(MemoryRootTest, CountsWhatItKeeps) {
  const auto plan = FaultPlan::Make();
  const FaultGate gate = plan->Hold({.op = IoOp::kMkdir, .path = root_ + "/.attempt"});
  const auto checkpointer = OpenOrFail(WithMemory(), Through(plan));
  ASSERT_NE(checkpointer, nullptr);
  for (const std::uint64_t step : {1, 2, 3}) ASSERT_EQ(Keep(*checkpointer, step), Status::Ok());
  gate.Release();
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());

  const std::string text = checkpointer->MetricsText();

  EXPECT_THAT(text, ContainsRegex("\ncairn_save_kept_seconds_count[^\n]* 3\n"));
  EXPECT_THAT(text, ContainsRegex("\ncairn_saves_started_total[^\n]* 3\n"));
  EXPECT_THAT(text, ContainsRegex("\ncairn_saves_total[^\n]*durable[^\n]* 2\n"));
  EXPECT_THAT(text, ContainsRegex("\ncairn_save_seconds_count[^\n]* 2\n"));
  EXPECT_THAT(text, ContainsRegex("\ncairn_saves_total[^\n]*cancelled[^\n]* 0\n"));
  EXPECT_THAT(text, ContainsRegex("\ncairn_saves_in_flight[^\n]* 0\n"));
  EXPECT_THAT(text, ContainsRegex("\ncairn_checkpoints_removed_total[^\n]* 0\n"));
}

std::size_t CountOf(const char* folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::size_t MappingsOf(const std::string& part) {
  std::ifstream maps("/proc/self/maps");
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(part) != std::string::npos ? 1 : 0;
  return found;
}

TEST_F(MemoryRootTest, ManySavesTakeNoMoreMemoryThanTheFirst) {
  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  std::uint64_t step = 0;
  const auto save = [&](std::uint64_t times) {
    for (std::uint64_t i = 0; i < times; ++i) ASSERT_EQ(Keep(*checkpointer, ++step), Status::Ok());
    ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  };
  save(20);
  const auto before = ShardsIn(Folder());
  // A slot that is mapped stays so, with a descriptor.
  const auto others = [&] { return CountOf("/proc/self/fd") - MappingsOf(memory_.path()); };
  const std::size_t descriptors = others();

  save(SomeRounds(1000, 10));

  EXPECT_EQ(ShardsIn(Folder()).first, before.first);
  EXPECT_LE(ShardsIn(Folder()).second, before.second);
  EXPECT_EQ(before.first, 5U) << "three in flight, one that is drained, and the newest";
  EXPECT_LE(others(), descriptors);
  EXPECT_LE(MappingsOf(memory_.path()), 5U);
  EXPECT_EQ(checkpointer->stats().not_recycled_reason, "");
}

TEST_F(MemoryRootTest, ALargerStateGetsLargerSlots) {
  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(Keep(*checkpointer, 1), Status::Ok());
  Tensors larger = Tensors::Many(3, 700'000);
  larger.Fill(7);
  const auto save = checkpointer->Save(2, larger.state());
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());
  EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(checkpointer->stats().saves_kept, 2U);
  larger.Fill(8);
  ASSERT_TRUE(checkpointer->Restore(Latest(), larger.state()).ok());
  EXPECT_TRUE(larger.Holds(7));
  // Once more, when smaller ones have had all slots.
  const std::uint64_t blocks = ShardsIn(Folder()).second;
  for (std::uint64_t step = 3; step <= 9; ++step) ASSERT_EQ(SaveDurably(*checkpointer, step), Status::Ok());
  EXPECT_LT(ShardsIn(Folder()).second, blocks);
  const auto again = checkpointer->Save(10, larger.state());
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->WaitKept(Soon()), Status::Ok());
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(ShardsIn(Folder()).second, blocks) << "all slots have room again";
}

TEST_F(MemoryRootTest, SlotsThatDoNotFitAreNotMade) {
  const TempDir folder{"/dev/shm"};
  const Status status = AllocateSlots(PathAt(folder.path()), 0, 3, std::uint64_t{1} << 50, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("need 3.0 PiB more"));
  EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
}

TEST_F(MemoryRootTest, ASlotThatAnEarlierRunStillHoldsIsMadeAnew) {
  const TempDir folder{"/dev/shm"};
  constexpr std::uint64_t kBytes = 1U << 20;
  ASSERT_EQ(AllocateSlots(PathAt(folder.path()), 0, 3, kBytes, {}).status(), Status::Ok());
  const std::string held = folder / SpareName(1) + "/" + ShardName(0);
  const UniqueFd fd(::open(held.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(TakeLease(fd, held), Status::Ok());

  EXPECT_EQ(AllocateSlots(PathAt(folder.path()), 0, 3, kBytes, {}).status(), Status::Ok());

  EXPECT_EQ(ShardsIn(folder.path()), std::make_pair(std::size_t{3}, 3 * std::uint64_t{kBytes} / 512));
  struct stat found {};
  ASSERT_EQ(::fstat(fd.get(), &found), 0);
  EXPECT_EQ(found.st_nlink, 0U);
}

TEST_F(MemoryRootTest, WhatIsReplacedLosesNoSlot) {
  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  for (std::uint64_t variant = 0; variant < 8; ++variant) {
    const auto state = SmallState(2, 0, variant);
    const auto save = checkpointer->Save(2, state->state(), {.if_exists = IfExists::kReplace});
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_EQ(save->WaitKept(Soon()), Status::Ok());
  }
  ASSERT_EQ(checkpointer->Drain(Soon()), Status::Ok());
  EXPECT_EQ(ShardsIn(Folder()).first, 5U);
  EXPECT_EQ(checkpointer->stats().not_recycled_reason, "");
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest(), 7), Status::Ok());
}

TEST_F(MemoryRootTest, PinnedSavesGoToTheDiskAlone) {
  Options options = WithMemory();
  options.keep_every = 10;
  const auto checkpointer = OpenOrFail(options);
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(SaveDurably(*checkpointer, 9, {.pin = true}), Status::Ok());
  ASSERT_EQ(SaveDurably(*checkpointer, 10), Status::Ok());
  EXPECT_EQ(checkpointer->stats().saves_kept, 0U);
  ASSERT_EQ(SaveDurably(*checkpointer, 11), Status::Ok());
  EXPECT_EQ(checkpointer->stats().saves_kept, 1U);
}

TEST_F(MemoryRootTest, WhatIsRemovedComesBackFromNeitherPlace) {
  KeepAndDie({1, 2}, /*holds=*/false);
  KeepAndDie({3}, /*holds=*/true);
  const auto checkpointer = OpenOrFail(WithMemory());
  ASSERT_NE(checkpointer, nullptr);
  ASSERT_EQ(ListedSteps(*checkpointer).back(), 3U);
  EXPECT_EQ(checkpointer->Remove(3), Status::Ok()) << "in memory alone";
  EXPECT_EQ(checkpointer->Remove(2), Status::Ok()) << "on the disk, and maybe in memory";
  EXPECT_EQ(checkpointer->Remove(2).code(), StatusCode::kNotFound);
  EXPECT_THAT(ListedSteps(*checkpointer), ElementsAre(1));
  EXPECT_EQ(RestoreAndCompare(*checkpointer, Latest()), Status::Ok());
  EXPECT_EQ(SaveDurably(*checkpointer, 2), Status::Ok());
}

TEST_F(MemoryRootTest, RefusesWhatItCannotKeep) {
  Options options = WithMemory();
  options.memory_root = dir_.path();
  EXPECT_THAT(Checkpointer::Open(options).status().message(), HasSubstr("expected a folder on tmpfs"));
  options = WithMemory();
  options.checksums = false;
  EXPECT_THAT(Checkpointer::Open(options).status().message(), HasSubstr("checksums"));
  // Somebody else may have made it.
  KeepAndDie({1}, /*holds=*/true);
  fs::permissions(Folder(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_THAT(Checkpointer::Open(WithMemory()).status().message(), HasSubstr("mode 0700"));
}

}  // namespace
}  // namespace cairn
