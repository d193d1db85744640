// A modelled GPU that fails during a save: saves fail, nobody hangs, the root stays usable.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "device/host_device.h"
#include "device/stream_point.h"
#include "support/faulty_device.h"
#include "support/small_run.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr std::size_t kElements = 1'000'000;  // Four chunks.

/// A Checkpointer with one modelled GPU that can fail.
class DeviceFault : public testing::Test {
 protected:
  void SetUp() override { Open(SmallOptions(root())); }

  void Open(const Options& options) {
    checkpointer_.reset();
    Wiring wiring = Through(plan_);
    wiring.devices = [this](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
      host_ = HostDevice::Make({.id = kGpu, .lanes = 2, .streams = true}, workers);
      device_ = std::make_shared<FaultyDevice>(host_);
      return std::vector<std::shared_ptr<Device>>{device_};
    };
    checkpointer_ = OpenOrFail(options, wiring);
    ASSERT_NE(checkpointer_, nullptr);
    stream_ = host_->MakeStream();
  }
  void TearDown() override {
    checkpointer_.reset();
    device_.reset();
    host_.reset();
  }

  [[nodiscard]] std::string root() const { return dir_ / "run"; }
  [[nodiscard]] Tensors& MakeState(std::uint64_t seed) {
    states_.push_back(std::make_unique<Tensors>(Tensors::Many(1, kElements, kGpu)));
    states_.back()->Fill(seed);
    return *states_.back();
  }
  SaveHandle Start(std::uint64_t step) {
    auto save = checkpointer_->Save(step, MakeState(step).state(), {.streams = {stream_}});
    EXPECT_TRUE(save.ok()) << save.status();
    return *save;
  }
  /// After the device works again: a new Checkpointer finds what was committed and continues.
  void ExpectWorksAfterwards(const std::vector<std::uint64_t>& steps) {
    Open(SmallOptions(root()));
    EXPECT_EQ(ListedSteps(*checkpointer_), steps);
    EXPECT_THAT(Leftovers(root()), IsEmpty());
    for (const std::uint64_t step : steps) {
      Tensors fresh = Tensors::Many(1, kElements, kGpu);
      const auto restored = checkpointer_->Restore(Step(step), fresh.state(), {.streams = {stream_}});
      ASSERT_TRUE(restored.ok()) << restored.status();
      host_->Synchronize(stream_);
      EXPECT_TRUE(fresh.Holds(step));
    }
    EXPECT_EQ(Start(100).WaitDurable(Soon()), Status::Ok());
  }

  const TempDir dir_;
  const std::shared_ptr<FaultPlan> plan_ = FaultPlan::Make();
  std::vector<std::unique_ptr<Tensors>> states_;
  std::shared_ptr<HostDevice> host_;
  std::shared_ptr<FaultyDevice> device_;
  std::unique_ptr<Checkpointer> checkpointer_;
  Stream stream_;
};

TEST_F(DeviceFault, FailsTheSaveIfACopyIsRejected) {
  ASSERT_EQ(Start(1).WaitDurable(Soon()), Status::Ok());
  for (const int nth : {1, 2, 4}) {
    const int before = device_->copies();
    device_->FailCopy(before + nth, {StatusCode::kDeviceError, "refused"});
    const auto step = static_cast<std::uint64_t>(10 * nth);

    const SaveHandle save = Start(step);

    EXPECT_EQ(checkpointer_->Fence(stream_), Status::Ok());
    EXPECT_EQ(save.WaitDurable(Soon()), Status(StatusCode::kDeviceError, "refused"));
    EXPECT_EQ(save.WaitCaptured(Soon()), Status(StatusCode::kDeviceError, "refused"));
    EXPECT_EQ(checkpointer_->LastFailure(), Status(StatusCode::kDeviceError, "refused"));
    EXPECT_EQ(Start(step + 1).WaitDurable(Soon()), Status::Ok());
  }
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(11, 21, 41));
}

