#include "support/faulty_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <utility>

#include "base/worker_pool.h"
#include "device/device_contract.h"
#include "device/host_device.h"

namespace cairn {
namespace {

class FaultyDeviceTest : public testing::TestWithParam<bool> {
 protected:
  FaultyDeviceTest()
      : workers_("workers", 2),
        inner_(HostDevice::Make({.id = {DeviceKind::kCuda, 0}, .lanes = 2, .streams = GetParam()}, workers_)),
        device_(std::make_unique<FaultyDevice>(inner_)) {}

  [[nodiscard]] CopyBatch Batch(int lane = 0) { return {.lane = lane, .pieces = {{&tensor_, 0, 64, memory_.data()}}}; }

  std::vector<std::byte> contents_ = Pattern(64, 1);
  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  StridedLayout tensor_ = Contiguous(contents_.data(), contents_.size());
  WorkerPool workers_;
  std::shared_ptr<HostDevice> inner_;
  std::unique_ptr<FaultyDevice> device_;
};

TEST_P(FaultyDeviceTest, FailsOnlyTheNthCopy) {
  const Status failure(StatusCode::kDeviceError, "injected");
  device_->FailCopy(2, failure);
  device_->FailCopyLater(3, failure);

  EXPECT_EQ(CopyAndWait(*device_, Batch()), Status::Ok());
  EXPECT_EQ(memory_, contents_);
  memory_.assign(64, std::byte{0});
  EXPECT_EQ(
      device_->Copy(Batch(), [](const Status&) { ADD_FAILURE() << "`done` of a copy that failed at once was called"; }),
      failure);
  std::promise<Status> done;
  EXPECT_EQ(device_->Copy(Batch(), [&](Status status) { done.set_value(std::move(status)); }), Status::Ok());
  EXPECT_EQ(done.get_future().get(), failure);
  EXPECT_EQ(memory_, std::vector<std::byte>(64));
  EXPECT_EQ(CopyAndWait(*device_, Batch()), Status::Ok());

  EXPECT_EQ(memory_, contents_);
  EXPECT_EQ(device_->copies(), 4);
  EXPECT_EQ(device_->Health(), Status::Ok());
}

TEST_P(FaultyDeviceTest, StickyErrorEndsWhatIsUnderWayAndFailsEveryCall) {
  const Result<EventId> event = device_->AcquireEvent();
  ASSERT_TRUE(event.ok());
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());
  device_->BecomeStickyAt(2);
  std::atomic<int> calls = 0;
  const auto count = [&](const Status& status) {
    EXPECT_EQ(status, device_->Health());
    ++calls;
  };

  EXPECT_EQ(device_->Copy(Batch(), count), Status::Ok());
  EXPECT_EQ(device_->Health(), Status::Ok());
  EXPECT_EQ(device_->Copy(Batch(1), count), Status::Ok());

  EXPECT_EQ(device_->Health().code(), StatusCode::kDeviceError);
  EXPECT_EQ(device_->Copy(Batch(), count).code(), StatusCode::kDeviceError);
  EXPECT_EQ(device_->AcquireEvent().status().code(), StatusCode::kDeviceError);
  EXPECT_EQ(device_->RecordOnLane(0, *event).code(), StatusCode::kDeviceError);
  EXPECT_EQ(device_->LaneWait(0, *event).code(), StatusCode::kDeviceError);
  EXPECT_EQ(device_->RecordOnStream({device_->id(), 0}, *event).code(), StatusCode::kDeviceError);
  EXPECT_EQ(device_->StreamWait({device_->id(), 0}, *event).code(), StatusCode::kDeviceError);
  EXPECT_EQ(device_->AllocateStaging(64).status().code(), StatusCode::kDeviceError);
  device_->ReleaseEvent(*event);
  EXPECT_EQ(calls, 2);
}

TEST_P(FaultyDeviceTest, HeldCopiesRunInOrderOnceReleased) {
  ASSERT_EQ(device_->HoldCopies(), Status::Ok());
  std::vector<int> order;  // One lane, so one at a time.
  std::promise<void> all;
  std::atomic<bool> released = false;

  auto saver = std::async(std::launch::async, [&] {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(device_->Copy(Batch(),
                              [&, i](const Status& status) {
                                EXPECT_EQ(status, Status::Ok());
                                EXPECT_TRUE(released);
                                order.push_back(i);
                                if (i == 2) all.set_value();
                              }),
                Status::Ok());
    }
  });
  EXPECT_TRUE(device_->AwaitCopies(3));
  saver.get();
  EXPECT_EQ(memory_, std::vector<std::byte>(64));
  released = true;
  device_->ReleaseCopies();
  all.get_future().get();

  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(memory_, contents_);
  EXPECT_FALSE(device_->AwaitCopies(4, Deadline::In(std::chrono::milliseconds(1))));
  EXPECT_EQ(CopyAndWait(*device_, Batch()), Status::Ok());
}

INSTANTIATE_TEST_SUITE_P(Host, FaultyDeviceTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "streams" : "plain"; });

}  // namespace
}  // namespace cairn
