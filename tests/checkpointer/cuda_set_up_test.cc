// When the pool is pinned with a GPU, on the driver's double: at Open, and behind the call that needs more of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cairn/cairn.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"
#include "support/patience.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::IsEmpty;

constexpr DeviceId kGpu{DeviceKind::kCuda, 0};
constexpr std::size_t kBytes = 10'000'000;  // Of the state; a pool that chooses its size begins with 4 MiB.

class CudaSetUp : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Reset();
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda_, nullptr) << why_not;
    tensor_ = cuda_->MakeTensor(std::vector<std::byte>(kBytes, std::byte{7}));
    ASSERT_EQ(state_.Add("tensor", {.data = tensor_,
                                    .dtype = DType::kU8,
                                    .shape = {static_cast<std::int64_t>(kBytes)},
                                    .strides = {},
                                    .device = kGpu}),
              Status::Ok());
  }

  std::unique_ptr<Checkpointer> Open(std::uint64_t memory) {
    auto opened = Checkpointer::Open({.root = directory_ / "run",
                                      .host_memory_bytes = memory,
                                      .chunk_bytes = 1_MiB,
                                      .queue_depth = 2,
                                      .cuda_devices = {0}});
    EXPECT_EQ(opened.status(), Status::Ok());
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  /// The save makes the pool pin memory so many times.
  void SaveAndRestore(Checkpointer& checkpointer, int pins) {
    const int before = Pinned();
    const auto save = checkpointer.Save(1, state_);
    EXPECT_EQ(save.status(), Status::Ok());
    EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());
    const Deadline patience = Soon();
    while (Pinned() < before + pins && !patience.passed()) std::this_thread::yield();
    EXPECT_EQ(Pinned(), before + pins);
    cuda_->LaunchWrite({.device = kGpu}, tensor_, std::vector<std::byte>(kBytes, std::byte{9}));
    EXPECT_EQ(checkpointer.Restore(Latest(), state_, {.streams = {{.device = kGpu}}}).status(), Status::Ok());
    EXPECT_EQ(cuda_->ReadTensor(tensor_, kBytes), std::vector<std::byte>(kBytes, std::byte{7}));
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty()) << "each copy is from or to pinned memory";
  }
  static int Pinned() { return fake_cuda::Calls("cuMemHostRegister"); }

  const TempDir directory_;
  std::unique_ptr<CudaUnderTest> cuda_;
  std::byte* tensor_ = nullptr;
  State state_;
};

TEST_F(CudaSetUp, APoolOfAGivenSizeIsPinnedAtOpen) {
  const int before = Pinned();
  const auto checkpointer = Open(16_MiB);
  EXPECT_EQ(Pinned(), before + 1);

  SaveAndRestore(*checkpointer, 0);
}

TEST_F(CudaSetUp, APoolThatFitsTheStateIsPinnedBehindTheFirstSave) {
  const int before = Pinned();
  auto checkpointer = Open(0);
  EXPECT_EQ(Pinned(), before + 1);

  SaveAndRestore(*checkpointer, 1);

  const Deadline patience = Soon();
  while (checkpointer->stats().pool_bytes != 10_MiB && !patience.passed()) std::this_thread::yield();
  EXPECT_EQ(checkpointer->stats().pool_bytes, 10_MiB);
  const int unpinned = fake_cuda::Calls("cuMemHostUnregister");
  checkpointer.reset();
  EXPECT_EQ(fake_cuda::Calls("cuMemHostUnregister"), unpinned + 2);
}

TEST_F(CudaSetUp, ASaveGoesOnIfNoMoreMayBePinned) {
  const auto checkpointer = Open(0);
  fake_cuda::Fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);

  SaveAndRestore(*checkpointer, 1);

  EXPECT_EQ(checkpointer->stats().pool_bytes, 4_MiB);
}

}  // namespace
}  // namespace cairn
