// The contract of devices that have streams: what waits for what.
#include <atomic>
#include <future>
#include <utility>

#include "device/device_contract.h"

namespace cairn {
namespace {

#define SKIP_WITHOUT_STREAMS() \
  if (!device().has_streams()) GTEST_SKIP() << "this device has no streams"

constexpr std::uint64_t kSize = 100'000;

// Blocks a stream until it is opened, at the latest at the end of the test.
class Gate {
 public:
  Gate(DeviceUnderTest& under_test, Stream stream) {
    under_test.LaunchOnHost(stream, [opened = opened_.get_future().share()] { opened.wait(); });
  }
  ~Gate() { Open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void Open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

}  // namespace

TEST_P(DeviceContract, CopyAfterAnEventSeesTheCallersWrites) {
  SKIP_WITHOUT_STREAMS();
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(Pattern(kSize, 1)), kSize);
  const MutableBytes chunk = under_test_->MakeHostMemory(kSize);
  const std::vector<std::byte> written = Pattern(kSize, 2);
  const Stream stream = under_test_->MakeStream();
  const EventId event = Acquire(device());
  Gate gate(*under_test_, stream);
  under_test_->LaunchWrite(stream, tensor.base, written);
  std::promise<bool> copied_after_opening;
  std::atomic<bool> opened = false;

  ASSERT_EQ(device().RecordOnStream(stream, event), Status::Ok());
  ASSERT_EQ(device().LaneWait(0, event), Status::Ok());
  ASSERT_EQ(device().Copy({.pieces = {{&tensor, 0, kSize, chunk.data()}}},
                          [&](const Status& status) { copied_after_opening.set_value(status.ok() && opened); }),
            Status::Ok());
  // A lane that waits for nothing continues meanwhile.
  ASSERT_EQ(CopyAndWait(device(), {.lane = 1}), Status::Ok());
  opened = true;
  gate.Open();

  EXPECT_TRUE(copied_after_opening.get_future().get());
  EXPECT_EQ(Copied(chunk), written);
  device().ReleaseEvent(event);
}

TEST_P(DeviceContract, CallersStreamWaitsForTheLanesEvent) {
  SKIP_WITHOUT_STREAMS();
  const std::vector<std::byte> before = Pattern(kSize, 3);
  const std::vector<std::byte> after = Pattern(kSize, 4);
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(before), kSize);
  const MutableBytes chunk = under_test_->MakeHostMemory(kSize);
  const Stream holder = under_test_->MakeStream();
  const Stream trainer = under_test_->MakeStream();
  const EventId start = Acquire(device());
  const EventId captured = Acquire(device());
  Gate gate(*under_test_, holder);
  ASSERT_EQ(device().RecordOnStream(holder, start), Status::Ok());
  ASSERT_EQ(device().LaneWait(0, start), Status::Ok());
  std::promise<Status> copied;
  ASSERT_EQ(device().Copy({.pieces = {{&tensor, 0, kSize, chunk.data()}}},
                          [&](Status status) { copied.set_value(std::move(status)); }),
            Status::Ok());

  // The fence: the host runs ahead, the optimizer's write waits in its stream.
  ASSERT_EQ(device().RecordOnLane(0, captured), Status::Ok());
  ASSERT_EQ(device().StreamWait(trainer, captured), Status::Ok());
  under_test_->LaunchWrite(trainer, tensor.base, after);
  gate.Open();
  under_test_->Synchronize(trainer);

