// Pauses of copies to the host: they hold copies back, and never a fence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "api/checkpointer_impl.h"
#include "cairn/cairn.h"
#include "device/host_device.h"
#include "support/faulty_device.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr int kChunks = 4;

/// A Checkpointer with one modelled GPU, whose copies are counted. A state is four chunks, as is the pool.
class Pause : public testing::Test {
 protected:
  void SetUp() override { Open(SmallOptions(dir_ / "run")); }
  void TearDown() override { checkpointer_.reset(); }

  void Open(const Options& options) {
    checkpointer_.reset();
    Wiring wiring = Through(disk_);
    wiring.devices = [this](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
      host_ = HostDevice::Make({.id = kGpu, .lanes = 2, .streams = true}, workers);
      device_ = std::make_shared<FaultyDevice>(host_);
      return std::vector<std::shared_ptr<Device>>{device_};
    };
    checkpointer_ = OpenOrFail(options, wiring);
    ASSERT_NE(checkpointer_, nullptr);
    stream_ = host_->MakeStream();
  }
  [[nodiscard]] SaveHandle Save(std::uint64_t step) {
    states_.push_back(std::make_unique<Tensors>(Tensors::Many(kChunks, (1U << 20) / sizeof(float), kGpu)));
    states_.back()->Fill(step);
    auto save = checkpointer_->Save(step, states_.back()->state(), {.streams = {stream_}});
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }
  /// Until the engine has enqueued what it may of a save.
  void AwaitConsidered(const SaveHandle& save) {
    while (save.stats().phase == SavePhase::kQueued) std::this_thread::yield();
    // The engine may be in the midst of it; the next message comes after it.
    const auto next = checkpointer_->GiveUp(999, {StatusCode::kCancelled, "a message for the engine"});
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_EQ(next->WaitDurable(Soon()).code(), StatusCode::kCancelled);
  }
  /// Until no operation of its attempt's beginning will wake the engine any more.
  void AwaitBegun(const SaveHandle& save) {
    const auto begun = [&] {
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(dir_ / "run", error)) {
        if (!entry.path().filename().string().starts_with(".attempt-")) continue;
        if (std::filesystem::exists(entry.path() / "shard-00000.safetensors", error)) return true;
      }
      return false;
    };
    while (!begun()) std::this_thread::yield();
    AwaitConsidered(save);
    AwaitConsidered(save);
  }
  void ExpectHolds(std::uint64_t step) {
    Tensors fresh = Tensors::Many(kChunks, (1U << 20) / sizeof(float), kGpu);
    const auto restored = checkpointer_->Restore(Step(step), fresh.state(), {.streams = {stream_}});
    ASSERT_TRUE(restored.ok()) << restored.status();
    host_->Synchronize(stream_);
    EXPECT_TRUE(fresh.Holds(step));
  }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> disk_ = FaultPlan::Make();
  // Kept until every save has ended.
  std::vector<std::unique_ptr<Tensors>> states_;
  std::shared_ptr<HostDevice> host_;
  std::shared_ptr<FaultyDevice> device_;
  std::unique_ptr<Checkpointer> checkpointer_;
  Stream stream_;
};

TEST_F(Pause, HoldsCopiesBackUntilItEnds) {
  CopyPause pause = checkpointer_->PauseCopies(hours(1));

  const SaveHandle save = Save(1);
  AwaitConsidered(save);
  EXPECT_EQ(device_->copies(), 0);
  pause.End();

  EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
  ExpectHolds(1);
}

TEST_F(Pause, HoldsCopiesBackUntilTheLastOneEnds) {
  CopyPause one = checkpointer_->PauseCopies(hours(1));
  CopyPause other = checkpointer_->PauseCopies(hours(2));
  other = checkpointer_->PauseCopies(hours(3));

  const SaveHandle save = Save(1);
  one.End();
  one.End();
  AwaitConsidered(save);
  EXPECT_EQ(device_->copies(), 0);
  other = CopyPause();

  EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
}

