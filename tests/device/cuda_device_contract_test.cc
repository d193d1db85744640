// CudaDevice's contract beyond that of every device, on a GPU and on the driver's test double.
#include "device/cuda_device_contract.h"

#include <gmock/gmock.h>

#include <future>
#include <thread>
#include <utility>

namespace cairn {
namespace {

using testing::HasSubstr;

}  // namespace

CUresult CudaDeviceContract::BeginCapture(Stream stream, CUstreamCaptureMode mode) {
  const CudaContext::Scope scope(cuda().context());
  return cuda().functions().stream_begin_capture(CudaUnderTest::Handle(stream), mode);
}

CUresult CudaDeviceContract::EndCapture(Stream stream) {
  const CudaContext::Scope scope(cuda().context());
  CUgraph graph = nullptr;
  const CUresult result = cuda().functions().stream_end_capture(CudaUnderTest::Handle(stream), &graph);
  if (graph != nullptr) (void)cuda().functions().graph_destroy(graph);
  return result;
}

TEST_P(CudaDeviceContract, LeavesNoContextCurrentOnTheCallersThread) {
  const MutableBytes chunk = under_test_->MakeHostMemory(4096);
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(Pattern(4096, 1)), 4096);

  ASSERT_EQ(CopyAndWait(device(), {.pieces = {{&tensor, 0, 4096, chunk.data()}}}), Status::Ok());
  ASSERT_EQ(device().Health(), Status::Ok());