  EXPECT_EQ(copied.get_future().get(), Status::Ok());
  EXPECT_EQ(Copied(chunk), before);
  EXPECT_EQ(under_test_->ReadTensor(tensor.base, kSize), after);
  device().ReleaseEvent(start);
  device().ReleaseEvent(captured);
}

TEST_P(DeviceContract, WaitUsesTheLatestRecordAtItsTime) {
  SKIP_WITHOUT_STREAMS();
  const Stream held = under_test_->MakeStream();
  const Stream idle = under_test_->MakeStream();
  const Stream waits_for_idle = under_test_->MakeStream();
  const Stream waits_for_held = under_test_->MakeStream();
  const EventId event = Acquire(device());
  std::atomic<bool> opened = false;
  std::promise<bool> ran_after_opening;
  Gate gate(*under_test_, held);

  ASSERT_EQ(device().RecordOnStream(idle, event), Status::Ok());
  ASSERT_EQ(device().StreamWait(waits_for_idle, event), Status::Ok());
  ASSERT_EQ(device().RecordOnStream(held, event), Status::Ok());
  ASSERT_EQ(device().StreamWait(waits_for_held, event), Status::Ok());
  under_test_->LaunchOnHost(waits_for_held, [&] { ran_after_opening.set_value(opened); });
  ASSERT_EQ(device().RecordOnStream(idle, event), Status::Ok());

  // Returns although the event was later recorded on the blocked stream.
  under_test_->Synchronize(waits_for_idle);
  opened = true;
  gate.Open();
  EXPECT_TRUE(ran_after_opening.get_future().get());
  device().ReleaseEvent(event);
}

TEST_P(DeviceContract, WaitingForAnUnrecordedEventIsRefused) {
  SKIP_WITHOUT_STREAMS();
  const Stream stream = under_test_->MakeStream();
  const EventId event = Acquire(device());

  EXPECT_EQ(device().StreamWait(stream, event).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(device().LaneWait(0, event).code(), StatusCode::kFailedPrecondition);

  // Nothing waits, and the device still works.
  under_test_->Synchronize(stream);
  EXPECT_EQ(CopyAndWait(device(), {}), Status::Ok());
  EXPECT_EQ(device().Health(), Status::Ok());
  device().ReleaseEvent(event);
}

TEST_P(DeviceContract, OneLaneWaitsForAnother) {
  SKIP_WITHOUT_STREAMS();
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(Pattern(kSize, 5)), kSize);
  const MutableBytes in = under_test_->MakeHostMemory(kSize);
  const MutableBytes out = under_test_->MakeHostMemory(kSize);
  const std::vector<std::byte> contents = Pattern(kSize, 6);
  std::copy(contents.begin(), contents.end(), in.begin());
  const Stream holder = under_test_->MakeStream();
  const EventId start = Acquire(device());
  const EventId written = Acquire(device());
  Gate gate(*under_test_, holder);
  ASSERT_EQ(device().RecordOnStream(holder, start), Status::Ok());
  ASSERT_EQ(device().LaneWait(0, start), Status::Ok());

  ASSERT_EQ(
      device().Copy({.direction = CopyDirection::kToDevice, .lane = 0, .pieces = {{&tensor, 0, kSize, in.data()}}},
                    [](const Status& status) { EXPECT_EQ(status, Status::Ok()); }),
      Status::Ok());
  ASSERT_EQ(device().RecordOnLane(0, written), Status::Ok());
  ASSERT_EQ(device().LaneWait(1, written), Status::Ok());
  std::promise<Status> copied;
  ASSERT_EQ(device().Copy({.lane = 1, .pieces = {{&tensor, 0, kSize, out.data()}}},
                          [&](Status status) { copied.set_value(std::move(status)); }),
            Status::Ok());
  gate.Open();

  EXPECT_EQ(copied.get_future().get(), Status::Ok());
  EXPECT_EQ(Copied(out), contents);
  device().ReleaseEvent(start);
  device().ReleaseEvent(written);
}

TEST_P(DeviceContract, StreamsOfAnotherDeviceAreRefused) {
  SKIP_WITHOUT_STREAMS();
  Stream stream = under_test_->MakeStream();
  stream.device.index += 1;
  const EventId event = Acquire(device());

  EXPECT_EQ(device().RecordOnStream(stream, event).code(), StatusCode::kInvalidArgument);
  device().ReleaseEvent(event);
}

}  // namespace cairn
