// Saves and restores through CudaDevice, on the driver's test double: what needs two GPUs, an old driver or many calls.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cairn/cairn.h"
#include "device/cuda_device.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"
#include "support/patience.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using namespace literals;

class CudaSaves : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::Reset(); }
  void TearDown() override {
    EXPECT_THAT(fake_cuda::Misuses(), testing::IsEmpty());
    checkpointer_.reset();
    cuda_.reset();
    fake_cuda::Reset();
  }

  void Open(int driver_version = 13000, std::uint64_t staging_bytes = 0) {
    fake_cuda::SetDriverVersion(driver_version);
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda_, nullptr) << why_not;
    auto opened = Checkpointer::Open({.root = dir_ / "run",
                                      .host_memory_bytes = 8_MiB,
                                      .chunk_bytes = 1_MiB,
                                      .queue_depth = 2,
                                      .staging_bytes = staging_bytes,
                                      .cuda_devices = {0}});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpointer_ = *std::move(opened);
  }
  std::byte* AddTensor(State& state, std::uint64_t bytes, std::uint32_t seed, bool frozen = false) {
    std::byte* const at = cuda_->MakeTensor(Pattern(bytes, seed));
    AddMemory(state, at, bytes, 0, frozen);
    return at;
  }
  void AddMemory(State& state, std::byte* at, std::uint64_t bytes, int gpu, bool frozen = false) {
    const TensorView view{.data = at,
                          .dtype = DType::kU8,
                          .shape = {static_cast<std::int64_t>(bytes)},
                          .device = {DeviceKind::kCuda, gpu},
                          .frozen = frozen,
                          .version = version_};
    ASSERT_EQ(state.Add(fmt::format("t{}", names_++), view), Status::Ok());
  }
  static int Copies() { return fake_cuda::Calls("cuMemcpyAsync") + fake_cuda::Calls("cuMemcpyBatchAsync"); }

  const TempDir dir_;
  int names_ = 0;
  // Of what is frozen.
  std::optional<std::uint64_t> version_ = 0;
  std::unique_ptr<CudaUnderTest> cuda_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

// The real queue holds about 1,024; a call beyond that blocks inside the driver, and every thread's launches with it.
TEST_F(CudaSaves, FewOperationsAreOutstandingWhileTheCallersStreamIsBusy) {
  for (const std::uint64_t staging : {0_MiB, 4_MiB}) {
    constexpr std::uint32_t kTensors = 5000;
    fake_cuda::Reset();
    Open(12070, staging);  // Without batches: one call for each tensor.
    State state;
    std::vector<std::byte*> tensors;
    for (std::uint32_t i = 0; i < kTensors; ++i) tensors.push_back(AddTensor(state, 1024, i));
    const Stream stream = cuda_->MakeStream();
    std::promise<void> step_may_end;
    cuda_->LaunchOnHost(stream, [&] { step_may_end.get_future().wait(); });
    const int before = Copies();

    const auto save = checkpointer_->Save(staging + 1, state, {.streams = {stream}});
    ASSERT_TRUE(save.ok()) << save.status();
    const Deadline begins = Deadline::In(kPatience);
    while (Copies() == before && !begins.passed()) std::this_thread::yield();
    EXPECT_EQ(save->WaitCaptured(Deadline::In(std::chrono::milliseconds(300))).code(), StatusCode::kDeadlineExceeded);
    const int while_busy = Copies() - before;
    step_may_end.set_value();

    EXPECT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
    EXPECT_GT(while_busy, 0);
    EXPECT_EQ(fake_cuda::BlockedLaunches(), 0);
    for (std::uint32_t i = 0; i < kTensors; ++i) cuda_->LaunchWrite(stream, tensors[i], Pattern(1024, 7));
    cuda_->Synchronize(stream);
    ASSERT_EQ(checkpointer_->Restore(Latest(), state, {.streams = {stream}}).status(), Status::Ok());
    cuda_->Synchronize(stream);
    for (std::uint32_t i = 0; i < kTensors; ++i) ASSERT_EQ(cuda_->ReadTensor(tensors[i], 1024), Pattern(1024, i));
    checkpointer_.reset();
    cuda_.reset();
  }
}

