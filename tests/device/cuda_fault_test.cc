// CudaDevice's behaviour when the driver fails. Only the driver's test double fails on demand.
#include <gmock/gmock.h>

#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "device/cuda_device.h"
#include "device/cuda_under_test.h"
#include "device/fake_cuda.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CudaFaults : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::Reset(); }
  void TearDown() override {
    cuda_.reset();
    EXPECT_THAT(fake_cuda::Misuses(), testing::IsEmpty());
    fake_cuda::Reset();
  }

  // With a driver of this version, which runs no kernels: cuda_kernels_test.cc has those.
  void MakeDevice(int version = 13000) {
    fake_cuda::SetDriverVersion(version);
    std::string why_not;
    cuda_ = CudaUnderTest::Make(why_not);
    ASSERT_NE(cuda_, nullptr) << why_not;
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      tensors_.push_back(Contiguous(cuda_->MakeTensor(Pattern(kBytes, i)), kBytes));
    }
    chunk_ = cuda_->MakeHostMemory(kTensors * kBytes);
  }

  // Copies all tensors to the chunk.
  CopyBatch Batch() {
    CopyBatch batch;
    for (std::size_t i = 0; i < kTensors; ++i) batch.pieces.push_back({&tensors_[i], 0, kBytes, &chunk_[i * kBytes]});
    return batch;
  }
  void ExpectCopied(std::size_t tensors) {
    for (std::size_t i = 0; i < tensors; ++i) {
      EXPECT_EQ(Copied(chunk_.subspan(i * kBytes, kBytes)), Pattern(kBytes, static_cast<std::uint32_t>(i)));
    }
  }
  Device& device() { return cuda_->device(); }

  static constexpr std::size_t kTensors = 5;
  static constexpr std::uint64_t kBytes = 3000;
  std::unique_ptr<CudaUnderTest> cuda_;
  std::vector<StridedLayout> tensors_;
  MutableBytes chunk_;
};

CopyDone NeverCalled() {
  return [](const Status&) { ADD_FAILURE() << "done was called"; };
}

TEST_F(CudaFaults, TooOldADriverIsAnErrorThatNamesBothVersions) {
  fake_cuda::SetDriverVersion(11020);

  const Status status = CudaAvailable();

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("expected CUDA 11.3 or newer, found 11.2"));
}

TEST_F(CudaFaults, MissingFunctionIsAnErrorThatNamesIt) {
  fake_cuda::Hide("cuEventSynchronize");

  const Status status = MakeCudaDevice({}).status();

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("cuEventSynchronize"));
}

TEST_F(CudaFaults, NoGpuIsUnsupportedButAFailedStartIsAnError) {
  fake_cuda::SetGpus(0);
  EXPECT_EQ(CudaAvailable().code(), StatusCode::kUnsupported);

  fake_cuda::SetGpus(1);
  fake_cuda::Fail("cuInit", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  const Status status = CudaAvailable();
  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"));
}

TEST_F(CudaFaults, GpusThatCannotBeCountedAreNotAvailable) {
  fake_cuda::Fail("cuDeviceGetCount", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 1);

  const Status status = CudaAvailable();

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("counting the GPUs: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"));
  EXPECT_EQ(*CountCudaDevices(), 2);
}

TEST_F(CudaFaults, IndexBeyondTheLastGpuIsRefused) {
  const Status status = MakeCudaDevice({.index = 2}).status();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:2"), HasSubstr("shows 2")));
}

