// The host's cost of a fence on a GPU with a long queue before and after it. Times are only recorded: a test fails if
// the host waited for the queue or the order was not kept. CTest runs it again with CUDA_DEVICE_MAX_CONNECTIONS=1,
// where streams may share a hardware queue.
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "base/status_macros.h"
#include "device/cuda_under_test.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLaunches = 2000;
constexpr std::uint64_t kTensorBytes = 64U << 20;

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

class CudaFence : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    if (cuda_ == nullptr) GTEST_SKIP() << why_not;
  }

  Status Launch(Stream stream, std::byte* at, unsigned char value, int count) {
    return cuda_->context().Run([&]() -> Status {
      for (int i = 0; i < count; ++i) {
        CAIRN_RETURN_IF_ERROR(
            cuda_->context().Check(cuda_->functions().memset_async(reinterpret_cast<CUdeviceptr>(at), value,
                                                                   kTensorBytes, CudaUnderTest::Handle(stream)),
                                   "launching"));
      }
      return Status::Ok();
    });
  }

  // A save as the engine makes it, with `kLaunches` in the caller's stream before it and after its fence.
  void SaveAndFence(Stream stream) {
    Device& device = cuda_->device();
    const StridedLayout tensor = Contiguous(cuda_->MakeTensor(std::vector<std::byte>(kTensorBytes)), kTensorBytes);
    const MutableBytes chunk = cuda_->MakeHostMemory(kTensorBytes);
    const EventId before = *device.AcquireEvent();
    const EventId captured = *device.AcquireEvent();
    std::promise<Status> done;
    std::future<Status> copied = done.get_future();
    ASSERT_EQ(Launch(stream, tensor.base, 1, kLaunches), Status::Ok());

    const Clock::time_point save_begin = Clock::now();
    ASSERT_EQ(device.RecordOnStream(stream, before), Status::Ok());
    ASSERT_EQ(device.LaneWait(0, before), Status::Ok());
    ASSERT_EQ(device.Copy({.pieces = {{&tensor, 0, kTensorBytes, chunk.data()}}},
                          [&](Status status) { done.set_value(std::move(status)); }),
              Status::Ok());
    ASSERT_EQ(device.RecordOnLane(0, captured), Status::Ok());
    const double save_us = MicrosecondsSince(save_begin);
    const Clock::time_point fence_begin = Clock::now();
    ASSERT_EQ(device.StreamWait(stream, captured), Status::Ok());
    const double fence_us = MicrosecondsSince(fence_begin);
    const bool ran_ahead = copied.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    ASSERT_EQ(Launch(stream, tensor.base, 2, kLaunches), Status::Ok());
    cuda_->Synchronize(stream);

    RecordProperty("save_us", std::to_string(save_us));
    RecordProperty("fence_us", std::to_string(fence_us));
    EXPECT_TRUE(ran_ahead) << "the host waited for the copy: " << fence_us << " us";
    EXPECT_EQ(copied.get(), Status::Ok());
    EXPECT_EQ(Copied(chunk), std::vector<std::byte>(kTensorBytes, std::byte{1}));
    EXPECT_EQ(cuda_->ReadTensor(tensor.base, kTensorBytes), std::vector<std::byte>(kTensorBytes, std::byte{2}));
  }

  std::unique_ptr<CudaUnderTest> cuda_;
};

TEST_F(CudaFence, HostRunsAheadOfALongQueue) { SaveAndFence(cuda_->MakeStream()); }

TEST_F(CudaFence, HostRunsAheadOnABlockingStream) { SaveAndFence(cuda_->MakeStream(CU_STREAM_DEFAULT)); }

TEST_F(CudaFence, HostRunsAheadOnTheLegacyStream) { SaveAndFence({{DeviceKind::kCuda, 0}, 0}); }

}  // namespace
}  // namespace cairn
