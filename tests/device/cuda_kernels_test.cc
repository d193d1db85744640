// When CudaDevice uses its kernels, and what it does where they cannot run. On the driver's test double, which compares
// the PTX and runs its source.
#include <gmock/gmock.h>

#include <utility>

#include "device/cuda_device.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CudaKernelUse : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Reset();
    fake_cuda::DefineCairnsKernels();
  }
  void TearDown() override {
    cuda_.reset();
    EXPECT_EQ(fake_cuda::LiveObjects(), 0);
    EXPECT_THAT(fake_cuda::Misuses(), testing::SizeIs(misuses_));
    fake_cuda::Reset();
  }

  void MakeDevice() {
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda_, nullptr) << why_not;
    chunk_ = cuda_->MakeHostMemory(1U << 20);
  }
  Device& device() { return cuda_->device(); }

  // Pieces of `bytes` each, of one tensor each, back to back in `memory`.
  CopyBatch Batch(std::size_t count, std::uint64_t bytes, MutableBytes memory) {
    CopyBatch batch;
    for (std::uint32_t i = 0; i < count; ++i) {
      layouts_.push_back(std::make_unique<StridedLayout>(Contiguous(cuda_->MakeTensor(Pattern(bytes, i)), bytes)));
      batch.pieces.push_back({layouts_.back().get(), 0, bytes, memory.data() + i * bytes});
    }
    return batch;
  }
  StridedLayout ChannelsLast() {
    const std::vector<std::int64_t> shape = {4, 8, 3, 3};
    const std::vector<std::int64_t> strides = {72, 1, 24, 8};
    return MakeStridedLayout(cuda_->MakeTensor(Pattern(1152, 1)), 4, shape, strides);
  }
  // Calls since the last question.
  int Launches() { return Since("cuLaunchKernel"); }
  int Batches() { return Since("cuMemcpyBatchAsync"); }
  int Since(const std::string& function) {
    const int calls = fake_cuda::Calls(function);
    return calls - std::exchange(asked_[function], calls);
  }

  std::unique_ptr<CudaUnderTest> cuda_;
  MutableBytes chunk_;
  std::vector<std::unique_ptr<StridedLayout>> layouts_;
  std::map<std::string, int> asked_;
  // Expected.
  std::size_t misuses_ = 0;
};