// In chunks of their own, staged or not. If somebody counts writes, they are copied once; else each save compares them.
TEST_F(CudaSaves, FrozenTensorsAreWrittenOnce) {
  std::uint64_t first = 1;
  for (const auto& [staging, counted] :
       {std::pair(0_MiB, true), std::pair(4_MiB, true), std::pair(0_MiB, false), std::pair(4_MiB, false)}) {
    SCOPED_TRACE(fmt::format("staging {}, counted {}", staging, counted));
    version_ = counted ? std::optional<std::uint64_t>(0) : std::nullopt;
    fake_cuda::Reset();
    Open(13000, staging);
    State state;
    std::byte* const trained = AddTensor(state, 1'700'001, 1);
    std::byte* const frozen = AddTensor(state, 1'300'003, 2, true);
    std::byte* const small = AddTensor(state, 5'000, 3, true);
    const Stream stream = cuda_->MakeStream();
    std::vector<std::uint64_t> written;
    for (std::uint64_t step = first; step < first + 3; ++step) {
      if (step == first + 2 && !counted) cuda_->LaunchWrite(stream, frozen, Pattern(1'300'003, 4));
      cuda_->LaunchWrite(stream, trained, Pattern(1'700'001, static_cast<std::uint32_t>(step)));
      const auto save = checkpointer_->Save(step, state, {.streams = {stream}});
      ASSERT_TRUE(save.ok()) << save.status();
      ASSERT_EQ(checkpointer_->Fence(stream), Status::Ok());
      cuda_->LaunchWrite(stream, trained, Pattern(1'700'001, 99));
      ASSERT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
      EXPECT_EQ(save->stats().staged, staging != 0);
      written.push_back(save->stats().bytes_written);
    }

    EXPECT_GT(written[0] - written[1], 1'305'003U);
    EXPECT_EQ(written[2], counted ? written[1] : written[0]);
    for (std::uint64_t step = first; step < first + 3; ++step) {
      for (const auto& [at, bytes] :
           {std::pair(trained, 1'700'001U), std::pair(frozen, 1'300'003U), std::pair(small, 5'000U)}) {
        cuda_->LaunchWrite(stream, at, Pattern(bytes, 77));
      }
      cuda_->Synchronize(stream);
      ASSERT_EQ(checkpointer_->Restore(Step(step), state, {.resume = false, .streams = {stream}}).status(),
                Status::Ok());
      cuda_->Synchronize(stream);
      EXPECT_EQ(cuda_->ReadTensor(trained, 1'700'001), Pattern(1'700'001, static_cast<std::uint32_t>(step)));
      EXPECT_EQ(cuda_->ReadTensor(frozen, 1'300'003), Pattern(1'300'003, step == first + 2 && !counted ? 4 : 2));
      EXPECT_EQ(cuda_->ReadTensor(small, 5'000), Pattern(5'000, 3));
    }
    first += 3;
    checkpointer_.reset();
    cuda_.reset();
  }
}

// The first save's copies fill the lane, so that the second has none in flight when the GPU is lost.
TEST_F(CudaSaves, AStreamOfAGpuWithAnEmptyTensorAloneIsTaken) {
  Open();
  State state;
  AddMemory(state, nullptr, 0, 0);

  const Result<SaveHandle> save = checkpointer_->Save(1, state, {.streams = {cuda_->MakeStream()}});

  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(save->WaitDurable(), Status::Ok());
}

TEST_F(CudaSaves, AStreamOfAGpuWithoutTensorsIsRefused) {
  Open();
  State state;
  std::vector<std::byte> memory(1024);
  ASSERT_EQ(state.Add("host", {.data = memory.data(), .dtype = DType::kU8, .shape = {1024}}), Status::Ok());

  const Result<SaveHandle> save = checkpointer_->Save(1, state, {.streams = {cuda_->MakeStream()}});

  EXPECT_EQ(save.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(save.status().message(), testing::HasSubstr("no tensor of the state is on this device"));
}

// As after `copy_(gpu, non_blocking=True)` into pinned memory, on a state with tensors of the GPU and on one without;
// and as with an optimizer whose moments are paged: a kernel has yet to write them.
TEST_F(CudaSaves, PinnedAndManagedCpuTensorsAreReadOnceTheStreamsHaveComeToTheCall) {
  std::uint64_t step = 1;
  for (const auto& way : {std::pair(false, true), std::pair(false, false), std::pair(true, true)}) {
    const bool managed = way.first;
    const bool with_gpu = way.second;
    SCOPED_TRACE(managed ? "managed" : "pinned");
    fake_cuda::Reset();
    Open();
    const auto make = [&](std::uint64_t bytes) {
      return managed ? cuda_->MakeManagedMemory(bytes) : cuda_->MakeHostMemory(bytes);
    };
    const MutableBytes large = make(3_MiB);
    const MutableBytes small = make(100);
    std::vector<std::byte> counter(8, std::byte{1});
    State state;
    const auto add = [&](const std::string& name, MutableBytes memory) {
      const TensorView view{
          .data = memory.data(), .dtype = DType::kU8, .shape = {static_cast<std::int64_t>(memory.size())}};
      ASSERT_EQ(state.Add(name, view), Status::Ok());
    };
    add("large", large);
    add("small", small);
    add("counter", counter);
    if (with_gpu) AddTensor(state, 2_MiB, 5);
    const Stream stream = cuda_->MakeStream();
    std::promise<void> copies_may_end;
    cuda_->LaunchOnHost(stream, [&] {
      copies_may_end.get_future().wait();
      for (const MutableBytes memory : {large, small}) std::fill(memory.begin(), memory.end(), std::byte{7});
    });

    const auto save = checkpointer_->Save(step++, state, {.streams = {stream}});
    ASSERT_TRUE(save.ok()) << save.status();
    std::fill(counter.begin(), counter.end(), std::byte{2});  // Nobody's stream writes it: it was copied in the call.
    EXPECT_EQ(save->WaitCaptured(Deadline::In(std::chrono::milliseconds(100))).code(), StatusCode::kDeadlineExceeded);
    copies_may_end.set_value();
    EXPECT_EQ(save->WaitDurable(Soon()), Status::Ok());

    for (const MutableBytes memory : {large, small}) std::fill(memory.begin(), memory.end(), std::byte{0});
    ASSERT_EQ(checkpointer_->Restore(Latest(), state).status(), Status::Ok());
    for (const MutableBytes memory : {large, small}) {
      EXPECT_EQ(static_cast<std::size_t>(std::count(memory.begin(), memory.end(), std::byte{7})), memory.size());
    }
    EXPECT_THAT(counter, testing::Each(std::byte{1}));
    checkpointer_.reset();
    cuda_.reset();
  }
}

TEST_F(CudaSaves, ASaveThatWaitsForTheStreamsOfPinnedTensorsFailsWithItsGpu) {
  Open();
  const MutableBytes pinned = cuda_->MakeHostMemory(100);
  State state;
  ASSERT_EQ(state.Add("pinned", {.data = pinned.data(), .dtype = DType::kU8, .shape = {100}}), Status::Ok());
  const Stream stream = cuda_->MakeStream();
  std::promise<void> step_may_end;
  cuda_->LaunchOnHost(stream, [&] { step_may_end.get_future().wait(); });
  const auto save = checkpointer_->Save(1, state, {.streams = {stream}});
  ASSERT_TRUE(save.ok()) << save.status();

  fake_cuda::SetSticky(CUDA_ERROR_ILLEGAL_ADDRESS);
  step_may_end.set_value();

  EXPECT_EQ(save->WaitDurable(Deadline::In(std::chrono::seconds(10))).code(), StatusCode::kDeviceError);
}

TEST_F(CudaSaves, ASaveThatWaitsForRoomInALaneFailsWithItsGpu) {
  Open(12070);  // Without batches and kernels: an operation for each tensor.
  State first;
  State second;
  for (std::uint32_t i = 0; i < 2 * kMaxBatchOperations; ++i) AddTensor(first, 1024, i);
  AddTensor(second, 1024, 1);
  const Stream stream = cuda_->MakeStream();
  std::promise<void> step_may_end;
  cuda_->LaunchOnHost(stream, [&] { step_may_end.get_future().wait(); });
  const auto older = checkpointer_->Save(1, first, {.streams = {stream}});
  const auto younger = checkpointer_->Save(2, second, {.streams = {stream}});
  ASSERT_TRUE(older.ok() && younger.ok());
  EXPECT_EQ(younger->WaitCaptured(Deadline::In(std::chrono::milliseconds(300))).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(younger->stats().phase, SavePhase::kCapturing);

  fake_cuda::SetSticky(CUDA_ERROR_ILLEGAL_ADDRESS);
  step_may_end.set_value();

  EXPECT_EQ(older->WaitDurable(Deadline::In(kPatience)).code(), StatusCode::kDeviceError);
  EXPECT_EQ(younger->WaitDurable(Deadline::In(std::chrono::seconds(10))).code(), StatusCode::kDeviceError);
}

// Before the engine has found the loss, and after it: the save fails, and the tensors are free.
TEST_F(CudaSaves, AFenceOnOneGpuIsOkWhenAnotherIsLost) {
  Open();
  std::string why_not;
  const auto other = CudaUnderTest::Make(why_not, 1);
  ASSERT_NE(other, nullptr) << why_not;
  State state;
  std::byte* const here = AddTensor(state, 100'000, 1);
  AddMemory(state, other->MakeTensor(Pattern(100'000, 2)), 100'000, 1);
  const Stream stream = cuda_->MakeStream();
  const Stream busy = other->MakeStream();
  std::promise<void> step_may_end;
  other->LaunchOnHost(busy, [&] { step_may_end.get_future().wait(); });
  const auto save = checkpointer_->Save(1, state, {.streams = {stream, busy}});
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(checkpointer_->Fence(stream, Deadline::In(kPatience)), Status::Ok());

  fake_cuda::SetSticky(CUDA_ERROR_ILLEGAL_ADDRESS, 1);

  EXPECT_EQ(checkpointer_->Fence(stream, Deadline::In(kPatience)), Status::Ok());
  EXPECT_EQ(save->WaitDurable(Deadline::In(kPatience)).code(), StatusCode::kDeviceError);
  EXPECT_EQ(checkpointer_->Fence(stream, Deadline::In(kPatience)), Status::Ok());
  EXPECT_EQ(checkpointer_->Fence(busy, Deadline::In(kPatience)).code(), StatusCode::kDeviceError);
  step_may_end.set_value();
  State of_this_gpu;
  AddMemory(of_this_gpu, here, 100'000, 0);
  const auto again = checkpointer_->Save(2, of_this_gpu, {.streams = {stream}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->WaitDurable(Deadline::In(kPatience)), Status::Ok()) << "the GPU that is left goes on";
  checkpointer_.reset();
}

TEST_F(CudaSaves, AnErrorOfAnotherGpusStreamLosesNotTheGpuOfTheCopies) {
  Open();
  std::string why_not;
  const auto other = CudaUnderTest::Make(why_not, 1);
  ASSERT_NE(other, nullptr) << why_not;
  State state;
  AddTensor(state, 100'000, 1);
  const Stream stream = cuda_->MakeStream();
  std::promise<void> step_may_end;
  cuda_->LaunchOnHost(stream, [&] { step_may_end.get_future().wait(); });
  const auto save = checkpointer_->Save(1, state, {.streams = {stream}});
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_EQ(checkpointer_->Fence(stream, Deadline::In(kPatience)), Status::Ok());

  fake_cuda::Fail("cuStreamWaitEvent", CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(checkpointer_->Fence(other->MakeStream(), Deadline::In(kPatience)).code(), StatusCode::kDeviceError);
  step_may_end.set_value();

  EXPECT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  const auto next = checkpointer_->Save(2, state, {.streams = {stream}});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  checkpointer_.reset();
}

// The first save's chunks are in staging slots when the second GPU gets staging memory of its own.
TEST_F(CudaSaves, AGpuThatIsSetUpLateLeavesOtherGpusSlotsInUseAlone) {
  Open(13000, 4_MiB);
  State first;
  AddTensor(first, 4_MiB, 1);
  std::string why_not;
  const auto other = CudaUnderTest::Make(why_not, 1);
  ASSERT_NE(other, nullptr) << why_not;
  State late;
  AddMemory(late, other->MakeTensor(Pattern(1_MiB, 2)), 1_MiB, 1);
  fake_cuda::HoldWaits();
  const auto staged = checkpointer_->Save(1, first);
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_EQ(checkpointer_->Fence({.device = {DeviceKind::kCuda, 0}}, Deadline::In(kPatience)), Status::Ok());

  const auto save = checkpointer_->Save(2, late);
  ASSERT_TRUE(save.ok()) << save.status();
  fake_cuda::ReleaseWaits();
  ASSERT_EQ(checkpointer_->Drain(Deadline::In(kPatience)), Status::Ok());
  const auto again = checkpointer_->Save(3, first);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->WaitDurable(Deadline::In(kPatience)), Status::Ok());

  EXPECT_TRUE(staged->stats().staged);
  EXPECT_TRUE(again->stats().staged) << "the first save's slots were not given back";
  checkpointer_.reset();
}

// No CPU is free, so no chunk is known to have arrived: the fence does not need that.
TEST_F(CudaSaves, StagesManyChunksInOneCopy) {
  Open(13000, 64_MiB);
  State state;
  std::byte* const at = AddTensor(state, 33_MiB, 1);
  const Stream stream = cuda_->MakeStream();
  const int before = Copies();
  fake_cuda::HoldWaits();

  const auto save = checkpointer_->Save(1, state, {.streams = {stream}});
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(checkpointer_->Fence(stream, Deadline::In(kPatience)), Status::Ok());
  EXPECT_EQ(Copies() - before, 2);
  cuda_->LaunchWrite(stream, at, std::vector<std::byte>(33_MiB));
  fake_cuda::ReleaseWaits();

  ASSERT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  EXPECT_TRUE(save->stats().staged);
  ASSERT_EQ(checkpointer_->Restore(Latest(), state, {.streams = {stream}}).status(), Status::Ok());
  cuda_->Synchronize(stream);
  EXPECT_EQ(cuda_->ReadTensor(at, 33_MiB), Pattern(33_MiB, 1));
}

TEST_F(CudaSaves, AFullStagingAreaHoldsUpNoOtherGpu) {
  Open(13000, 4_MiB);
  std::string why_not;
  const auto other = CudaUnderTest::Make(why_not, 1);
  ASSERT_NE(other, nullptr) << why_not;
  ASSERT_EQ(checkpointer_->SetUp({DeviceKind::kCuda, 1}), Status::Ok());
  State state;
  std::byte* const here = AddTensor(state, 6_MiB, 1);
  std::byte* const there = other->MakeTensor(Pattern(2_MiB, 2));
  AddMemory(state, there, 2_MiB, 1);
  const int before = Copies();
  fake_cuda::HoldWaits();

  const auto save = checkpointer_->Save(1, state);
  ASSERT_TRUE(save.ok()) << save.status();
  const Deadline soon = Deadline::In(kPatience);
  while (Copies() - before < 2 && !soon.passed()) std::this_thread::yield();
  EXPECT_EQ(Copies() - before, 2) << "four chunks of the one, two of the other";
  fake_cuda::ReleaseWaits();

  ASSERT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  for (const auto& [gpu, tensor, bytes] :
       {std::tuple{cuda_.get(), here, 6_MiB}, std::tuple{other.get(), there, 2_MiB}}) {
    const Stream stream = gpu->MakeStream();
    gpu->LaunchWrite(stream, tensor, std::vector<std::byte>(bytes));
    gpu->Synchronize(stream);
  }
  ASSERT_EQ(checkpointer_->Restore(Latest(), state).status(), Status::Ok());
  EXPECT_EQ(cuda_->ReadTensor(here, 6_MiB), Pattern(6_MiB, 1));
  EXPECT_EQ(other->ReadTensor(there, 2_MiB), Pattern(2_MiB, 2));
  checkpointer_.reset();
}

// GPU 1 is busy: the host returns at once, and the stream of GPU 0 waits for the copies of both.
TEST_F(CudaSaves, AFenceOnOneGpuWaitsForTheCopiesOfAnotherWithoutHoldingTheHost) {
  constexpr std::uint64_t kBytes = 100'000;
  Open();
  auto driver = CudaDriver::Load();
  ASSERT_TRUE(driver.ok());
  CudaContext second(*driver, 1);
  ASSERT_EQ(second.Retain(), Status::Ok());
  auto gpu1 = MakeCudaDevice({.index = 1});
  ASSERT_TRUE(gpu1.ok()) << gpu1.status();
  const auto memory = (*gpu1)->AllocateStaging(kBytes);
  ASSERT_TRUE(memory.ok());
  const MutableBytes source = cuda_->MakeHostMemory(kBytes);
  const MutableBytes flag = cuda_->MakeHostMemory(4096);
  const std::vector<std::byte> contents = Pattern(kBytes, 2);
  std::copy(contents.begin(), contents.end(), source.begin());
  CUstream busy = nullptr;
  const auto address = [](const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); };
  ASSERT_EQ(second.Run([&] {
    EXPECT_EQ(second.driver().stream_create(&busy, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuda_->functions().stream_wait_value(busy, address(flag.data()), 1, CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
    EXPECT_EQ(second.driver().memcpy_async(address(*memory), address(source.data()), kBytes, busy), CUDA_SUCCESS);
    return Status::Ok();
  }),
            Status::Ok());
  State state;
  AddTensor(state, kBytes, 1);
  AddMemory(state, *memory, kBytes, 1);
  const Stream stream = cuda_->MakeStream();

  const auto save = checkpointer_->Save(
      1, state, {.streams = {stream, {{DeviceKind::kCuda, 1}, reinterpret_cast<std::uintptr_t>(busy)}}});
  ASSERT_TRUE(save.ok()) << save.status();
  const Status fenced = checkpointer_->Fence(stream, Deadline::In(std::chrono::seconds(10)));
  const SavePhase phase = save->stats().phase;
  cuda_->LaunchWrite(stream, *memory, Pattern(kBytes, 3));  // As an optimizer that reads and writes across GPUs.
  ASSERT_EQ(cuda_->context().Run([&] {
    EXPECT_EQ(cuda_->functions().stream_write_value(CudaUnderTest::Handle(cuda_->MakeStream()), address(flag.data()), 1,
                                                    CU_STREAM_WRITE_VALUE_DEFAULT),
              CUDA_SUCCESS);
    return Status::Ok();
  }),
            Status::Ok());

  EXPECT_EQ(fenced, Status::Ok());
  EXPECT_LT(phase, SavePhase::kCaptured);
  EXPECT_EQ(save->WaitDurable(Deadline::In(kPatience)), Status::Ok());
  cuda_->Synchronize(stream);
  ASSERT_EQ(checkpointer_->Restore(Latest(), state).status(), Status::Ok());
  EXPECT_EQ(cuda_->ReadTensor(*memory, kBytes), Pattern(kBytes, 2));
  checkpointer_.reset();
  ASSERT_EQ(second.Run([&] {
    EXPECT_EQ(second.driver().stream_destroy(busy), CUDA_SUCCESS);
    return Status::Ok();
  }),
            Status::Ok());
}

}  // namespace
}  // namespace cairn