TEST_F(Pause, EndsByItself) {
  const CopyPause pause = checkpointer_->PauseCopies(milliseconds(20));

  EXPECT_EQ(Save(1).WaitDurable(Soon()), Status::Ok());
}

// A leaked one, such as a dead thread's, must not hold copies back for as long as another one would have.
TEST_F(Pause, EndsByItselfAfterALongerOneHasEnded) {
  const CopyPause leaked = checkpointer_->PauseCopies(milliseconds(1));
  CopyPause longer = checkpointer_->PauseCopies(hours(1));
  const SaveHandle save = Save(1);
  AwaitBegun(save);

  longer.End();

  EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
}

// One that ends while the engine looks: between seeing that copies must wait, and deciding for how long to sleep.
TEST_F(Pause, EndsByItselfWhileTheEngineLooks) {
  for (int round = 1; round <= 100; ++round) {
    const auto end = Deadline::Clock::now() + milliseconds(20);
    const CopyPause pause = checkpointer_->PauseCopies(end - Deadline::Clock::now());
    const SaveHandle save = Save(static_cast<std::uint64_t>(round));

    while (Deadline::Clock::now() < end - std::chrono::microseconds(round % 20))
      Inside::Of(save).Release();  // Wakes the engine.

    ASSERT_EQ(save.WaitDurable(Deadline::In(std::chrono::seconds(20))), Status::Ok()) << round;
    states_.clear();
  }
}

TEST_F(Pause, NeverHoldsAFenceBack) {
  const CopyPause pause = checkpointer_->PauseCopies(hours(1));
  const SaveHandle older = Save(1);
  const SaveHandle younger = Save(2);

  ASSERT_EQ(checkpointer_->Fence(stream_, Soon()), Status::Ok());
  host_->Launch(stream_, [&] {
    for (const auto& state : states_) state->Fill(99);
  });
  host_->Synchronize(stream_);

  EXPECT_EQ(older.WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(younger.WaitDurable(Soon()), Status::Ok());
  ExpectHolds(1);
  ExpectHolds(2);
}

TEST_F(Pause, HoldsTheNextSaveBackWhileAFencedOneIsWritten) {
  Options options = SmallOptions(dir_ / "run");
  options.host_memory_bytes *= 2;
  Open(options);
  const FaultGate writes = disk_->Hold({.op = IoOp::kWrite, .path = "shard-"});
  const CopyPause pause = checkpointer_->PauseCopies(hours(1));
  const SaveHandle fenced = Save(1);
  ASSERT_EQ(checkpointer_->Fence(stream_, Soon()), Status::Ok());
  ASSERT_EQ(fenced.WaitCaptured(Soon()), Status::Ok());

  const SaveHandle next = Save(2);
  AwaitConsidered(next);
  EXPECT_EQ(device_->copies(), kChunks);
  ASSERT_EQ(checkpointer_->Fence(stream_, Soon()), Status::Ok());
  writes.Release();

  EXPECT_EQ(next.WaitDurable(Soon()), Status::Ok());
  EXPECT_EQ(fenced.status(), Status::Ok());
}

TEST_F(Pause, KeepsOldestFirst) {
  CopyPause pause = checkpointer_->PauseCopies(hours(1));
  const SaveHandle older = Save(1);
  const SaveHandle younger = Save(2);

  AwaitConsidered(older);
  EXPECT_EQ(younger.stats().phase, SavePhase::kQueued);
  pause.End();

  EXPECT_EQ(younger.WaitCaptured(Soon()), Status::Ok());
  EXPECT_GE(older.stats().phase, SavePhase::kCaptured);
  EXPECT_EQ(older.WaitDurable(Soon()), Status::Ok());  // Their commits come in any order.
  EXPECT_EQ(younger.WaitDurable(Soon()), Status::Ok());
}

// A pause that begins with all of a state on its way would hold nothing back.
TEST_F(Pause, LeavesOneChunkOnItsWayAfterTheFirstOne) {
  { const CopyPause first = checkpointer_->PauseCopies(); }
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());

  const SaveHandle save = Save(1);
  AwaitConsidered(save);
  EXPECT_EQ(device_->copies(), 1);
  ASSERT_EQ(checkpointer_->Fence(stream_, Soon()), Status::Ok());  // The stream waits, not the host.
  EXPECT_EQ(device_->copies(), kChunks);
  device_->ReleaseCopies();

  EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
  ExpectHolds(1);
}