  CUcontext current = nullptr;
  ASSERT_EQ(cuda().functions().ctx_get_current(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, nullptr);
}

TEST_P(CudaDeviceContract, RefusesACapturedStream) {
  const Stream stream = under_test_->MakeStream();
  const EventId event = Acquire(device());
  ASSERT_EQ(device().RecordOnLane(0, event), Status::Ok());
  ASSERT_EQ(BeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);

  const Status recorded = device().RecordOnStream(stream, event);
  const Status waited = device().StreamWait(stream, event);

  EXPECT_EQ(recorded.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(recorded.message(), HasSubstr("call them before the graph's replay"));
  EXPECT_EQ(waited.code(), StatusCode::kFailedPrecondition);
  // The capture is still valid, and the stream works again afterwards.
  EXPECT_EQ(EndCapture(stream), CUDA_SUCCESS);
  EXPECT_EQ(device().RecordOnStream(stream, event), Status::Ok());
}

TEST_P(CudaDeviceContract, RefusesTheLegacyStreamDuringABlockingCapture) {
  const Stream captured = cuda().MakeStream(CU_STREAM_DEFAULT);
  const EventId event = Acquire(device());
  ASSERT_EQ(BeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);

  const Status recorded = device().RecordOnStream({{DeviceKind::kCuda, 0}, 0}, event);

  EXPECT_EQ(recorded.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(recorded.message(), HasSubstr("captured"));
  EXPECT_EQ(EndCapture(captured), CUDA_SUCCESS);
}

// torch captures in the global mode, in which another thread's stream query invalidates the graph.
TEST_P(CudaDeviceContract, WorksDuringACaptureWithoutInvalidatingIt) {
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(Pattern(5000, 1)), 5000);
  const MutableBytes chunk = under_test_->MakeHostMemory(5000);
  const MutableBytes more = cuda().MakePlainMemory(4096);
  const Stream captured = under_test_->MakeStream();
  ASSERT_EQ(BeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);

  std::thread engine([&] {
    EXPECT_EQ(CopyAndWait(device(), {.pieces = {{&tensor, 0, 5000, chunk.data()}}}), Status::Ok());
    EXPECT_EQ(device().Health(), Status::Ok());
    EXPECT_EQ(device().PinMemory(more), Status::Ok());
    device().UnpinMemory(more);
  });
  engine.join();

  EXPECT_EQ(Copied(chunk), Pattern(5000, 1));
  EXPECT_EQ(EndCapture(captured), CUDA_SUCCESS);
}

TEST_P(CudaDeviceContract, AcceptsCudasDefaultStreamHandles) {
  const EventId event = Acquire(device());
  for (const std::uintptr_t handle : {0, 1, 2}) {
    const Stream stream{{DeviceKind::kCuda, 0}, handle};
    EXPECT_EQ(device().RecordOnStream(stream, event), Status::Ok()) << handle;
    EXPECT_EQ(device().LaneWait(0, event), Status::Ok()) << handle;
    EXPECT_EQ(device().StreamWait(stream, event), Status::Ok()) << handle;
  }
  EXPECT_EQ(CopyAndWait(device(), {}), Status::Ok());
}

TEST_P(CudaDeviceContract, ChecksTheOwnerOfATensorsMemory) {
  const MutableBytes plain = cuda().MakePlainMemory(4096);
  const MutableBytes pinned = under_test_->MakeHostMemory(4096);
  std::byte* const gpu = under_test_->MakeTensor(Pattern(4096, 1));

  const Status in_plain = device().CheckLayout(Contiguous(plain.data(), 4096));
  const Status in_pinned = device().CheckLayout(Contiguous(pinned.data(), 4096));

  EXPECT_EQ(in_plain.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(in_plain.message(), HasSubstr("no CUDA memory"));
  EXPECT_EQ(in_pinned.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(in_pinned.message(), HasSubstr("pinned host memory"));
  EXPECT_EQ(device().CheckLayout(Contiguous(gpu + 100, 3996)), Status::Ok());
  EXPECT_EQ(device().CheckLayout(Rows(gpu, 16, 64, 64)), Status::Ok());
  EXPECT_EQ(device().CheckLayout({}), Status::Ok());
}

TEST_P(CudaDeviceContract, StagesStridedTensors) {
  constexpr std::uint64_t kRow = 100;
  constexpr std::int64_t kRows = 50;
  constexpr std::int64_t kStride = 160;
  const std::vector<std::byte> contents = Pattern(kRows * kStride, 9);
  const StridedLayout tensor = Rows(under_test_->MakeTensor(contents), kRow, kRows, kStride);
  Result<std::byte*> staging = device().AllocateStaging(tensor.bytes);
  ASSERT_EQ(staging.status(), Status::Ok());

  // The second piece begins and ends within rows.
  ASSERT_EQ(CopyAndWait(device(), {.direction = CopyDirection::kToStaging,
                                   .pieces = {{&tensor, 0, 1000, *staging}, {&tensor, 1000, 4950, *staging + 1000}}}),
            Status::Ok());

  std::vector<std::byte> expected;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto* const begin = contents.data() + row * kStride;
    expected.insert(expected.end(), begin, begin + kRow);
  }
  expected.resize(4950);
  EXPECT_EQ(under_test_->ReadTensor(*staging, 4950), expected);
  EXPECT_EQ(device().AllocateStaging(1).status().code(), StatusCode::kFailedPrecondition);
}

// A batch's end is told when a CPU is free. Copies behind it must not wait for that, nor a caller's stream.
TEST_P(CudaDeviceContract, ALateCpuHoldsUpNoCopy) {
  const StridedLayout tensor = Contiguous(under_test_->MakeTensor(Pattern(4096, 1)), 4096);
  const MutableBytes chunk = under_test_->MakeHostMemory(8192);
  const Stream stream = under_test_->MakeStream();
  const EventId event = Acquire(device());
  std::promise<void> cpu_is_free;
  std::promise<bool> first;
  std::promise<Status> second;

  ASSERT_EQ(device().Copy({.pieces = {{&tensor, 0, 4096, chunk.data()}}},
                          [&, freed = cpu_is_free.get_future().share()](const Status&) {
                            first.set_value(freed.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
                          }),
            Status::Ok());
  ASSERT_EQ(device().Copy({.pieces = {{&tensor, 0, 4096, chunk.data() + 4096}}},
                          [&](Status status) { second.set_value(std::move(status)); }),
            Status::Ok());
  ASSERT_EQ(device().RecordOnLane(0, event), Status::Ok());
  ASSERT_EQ(device().StreamWait(stream, event), Status::Ok());
  under_test_->Synchronize(stream);
  EXPECT_EQ(Copied(chunk.subspan(4096, 4096)), Pattern(4096, 1));
  cpu_is_free.set_value();

  EXPECT_TRUE(first.get_future().get()) << "the caller's stream waited for the CPU";
  EXPECT_EQ(second.get_future().get(), Status::Ok());
}

TEST_P(CudaDeviceContract, StagingThatDoesNotFitIsRefusedWithTheFreeBytes) {
  Result<std::byte*> staging = device().AllocateStaging(std::uint64_t{1} << 50);

  EXPECT_EQ(staging.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(staging.status().message(), HasSubstr("are free"));
  EXPECT_EQ(device().Health(), Status::Ok());
}

}  // namespace cairn