TEST_F(CudaKernelUse, SmallPiecesAreOneLaunchForSomeHundreds) {
  MakeDevice();
  ASSERT_EQ(CopyAndWait(device(), Batch(1000, 777, chunk_)), Status::Ok());
  EXPECT_EQ(Launches(), 3);
  EXPECT_EQ(Batches(), 0);
  for (std::uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(Copied(chunk_.subspan(i * 777, 777)), Pattern(777, i));
}

TEST_F(CudaKernelUse, LargeOrFewOrScatteredPiecesAreCopied) {
  MakeDevice();
  ASSERT_EQ(CopyAndWait(device(), Batch(7, 128U << 10, chunk_)), Status::Ok());
  ASSERT_EQ(CopyAndWait(device(), Batch(3, 777, chunk_)), Status::Ok());
  CopyBatch scattered = Batch(10, 777, chunk_);
  for (std::size_t i = 0; i < 10; ++i) scattered.pieces[i].memory = chunk_.data() + i * 1000;
  ASSERT_EQ(CopyAndWait(device(), scattered), Status::Ok());
  EXPECT_EQ(Launches(), 0);
  EXPECT_EQ(Batches(), 3);
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(Copied(chunk_.subspan(i * 1000, 777)), Pattern(777, i));
}

TEST_F(CudaKernelUse, WideRowsAreCopiedInOneCallAndShortRowsInALaunch) {
  MakeDevice();
  const StridedLayout wide = Rows(cuda_->MakeTensor(Pattern(64 << 10, 1)), 512, 64, 1024);
  const StridedLayout narrow = Rows(cuda_->MakeTensor(Pattern(64 << 10, 1)), 508, 64, 1024);

  ASSERT_EQ(CopyAndWait(device(), {.pieces = {{&wide, 0, wide.bytes, chunk_.data()}}}), Status::Ok());
  EXPECT_EQ(Since("cuMemcpy2DAsync"), 1);
  EXPECT_EQ(Launches(), 0);

  ASSERT_EQ(CopyAndWait(device(), {.pieces = {{&narrow, 0, narrow.bytes, chunk_.data()}}}), Status::Ok());
  EXPECT_EQ(Since("cuMemcpy2DAsync"), 0);
  EXPECT_EQ(Launches(), 1);
}

// As other code of the process may pin it.
TEST_F(CudaKernelUse, PinnedMemoryThatIsNotMappedIsNeverGivenToAKernel) {
  MakeDevice();
  const MutableBytes memory = cuda_->MakePlainMemory(64U << 10);
  const CudaContext& context = cuda_->context();
  ASSERT_EQ(context.Run([&] {
    return context.Check(context.driver().mem_host_register(memory.data(), memory.size(), kMemHostRegisterPortable),
                         "pinning");
  }),
            Status::Ok());
  ASSERT_EQ(device().PinMemory(memory), Status::Ok());

  EXPECT_EQ(CopyAndWait(device(), Batch(10, 777, memory)), Status::Ok());

  EXPECT_EQ(Launches(), 0);
  EXPECT_EQ(Batches(), 1);
  EXPECT_EQ(
      context.Run([&] { return context.Check(context.driver().mem_host_unregister(memory.data()), "unpinning"); }),
      Status::Ok());
}

TEST_F(CudaKernelUse, MemoryThatWasUnpinnedIsForgotten) {
  MakeDevice();
  const MutableBytes memory = cuda_->MakePlainMemory(64U << 10);
  const CopyBatch batch = Batch(10, 777, memory);
  ASSERT_EQ(device().PinMemory(memory), Status::Ok());
  EXPECT_EQ(CopyAndWait(device(), batch), Status::Ok());
  device().UnpinMemory(memory);
  EXPECT_EQ(Launches(), 1);

  // The driver refuses pageable memory in a batch. A kernel would be an illegal access.
  misuses_ = 1;
  EXPECT_FALSE(CopyAndWait(device(), batch).ok());

  EXPECT_EQ(Launches(), 0);
  EXPECT_EQ(device().Health(), Status::Ok());
}

// As a host that pins one pool for all its GPUs does.
TEST_F(CudaKernelUse, ASecondGpusKernelsUseAPoolThatTheFirstPinned) {
  MakeDevice();
  Result<std::unique_ptr<Device>> other = MakeCudaDevice({.index = 1});
  ASSERT_EQ(other.status(), Status::Ok());
  ASSERT_EQ((*other)->PinMemory(chunk_), Status::Ok());
  Result<std::byte*> tensor = (*other)->AllocateStaging(4096);
  ASSERT_EQ(tensor.status(), Status::Ok());
  const StridedLayout layout = Rows(*tensor, 4, 100, 40);
  ASSERT_EQ((*other)->CheckLayout(layout), Status::Ok());

  EXPECT_EQ(CopyAndWait(**other, {.direction = CopyDirection::kToDevice, .pieces = {{&layout, 0, 400, chunk_.data()}}}),
            Status::Ok());

  EXPECT_EQ(Launches(), 1);
}

// An older driver that does not know the PTX, or has no compiler for it.
TEST_F(CudaKernelUse, ADriverThatRefusesThePtxCopiesAsBefore) {
  fake_cuda::Fail("cuModuleLoadData", CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  MakeDevice();

  const Status status = device().CheckLayout(ChannelsLast());
  ASSERT_EQ(CopyAndWait(device(), Batch(10, 777, chunk_)), Status::Ok());

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("found 3: make it contiguous first"),
                                      HasSubstr("loading Cairn's kernels: CUDA error 222")));
  EXPECT_EQ(Launches(), 0);
  EXPECT_EQ(Batches(), 1);
  EXPECT_EQ(device().Health(), Status::Ok());
}

TEST_F(CudaKernelUse, TurnedOffNoModuleIsLoaded) {
  Result<std::unique_ptr<Device>> device = MakeCudaDevice({.kernels = false});
  ASSERT_EQ(device.status(), Status::Ok());

  EXPECT_EQ(Since("cuModuleLoadData"), 0);
  MakeDevice();
  EXPECT_EQ(Since("cuModuleLoadData"), 2) << "those that copy, and the one that sums";
  EXPECT_THAT((*device)->CheckLayout(ChannelsLast()).message(), HasSubstr("they are turned off"));
}

TEST_F(CudaKernelUse, AModuleWithoutAKernelIsUnloaded) {
  fake_cuda::Fail("cuModuleGetFunction", CUDA_ERROR_NOT_FOUND, 1);
  MakeDevice();

  EXPECT_THAT(device().CheckLayout(ChannelsLast()).message(), HasSubstr("finding a kernel"));
  EXPECT_EQ(Since("cuModuleUnload"), 1);
}

TEST_F(CudaKernelUse, ARefusedLaunchFailsTheBatchAndLeavesOthersAlone) {
  MakeDevice();
  const StridedLayout layout = ChannelsLast();
  const CopyBatch batch{.pieces = {{&layout, 0, layout.bytes, chunk_.data()}}};
  fake_cuda::Fail("cuLaunchKernel", CUDA_ERROR_INVALID_VALUE);

  const Status status = device().Copy(batch, [](const Status&) { ADD_FAILURE() << "done was called"; });

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("a kernel that copies 1 rows of 1152 bytes"));
  EXPECT_EQ(CopyAndWait(device(), batch), Status::Ok());
}

TEST_F(CudaKernelUse, PiecesBeyondTheirTensorsEndAreRefused) {
  MakeDevice();
  const StridedLayout layout = ChannelsLast();
  CopyBatch small = Batch(10, 777, chunk_);
  small.pieces[5].end = 778;

  EXPECT_EQ(CopyAndWait(device(), small).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(CopyAndWait(device(), {.pieces = {{&layout, 4, layout.bytes + 4, chunk_.data()}}}).ok());
  EXPECT_EQ(Launches(), 0);
}

}  // namespace
}  // namespace cairn
