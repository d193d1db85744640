// Restores to GPUs through CudaDevice, on the driver's test double: full queues, and GPUs that are lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cairn/cairn.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;

constexpr std::uint64_t kBytes = 1024;  // Of a tensor.

class CudaRestores : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::Reset(); }
  void Open(int driver_version) {
    fake_cuda::SetDriverVersion(driver_version);
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda_, nullptr) << why_not;
    stream_ = cuda_->MakeStream();
    auto opened = Checkpointer::Open({.root = directory_ / "run",
                                      .host_memory_bytes = 8_MiB,
                                      .chunk_bytes = 1_MiB,
                                      .queue_depth = 2,
                                      .cuda_devices = {0}});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpointer_ = *std::move(opened);
  }
  void TearDown() override {
    EXPECT_THAT(fake_cuda::Misuses(), testing::IsEmpty());
    checkpointer_.reset();
    cuda_.reset();
    fake_cuda::Reset();
  }

  [[nodiscard]] State MakeState(std::uint32_t tensors, std::vector<std::byte*>& at) {
    State state;
    for (std::uint32_t i = 0; i < tensors; ++i) {
      at.push_back(cuda_->MakeTensor(Pattern(kBytes, i)));
      const TensorView view{.data = at.back(),
                            .dtype = DType::kU8,
                            .shape = {static_cast<std::int64_t>(kBytes)},
                            .device = stream_.device};
      EXPECT_EQ(state.Add("t" + std::to_string(i), view), Status::Ok());
    }
    return state;
  }

  const TempDir directory_;
  std::unique_ptr<CudaUnderTest> cuda_;
  Stream stream_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

// A call that meets a full queue blocks inside the driver, and so does the one that would let the stream go on.
TEST_F(CudaRestores, SeveralAtOnceNeverFillALanesQueueWhileTheCallersStreamIsBusy) {
  constexpr std::uint32_t kTensors = 600;
  constexpr int kRestores = 5;
  Open(12070);  // Without batches: an operation for each tensor.
  std::vector<std::byte*> saved;
  const State state = MakeState(kTensors, saved);
  const auto save = checkpointer_->Save(1, state);
  ASSERT_TRUE(save.ok() && save->WaitDurable().ok());
  std::vector<std::vector<std::byte*>> targets(kRestores);
  std::vector<State> states;
  for (std::vector<std::byte*>& at : targets) states.push_back(MakeState(kTensors, at));
  for (const auto& of_restore : targets) {
    for (std::byte* at : of_restore) cuda_->LaunchWrite(stream_, at, Pattern(kBytes, 7777));
  }
  cuda_->Synchronize(stream_);
  const int before = fake_cuda::BlockedLaunches();  // By these writes.
  std::promise<void> step_may_end;
  cuda_->LaunchOnHost(stream_, [&] { step_may_end.get_future().wait(); });

  std::vector<std::future<Status>> restores;
  for (State& one : states) {
    restores.push_back(std::async(
        std::launch::async, [&] { return checkpointer_->Restore(Latest(), one, {.streams = {stream_}}).status(); }));
  }
  for (const auto& one : restores) {
    EXPECT_EQ(one.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  }
  const int blocked = fake_cuda::BlockedLaunches() - before;
  if (blocked != 0) fake_cuda::SetSticky(CUDA_ERROR_LAUNCH_FAILED);  // Nothing else ends them.
  step_may_end.set_value();

  EXPECT_EQ(blocked, 0);
  for (auto& one : restores) ASSERT_EQ(one.get(), Status::Ok());
  cuda_->Synchronize(stream_);
  for (const auto& of_restore : targets) {
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      ASSERT_EQ(cuda_->ReadTensor(of_restore[i], kBytes), Pattern(kBytes, i)) << "tensor " << i;
    }
  }
}

// A batch of copies has no order: what shares memory is not in one.
TEST_F(CudaRestores, TargetsThatShareMemoryAreWrittenOneAfterTheOther) {
  Open(13000);
  constexpr std::int64_t kLong = 200'000;
  const auto view = [&](std::byte* at) {
    return TensorView{.data = at, .dtype = DType::kU8, .shape = {kLong}, .device = stream_.device};
  };
  State state;
  State shared;
  std::byte* const memory = cuda_->MakeTensor(std::vector<std::byte>(2 * kLong));
  for (int i = 0; i < 4; ++i) {
    const std::string name = "t" + std::to_string(i);
    std::byte* const at = cuda_->MakeTensor(std::vector<std::byte>(kLong, static_cast<std::byte>(i + 1)));
    ASSERT_EQ(state.Add(name, view(at)), Status::Ok());
    ASSERT_EQ(shared.Add(name, view(memory + i * kLong / 4)), Status::Ok());
  }
  const auto save = checkpointer_->Save(1, state);
  ASSERT_TRUE(save.ok() && save->WaitDurable().ok());

  ASSERT_EQ(checkpointer_->Restore(Latest(), shared, {.streams = {stream_}}).status(), Status::Ok());

  cuda_->Synchronize(stream_);
  const std::vector<std::byte> found = cuda_->ReadTensor(memory, 2 * kLong);
  EXPECT_EQ(std::count(found.begin(), found.end(), std::byte{4}), kLong) << "whole, as nothing was written over it";
}

}  // namespace
}  // namespace cairn