TEST_F(DeviceFault, FailsTheSaveIfACopyFailsLater) {
  ASSERT_EQ(Start(1).WaitDurable(Soon()), Status::Ok());
  for (const int nth : {1, 3, 4}) {
    device_->FailCopyLater(device_->copies() + nth, {StatusCode::kDeviceError, "failed on the way"});
    const auto step = static_cast<std::uint64_t>(10 * nth);

    const SaveHandle save = Start(step);

    EXPECT_EQ(save.WaitDurable(Soon()), Status(StatusCode::kDeviceError, "failed on the way"));
    EXPECT_EQ(Start(step + 1).WaitDurable(Soon()), Status::Ok());
  }
  EXPECT_EQ(checkpointer_->Drain(Soon()), Status::Ok());
  EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(11, 31, 41));
}

TEST_F(DeviceFault, FailsEverySaveAfterAStickyError) {
  ASSERT_EQ(Start(1).WaitDurable(Soon()), Status::Ok());
  // During the second of three saves.
  device_->BecomeStickyAt(device_->copies() + 6);
  std::vector<SaveHandle> saves;
  for (std::uint64_t step = 2; step <= 4; ++step) {
    auto save = checkpointer_->Save(step, MakeState(step).state(), {.streams = {stream_}});
    if (save.ok()) saves.push_back(*save);
  }
  ASSERT_FALSE(saves.empty());

  // It must return, with the device's error or, if the saves are over, without.
  static_cast<void>(checkpointer_->Fence(stream_));
  bool some_failed = false;
  for (const SaveHandle& save : saves) {
    const Status captured = save.WaitCaptured(Soon());
    const Status status = save.WaitDurable(Soon());
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDeviceError) << status;
    some_failed = some_failed || !status.ok();
  }
  EXPECT_TRUE(some_failed);
  EXPECT_EQ(checkpointer_->LastFailure().code(), StatusCode::kDeviceError);
  EXPECT_THAT(checkpointer_->LastFailure().message(), HasSubstr("illegal memory access"));
  EXPECT_EQ(checkpointer_->Fence(stream_).code(), StatusCode::kDeviceError);
  EXPECT_EQ(checkpointer_->Save(9, MakeState(9).state(), {.streams = {stream_}}).status().code(),
            StatusCode::kDeviceError);

  const std::vector<std::uint64_t> steps = ListedSteps(*checkpointer_);
  EXPECT_THAT(steps, testing::Contains(1));
  ExpectWorksAfterwards(steps);
}

// Copies wait on a hanging stream; then the device is lost.
TEST_F(DeviceFault, NoticesALostDeviceWhileItSleeps) {
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());
  const SaveHandle save = Start(1);
  ASSERT_TRUE(device_->AwaitCopies(3, Soon()));

  device_->BecomeSticky();

  EXPECT_EQ(save.WaitDurable(Soon()).code(), StatusCode::kDeviceError);
  EXPECT_EQ(save.stats().phase, SavePhase::kFailed);
  ExpectWorksAfterwards({});
}

TEST_F(DeviceFault, ClosesWithSavesOnALostDevice) {
  Open(SmallOptions(root()));
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());
  const SaveHandle save = Start(1);
  ASSERT_TRUE(device_->AwaitCopies(3, Soon()));
  device_->BecomeSticky();

  AbandonAtOnce(*checkpointer_);
  checkpointer_.reset();

  EXPECT_EQ(save.stats().phase, SavePhase::kFailed);
  ExpectWorksAfterwards({});
}

TEST_F(DeviceFault, FailsAStagedSaveOnALostDevice) {
  Options options = SmallOptions(root());
  options.staging_bytes = 16 << 20;
  Open(options);
  ASSERT_EQ(Start(1).WaitDurable(Soon()), Status::Ok());
  for (const int nth : {1, 2, 3, 5}) {
    SCOPED_TRACE(nth);
    device_->BecomeStickyAt(device_->copies() + nth);
    const SaveHandle save = Start(2);
    static_cast<void>(checkpointer_->Fence(stream_));

    EXPECT_EQ(save.WaitDurable(Soon()).code(), StatusCode::kDeviceError);

    Open(options);
    EXPECT_THAT(ListedSteps(*checkpointer_), ElementsAre(1));
  }
  ExpectWorksAfterwards({1});
}