TEST_F(Pause, HasSavesThatFailAndAreCancelled) {
  { const CopyPause first = checkpointer_->PauseCopies(); }
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());
  device_->FailCopyLater(1, {StatusCode::kDeviceError, "failed on the way"});
  const SaveHandle fails = Save(1);
  AwaitConsidered(fails);
  const CopyPause pause = checkpointer_->PauseCopies(hours(1));
  device_->ReleaseCopies();
  EXPECT_EQ(fails.WaitDurable(Soon()), Status(StatusCode::kDeviceError, "failed on the way"));

  const SaveHandle cancelled = Save(2);
  AwaitConsidered(cancelled);
  EXPECT_TRUE(cancelled.Cancel());
  EXPECT_EQ(cancelled.WaitDurable(Soon()).code(), StatusCode::kCancelled);
  EXPECT_EQ(checkpointer_->Fence(stream_, Soon()), Status::Ok());
}

TEST_F(Pause, LosesADeviceWithCopiesHeldBack) {
  { const CopyPause first = checkpointer_->PauseCopies(); }
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());
  const SaveHandle save = Save(1);
  AwaitConsidered(save);
  const CopyPause pause = checkpointer_->PauseCopies(hours(1));

  device_->BecomeSticky();

  EXPECT_EQ(save.WaitDurable(Soon()).code(), StatusCode::kDeviceError);
}

TEST_F(Pause, LeavesPoliciesAsTheyAre) {
  Options options = SmallOptions(dir_ / "run");
  options.max_in_flight = 1;
  options.when_full = WhenFull::kSkip;
  Open(options);
  std::optional<CopyPause> pause = checkpointer_->PauseCopies(hours(1));
  const SaveHandle first = Save(1);
  EXPECT_EQ(Save(2).WaitDurable(Soon()).code(), StatusCode::kCancelled);
  pause.reset();
  EXPECT_EQ(first.WaitDurable(Soon()), Status::Ok());

  options.when_full = WhenFull::kReplace;
  Open(options);
  pause = checkpointer_->PauseCopies(hours(1));
  const SaveHandle replaced = Save(3);
  const SaveHandle last = Save(4);
  EXPECT_EQ(replaced.WaitDurable(Soon()).code(), StatusCode::kCancelled);
  pause.reset();
  EXPECT_EQ(last.WaitDurable(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1, 4));
}

TEST_F(Pause, IsAbandonedWithItsSavesAtTheEnd) {
  Open(SmallOptions(dir_ / "run"));
  CopyPause pause = checkpointer_->PauseCopies(hours(1));
  const SaveHandle save = Save(1);
  AwaitConsidered(save);

  AbandonAtOnce(*checkpointer_);
  checkpointer_.reset();

  EXPECT_EQ(save.status().code(), StatusCode::kDeadlineExceeded);
  pause.End();
}

TEST_F(Pause, EndsWithItsCheckpointer) {
  Options options = SmallOptions(dir_ / "run");
  options.close_timeout = std::chrono::seconds(20);
  Open(options);
  CopyPause left = checkpointer_->PauseCopies(hours(1));
  const SaveHandle save = Save(1);
  AwaitConsidered(save);

  checkpointer_.reset();

  EXPECT_EQ(save.status(), Status::Ok());
  left.End();
}

TEST_F(Pause, HoldsNothingBackInAReadOnlyRoot) {
  Open({.root = dir_ / "run", .read_only = true});

  CopyPause pause = checkpointer_->PauseCopies();

  pause.End();
}

}  // namespace
}  // namespace cairn
