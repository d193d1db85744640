// Saves of strided tensors on a GPU, and restores in place, through the public API, on the driver's test double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/strided.h"
#include "cairn/cairn.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;
using testing::AllOf;
using testing::HasSubstr;

const DeviceId kGpu{DeviceKind::kCuda, 0};

struct Tensor {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  [[nodiscard]] std::uint64_t storage() const {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
    return (static_cast<std::uint64_t>(last) + 1) * DTypeSize(dtype);
  }
  [[nodiscard]] StridedLayout At(std::byte* at) const {
    return MakeStridedLayout(at, DTypeSize(dtype), shape, strides);
  }
};

// As a convolutional model under AMP has them, with an embedding, and many small ones.
std::vector<Tensor> Model() {
  std::vector<Tensor> model = {
      {"conv.weight", DType::kF32, {64, 48, 3, 3}, {432, 1, 144, 48}},
      {"conv.half", DType::kBF16, {32, 24, 5, 5}, {600, 1, 120, 24}},
      {"conv3d.weight", DType::kF32, {16, 8, 3, 3, 3}, {216, 1, 72, 24, 8}},
      {"transposed", DType::kF32, {700, 300}, {1, 700}},
      {"slice", DType::kI64, {50, 20, 3}, {400, 10, 2}},
      {"plain", DType::kF32, {500, 500}, {500, 1}},
  };
  for (int i = 0; i < 600; ++i) {
    model.push_back({"small" + std::to_string(i), DType::kBF16, {1 + i % 97}, {1}});
  }
  return model;
}

class CudaStrides : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Reset();
    fake_cuda::DefineCairnsKernels();
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda_, nullptr) << why_not;
  }
  void TearDown() override {
    cuda_.reset();
    EXPECT_THAT(fake_cuda::Misuses(), testing::IsEmpty());
    fake_cuda::Reset();
  }

  struct Placed {
    State state;
    std::vector<std::byte*> at;
  };
  // In GPU memory whose contents `seed` decides.
  Placed Place(std::uint32_t seed) {
    Placed placed;
    for (const Tensor& tensor : model_) {
      placed.at.push_back(cuda_->MakeTensor(Pattern(tensor.storage(), seed)));
      const TensorView view{.data = placed.at.back(),
                            .dtype = tensor.dtype,
                            .shape = tensor.shape,
                            .strides = tensor.strides,
                            .device = kGpu};
      EXPECT_EQ(placed.state.Add(tensor.name, view), Status::Ok());
    }
    return placed;
  }
  void SaveAndRestore(std::uint64_t staging_bytes) {
    const TempDir dir;
    Placed saved = Place(1);
    Placed target = Place(2);
    const Stream stream = cuda_->MakeStream();
    auto checkpointer = Checkpointer::Open(
        {.root = dir / "run", .host_memory_bytes = 8_MiB, .chunk_bytes = 1_MiB, .staging_bytes = staging_bytes});
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();

    auto save = (*checkpointer)->Save(1, saved.state, {.streams = {stream}});
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_EQ((*checkpointer)->Fence(stream), Status::Ok());
    // The optimizer's step, behind the fence.
    for (std::size_t i = 0; i < 6; ++i) {
      cuda_->LaunchWrite(stream, saved.at[i], std::vector<std::byte>(model_[i].storage()));
    }
    ASSERT_EQ(save->WaitDurable(), Status::Ok());
    auto restored = (*checkpointer)->Restore(Latest(), target.state, {.streams = {stream}});
    ASSERT_TRUE(restored.ok()) << restored.status();
    cuda_->Synchronize(stream);

    for (std::size_t i = 0; i < model_.size(); ++i) {
      const Tensor& tensor = model_[i];
      // The logical bytes of the saved one, between the bytes of the target.
      std::vector<std::byte> was = Pattern(tensor.storage(), 1);
      std::vector<std::byte> expected = Pattern(tensor.storage(), 2);
      const StridedLayout from = tensor.At(was.data());
      std::vector<std::byte> logical(from.bytes);
      GatherBytes(from, 0, from.bytes, logical.data());
      ScatterBytes(tensor.At(expected.data()), 0, from.bytes, logical.data());
      EXPECT_TRUE(under_test().ReadTensor(target.at[i], tensor.storage()) == expected) << tensor.name;
    }
  }
  DeviceUnderTest& under_test() { return *cuda_; }

  std::vector<Tensor> model_ = Model();
  std::unique_ptr<CudaUnderTest> cuda_;
};

TEST_F(CudaStrides, SaveAndRestoreInPlaceThroughThePool) {
  SaveAndRestore(0);

  // 5 strided tensors, some of them in two chunks, and 600 small ones, there and back.
  EXPECT_GE(fake_cuda::Calls("cuLaunchKernel"), 12);
  EXPECT_LE(fake_cuda::Calls("cuLaunchKernel"), 16);
}

TEST_F(CudaStrides, SaveAndRestoreInPlaceThroughStaging) {
  SaveAndRestore(16_MiB);
  EXPECT_GT(fake_cuda::Calls("cuLaunchKernel"), 0);
}

// A GPU that runs no kernels says so when the first save begins, not when a job cannot resume.
TEST_F(CudaStrides, WithoutKernelsTheSaveIsRefusedWithTheTensorsName) {
  const TempDir dir;
  fake_cuda::Hide("cuLaunchKernel");
  Placed saved = Place(1);
  auto checkpointer = Checkpointer::Open({.root = dir / "run", .host_memory_bytes = 8_MiB, .chunk_bytes = 1_MiB});
  ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();

  auto save = (*checkpointer)->Save(1, saved.state);

  EXPECT_EQ(save.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(save.status().message(),
              AllOf(HasSubstr("tensor \"conv.weight\" on cuda:0"), HasSubstr("make it contiguous first")));
}

}  // namespace
}  // namespace cairn