// A staged save that fails releases its staging memory: the next one is staged.
TEST_F(DeviceFault, StagesTheNextSaveAfterAFailedOne) {
  Options options = SmallOptions(root());
  options.staging_bytes = 4 << 20;
  Open(options);
  for (const int nth : {1, 2, 3, 5}) {
    SCOPED_TRACE(nth);
    device_->FailCopyLater(device_->copies() + nth, {StatusCode::kDeviceError, "failed"});
    EXPECT_EQ(Start(static_cast<std::uint64_t>(nth)).WaitDurable(Soon()).code(), StatusCode::kDeviceError);
  }
  const SaveHandle save = Start(100);
  EXPECT_EQ(save.WaitDurable(Soon()), Status::Ok());
  EXPECT_TRUE(save.stats().staged);
}

// Copies out of staging memory are delayed: the next save must not get the slots.
TEST_F(DeviceFault, KeepsAStagingSlotUntilItsChunkIsCopied) {
  constexpr std::size_t kTwoChunks = (2U << 20) / sizeof(float);
  Options options = SmallOptions(root());
  options.staging_bytes = 2 << 20;
  Open(options);
  Tensors first = Tensors::Many(1, kTwoChunks, kGpu);
  Tensors second = Tensors::Many(1, kTwoChunks, kGpu);
  first.Fill(1);
  second.Fill(2);
  const auto held = std::make_shared<StreamPoint>();
  const Stream blocked = host_->MakeStream();
  host_->Launch(blocked, [held] { held->Await(); });
  const Result<EventId> event = host_->AcquireEvent();
  ASSERT_EQ(host_->RecordOnStream(blocked, *event), Status::Ok());
  ASSERT_EQ(host_->LaneWait(0, *event), Status::Ok());  // The other lane stages.

  const auto save = checkpointer_->Save(1, first.state(), {.streams = {stream_}});
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(save->WaitCaptured(Soon()), Status::Ok());
  const auto next = checkpointer_->Save(2, second.state(), {.streams = {stream_}});
  EXPECT_TRUE(device_->AwaitCopies(5, Soon()));  // Two chunks into staging memory at once, two out of it, two directly.
  held->Reach();

  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->WaitDurable(Soon()), Status::Ok());
  EXPECT_TRUE(save->stats().staged);
  EXPECT_FALSE(next->stats().staged);
  for (const std::uint64_t step : {1, 2}) {
    Tensors restored = Tensors::Many(1, kTwoChunks, kGpu);
    EXPECT_EQ(checkpointer_->Restore(Step(step), restored.state()).status(), Status::Ok());
    EXPECT_TRUE(restored.Holds(step)) << "step " << step;
  }
}

// The disk fails while copies wait on a stream: nothing may read the tensors after the save has ended.
TEST_F(DeviceFault, WaitsForCopiesInFlightBeforeAFailedSaveEnds) {
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());
  plan_->Fail({.op = IoOp::kFallocate}, EIO);
  const SaveHandle save = Start(1);
  ASSERT_TRUE(device_->AwaitCopies(4, Soon()));

  EXPECT_EQ(save.WaitCaptured(Deadline::In(std::chrono::milliseconds(50))).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(save.stats().phase, SavePhase::kCapturing);
  device_->ReleaseCopies();

  EXPECT_EQ(save.WaitDurable(Soon()).code(), StatusCode::kIoError);
  plan_->Clear();
  EXPECT_EQ(Start(2).WaitDurable(Soon()), Status::Ok());
}

}  // namespace
}  // namespace cairn