TEST_F(CudaFaults, GpuThatCannotUseHostAddressesIsUnsupportedWithTheWayOut) {
  for (const auto& [attribute, name] :
       {std::pair{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING is 0"},
        std::pair{CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED is 0"},
        std::pair{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
                  "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0"}}) {
    fake_cuda::SetAttribute(attribute, 0);

    const Status status = MakeCudaDevice({.index = 1}).status();

    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:1"), HasSubstr(name), HasSubstr("copies of them on the CPU")));
    EXPECT_EQ(CudaAvailable().code(), StatusCode::kUnsupported);
    EXPECT_EQ(fake_cuda::LiveObjects(), 0);
    fake_cuda::SetAttribute(attribute, 1);
  }
  EXPECT_EQ(CudaAvailable(), Status::Ok());
}

TEST_F(CudaFaults, NumaNodeOfAGpuMayBeUnknown) {
  Result<std::unique_ptr<Device>> made = MakeCudaDevice({});
  ASSERT_EQ(made.status(), Status::Ok());
  EXPECT_FALSE((*made)->numa_node()) << "no machine has the double's PCI device";
  EXPECT_EQ(fake_cuda::Calls("cuDeviceGetPCIBusId"), 1);

  fake_cuda::Fail("cuDeviceGetPCIBusId", CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FALSE((*made)->numa_node());
  made->reset();
  fake_cuda::Hide("cuDeviceGetPCIBusId");
  made = MakeCudaDevice({});
  ASSERT_EQ(made.status(), Status::Ok());
  EXPECT_FALSE((*made)->numa_node());
}

TEST_F(CudaFaults, FailedOpenLeavesNothingBehind) {
  for (const char* function :
       {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuDeviceGetAttribute", "cuStreamCreate", "cuEventCreate"}) {
    fake_cuda::Fail(function, CUDA_ERROR_OUT_OF_MEMORY, function == std::string("cuEventCreate") ? 10 : 0);

    EXPECT_FALSE(MakeCudaDevice({}).ok()) << function;
    EXPECT_EQ(fake_cuda::LiveObjects(), 0) << function;
  }
}

TEST_F(CudaFaults, ClosedDeviceLeavesNothingBehind) {
  {
    Result<std::unique_ptr<Device>> made = MakeCudaDevice({.index = 1, .lanes = 3});
    ASSERT_EQ(made.status(), Status::Ok());
    ASSERT_EQ((*made)->AllocateStaging(10'000).status(), Status::Ok());
    ASSERT_EQ(CopyAndWait(**made, {.lane = 2}), Status::Ok());
  }
  EXPECT_EQ(fake_cuda::LiveObjects(), 0);
}

TEST_F(CudaFaults, MemoryOfAnotherGpuIsReported) {
  MakeDevice();
  Result<std::unique_ptr<Device>> other = MakeCudaDevice({.index = 1});
  ASSERT_EQ(other.status(), Status::Ok());
  Result<std::byte*> memory = (*other)->AllocateStaging(kBytes);
  ASSERT_EQ(memory.status(), Status::Ok());

  const Status status = device().CheckLayout(Contiguous(*memory, kBytes));

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:0"), HasSubstr("found memory of cuda:1")));
}

TEST_F(CudaFaults, AllGpusPinTheSamePoolAndOneUnpinsIt) {
  MakeDevice();
  Result<std::unique_ptr<Device>> other = MakeCudaDevice({.index = 1});
  ASSERT_EQ(other.status(), Status::Ok());
  const MutableBytes memory = cuda_->MakePlainMemory(8192);
  const int before = fake_cuda::LiveObjects();

  ASSERT_EQ(device().PinMemory(memory), Status::Ok());
  ASSERT_EQ((*other)->PinMemory(memory), Status::Ok());
  (*other)->UnpinMemory(memory);
  EXPECT_EQ(fake_cuda::LiveObjects(), before + 1);
  device().UnpinMemory(memory);

  EXPECT_EQ(fake_cuda::LiveObjects(), before);
}

TEST_F(CudaFaults, PartlyPinnedMemoryIsRefused) {
  MakeDevice();
  const MutableBytes memory = cuda_->MakePlainMemory(8192);
  ASSERT_EQ(device().PinMemory(memory.first(4096)), Status::Ok());

  EXPECT_EQ(device().PinMemory(memory).code(), StatusCode::kFailedPrecondition);
  device().UnpinMemory(memory.first(4096));
}

TEST_F(CudaFaults, PinningTooMuchIsResourceExhausted) {
  MakeDevice();
  fake_cuda::Fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);

  EXPECT_EQ(device().PinMemory(cuda_->MakePlainMemory(4096)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(device().Health(), Status::Ok());
}

TEST_F(CudaFaults, ManyTensorsAreOneBatchWhereSupported) {
  MakeDevice();
  const int before = fake_cuda::Calls("cuMemcpyAsync");

  ASSERT_EQ(CopyAndWait(device(), Batch()), Status::Ok());

  EXPECT_EQ(fake_cuda::Calls("cuMemcpyBatchAsync"), 1);
  EXPECT_EQ(fake_cuda::Calls("cuMemcpyAsync"), before);
  ExpectCopied(kTensors);
}

TEST_F(CudaFaults, OlderDriversGetOneCallPerTensor) {
  MakeDevice(12070);
  const int before = fake_cuda::Calls("cuMemcpyAsync");

  ASSERT_EQ(CopyAndWait(device(), Batch()), Status::Ok());

  EXPECT_EQ(fake_cuda::Calls("cuMemcpyBatchAsync"), 0);
  EXPECT_EQ(fake_cuda::Calls("cuMemcpyAsync"), before + static_cast<int>(kTensors));
  ExpectCopied(kTensors);
}

TEST_F(CudaFaults, PlatformWithoutBatchesGetsOneCallPerTensor) {
  MakeDevice();
  fake_cuda::Fail("cuMemcpyBatchAsync", CUDA_ERROR_NOT_SUPPORTED);

  ASSERT_EQ(CopyAndWait(device(), Batch()), Status::Ok());

  ExpectCopied(kTensors);
}

TEST_F(CudaFaults, ErrorOfOneBatchLeavesOthersAlone) {
  MakeDevice();
  fake_cuda::Fail("cuMemcpyBatchAsync", CUDA_ERROR_INVALID_VALUE);

  const Status status = device().Copy(Batch(), NeverCalled());

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:0"), HasSubstr("a batch of 5 copies"),
                                      HasSubstr("CUDA_ERROR_INVALID_VALUE (invalid argument)")));
  EXPECT_EQ(device().Health(), Status::Ok());
  ASSERT_EQ(CopyAndWait(device(), Batch()), Status::Ok());
  ExpectCopied(kTensors);
}

TEST_F(CudaFaults, CopiesBeforeAFailedOneEndBeforeTheErrorReturns) {
  MakeDevice(12040);
  fake_cuda::Fail("cuMemcpyAsync", CUDA_ERROR_INVALID_VALUE, 3);

  const Status status = device().Copy(Batch(), NeverCalled());

  EXPECT_THAT(status.message(), HasSubstr("copy 3 of 5"));
  ExpectCopied(3);
  EXPECT_EQ(Copied(chunk_.subspan(3 * kBytes)), std::vector<std::byte>(2 * kBytes));
  EXPECT_EQ(device().Health(), Status::Ok());
}

TEST_F(CudaFaults, RefusedCompletionFailsTheBatchAfterItsCopies) {
  MakeDevice();
  fake_cuda::Fail("cuEventRecord", CUDA_ERROR_NOT_SUPPORTED);

  EXPECT_EQ(device().Copy(Batch(), NeverCalled()).code(), StatusCode::kDeviceError);

  ExpectCopied(kTensors);
}

TEST_F(CudaFaults, RoomInAFullLaneWakesWhoeverAskedForIt) {
  MakeDevice(12070);
  int called = 0;
  const auto forgotten = [&called] { ++called; };
  device().WakeOnRoom(std::make_shared<const std::function<void()>>(forgotten));
  for (int time = 0; time < 2; ++time) {
    std::promise<void> woken;
    const auto wake = std::make_shared<const std::function<void()>>([&] { woken.set_value(); });
    device().WakeOnRoom(wake);
    fake_cuda::HoldWaits();
    int batches = 0;
    for (; device().HasRoom(0); ++batches) ASSERT_EQ(device().Copy(Batch(), [](const Status&) {}), Status::Ok());

    EXPECT_GT(batches, 20);
    EXPECT_TRUE(device().HasRoom(1));
    fake_cuda::ReleaseWaits();

    woken.get_future().wait();
    EXPECT_TRUE(device().HasRoom(0));
    ASSERT_EQ(CopyAndWait(device(), {.lane = 0}), Status::Ok());
  }
  EXPECT_EQ(called, 0);
}

TEST_F(CudaFaults, RefusedBatchesTakeNoRoom) {
  MakeDevice(12070);
  for (int time = 0; time < 100; ++time) {
    fake_cuda::Fail("cuMemcpyAsync", CUDA_ERROR_INVALID_VALUE, 3);
    ASSERT_FALSE(device().Copy(Batch(), NeverCalled()).ok());
  }

  EXPECT_TRUE(device().HasRoom(0));
}

TEST_F(CudaFaults, StickyErrorEndsWhatIsUnderWayAndFailsLaterCalls) {
  MakeDevice();
  const EventId event = *device().AcquireEvent();
  const Stream stream = cuda_->MakeStream();
  std::promise<void> release;
  cuda_->LaunchOnHost(stream, [opened = release.get_future().share()] { opened.wait(); });
  ASSERT_EQ(device().RecordOnStream(stream, event), Status::Ok());
  ASSERT_EQ(device().LaneWait(0, event), Status::Ok());
  std::promise<Status> done;
  ASSERT_EQ(device().Copy(Batch(), [&](Status status) { done.set_value(std::move(status)); }), Status::Ok());

  fake_cuda::SetSticky(CUDA_ERROR_ECC_UNCORRECTABLE);
  release.set_value();
  const Status sticky = done.get_future().get();

  EXPECT_EQ(sticky.code(), StatusCode::kDeviceError);
  EXPECT_THAT(sticky.message(), HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
  EXPECT_EQ(device().Health(), sticky);
  EXPECT_EQ(device().Copy(Batch(), NeverCalled()), sticky);
  EXPECT_EQ(device().RecordOnLane(0, event), sticky);
  EXPECT_EQ(device().LaneWait(0, event), sticky);
  EXPECT_EQ(device().RecordOnStream(stream, event), sticky);
  EXPECT_EQ(device().StreamWait(stream, event), sticky);
  EXPECT_EQ(device().AcquireEvent().status(), sticky);
  EXPECT_EQ(device().AllocateStaging(1).status(), sticky);
  EXPECT_EQ(device().CheckLayout(tensors_[0]), sticky);
  EXPECT_EQ(device().PinMemory(cuda_->MakePlainMemory(4096)), sticky);
  EXPECT_TRUE(device().HasRoom(0)) << "nothing is outstanding any more";
  device().ReleaseEvent(event);
}

// Whatever is wrong with the wait, nobody else will hear of the copies before it.
TEST_F(CudaFaults, AnyErrorOfAWaitIsSticky) {
  MakeDevice();
  fake_cuda::Fail("cuEventSynchronize", CUDA_ERROR_INVALID_HANDLE);

  const Status status = CopyAndWait(device(), Batch());

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_INVALID_HANDLE"));
  EXPECT_EQ(device().Health(), status);
}

TEST_F(CudaFaults, AChunkOfOnePieceTakesTwoOperations) {
  MakeDevice();
  const EventId ended = *device().AcquireEvent();
  const EventId event = *device().AcquireEvent();
  ASSERT_EQ(CopyAndWait(device(), {}), Status::Ok());
  ASSERT_EQ(device().RecordOnLane(0, ended), Status::Ok());
  const int before = fake_cuda::Calls("cuEventRecord");
  const int created = fake_cuda::Calls("cuEventCreate");
  fake_cuda::HoldWork();
  int batches = 0;

  for (; device().HasRoom(0); ++batches) {
    ASSERT_EQ(device().Copy({.pieces = {{&tensors_[0], 0, kBytes, chunk_.data()}}}, [](const Status&) {}),
              Status::Ok());
    ASSERT_EQ(device().RecordOnLane(0, event), Status::Ok());
  }

  EXPECT_EQ(batches, 128);
  EXPECT_EQ(fake_cuda::Calls("cuEventCreate"), created) << "events are created at Open";
  EXPECT_EQ(fake_cuda::Calls("cuEventRecord"), before + batches) << "one event ends the batch and stands for it";
  fake_cuda::ReleaseWork();
  ASSERT_EQ(CopyAndWait(device(), {}), Status::Ok());
}

// The event at the end of a batch serves the fence and the thread that waits; each may be the last to let go of it.
TEST_F(CudaFaults, EventsOfALaneAreUsedAgainAndOnlyThen) {
  MakeDevice();
  const int created = fake_cuda::Calls("cuEventCreate");
  const Stream stream = cuda_->MakeStream();
  const EventId event = *device().AcquireEvent();
  ASSERT_EQ(CopyAndWait(device(), Batch()), Status::Ok());
  ASSERT_EQ(device().RecordOnLane(0, event), Status::Ok());
  for (int time = 0; time < 300; ++time) ASSERT_EQ(CopyAndWait(device(), {}), Status::Ok());
  EXPECT_EQ(fake_cuda::Calls("cuEventCreate"), created) << "events are created at Open";

  // Still the first batch's, not that of a later one in the lane, which is held here.
  fake_cuda::HoldWork();
  ASSERT_EQ(device().Copy(Batch(), [](const Status&) {}), Status::Ok());
  ASSERT_EQ(device().StreamWait(stream, event), Status::Ok());
  device().ReleaseEvent(event);
  fake_cuda::ReleaseWork();
  cuda_->Synchronize(stream);
  ASSERT_EQ(CopyAndWait(device(), {}), Status::Ok());
}

TEST_F(CudaFaults, AnEventOnALaneStandsForAWaitThatNoBatchFollows) {
  MakeDevice();
  const Stream trainer = cuda_->MakeStream();
  const Stream other = cuda_->MakeStream();
  const EventId before = *device().AcquireEvent();
  const EventId after = *device().AcquireEvent();
  ASSERT_EQ(CopyAndWait(device(), Batch()), Status::Ok());
  std::promise<void> release;
  cuda_->LaunchOnHost(trainer, [opened = release.get_future().share()] { opened.wait(); });
  ASSERT_EQ(device().RecordOnStream(trainer, before), Status::Ok());

  ASSERT_EQ(device().LaneWait(0, before), Status::Ok());
  ASSERT_EQ(device().RecordOnLane(0, after), Status::Ok());
  ASSERT_EQ(device().StreamWait(other, after), Status::Ok());
  const auto reached = std::async(std::launch::async, [&] { cuda_->Synchronize(other); });

  EXPECT_EQ(reached.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  release.set_value();
  reached.wait();
}

TEST_F(CudaFaults, CopyOfBadMemoryIsReportedByItsBatch) {
  MakeDevice();
  const StridedLayout beyond = Contiguous(tensors_[0].base + 1, kBytes);
  // The lane waits until the whole batch is enqueued.
  const EventId event = *device().AcquireEvent();
  const Stream stream = cuda_->MakeStream();
  std::promise<void> release;
  cuda_->LaunchOnHost(stream, [opened = release.get_future().share()] { opened.wait(); });
  ASSERT_EQ(device().RecordOnStream(stream, event), Status::Ok());
  ASSERT_EQ(device().LaneWait(0, event), Status::Ok());

  std::promise<Status> done;
  EXPECT_EQ(device().Copy({.pieces = {{&beyond, 0, kBytes, chunk_.data()}}},
                          [&](Status status) { done.set_value(std::move(status)); }),
            Status::Ok());
  release.set_value();
  const Status lost = done.get_future().get();

  EXPECT_THAT(lost.message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_EQ(device().Health(), lost);
}

TEST_F(CudaFaults, StickyErrorWithinABatchFailsTheBatch) {
  MakeDevice(12040);
  fake_cuda::Fail("cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED, 2);

  const Status status = device().Copy(Batch(), NeverCalled());

  EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
  EXPECT_EQ(device().Health(), status);
}

TEST_F(CudaFaults, AnyErrorOfAnIdleLaneIsSticky) {
  MakeDevice();
  fake_cuda::Fail("cuStreamQuery", CUDA_ERROR_INVALID_HANDLE);

  const Status status = device().Health();

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_EQ(device().Health(), status);
}

TEST_F(CudaFaults, ErrorOfTheLastLaneIsFound) {
  MakeDevice();
  fake_cuda::Fail("cuStreamQuery", CUDA_ERROR_LAUNCH_FAILED, device().lanes() - 1);

  const Status status = device().Health();

  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
}

TEST_F(CudaFaults, DestructorSurvivesADriverThatShutDownFirst) {
  Result<std::unique_ptr<Device>> made = MakeCudaDevice({});
  ASSERT_EQ(made.status(), Status::Ok());
  fake_cuda::Fail("cuCtxPushCurrent", CUDA_ERROR_DEINITIALIZED);
  const int destroyed = fake_cuda::Calls("cuStreamDestroy");

  *made = nullptr;

  EXPECT_EQ(fake_cuda::Calls("cuStreamDestroy"), destroyed);
}

}  // namespace
}  // namespace cairn
