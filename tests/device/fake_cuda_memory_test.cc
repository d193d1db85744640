// The driver's double itself: which memory a copy may touch, and what a capture forbids.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "base/unique_fd.h"
#include "device/fake_cuda_fixture.h"

namespace cairn {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kPage = 4096;

using FakeCudaMemory = FakeCudaTest;

TEST_F(FakeCudaMemory, PageableMemoryMakesTheCallerWaitAndIsMisuse) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::byte* const pageable = MakePageable(kPage);
  pageable[7] = std::byte{3};

  ASSERT_EQ(cuda().memcpy_async(at, Address(pageable), kPage, stream), CUDA_SUCCESS);
  // It has run: the caller waited.
  EXPECT_EQ(cuda().stream_query(stream), CUDA_SUCCESS);

  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("cuMemcpyAsync: pageable host memory")));
}

TEST_F(FakeCudaMemory, BatchInStreamOrderRefusesPageableMemory) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::array<CUdeviceptr, 2> to{at, at + 100};
  std::array<CUdeviceptr, 2> from{Address(MakePinned(kPage)), Address(MakePageable(kPage))};
  std::array<std::size_t, 2> sizes{100, 100};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  std::size_t failed = 0;

  EXPECT_EQ(cuda().memcpy_batch_async(to.data(), from.data(), sizes.data(), 2, &attributes, &first, 1, &failed, stream),
            CUDA_ERROR_INVALID_VALUE);

  EXPECT_EQ(failed, 1U);
}

TEST_F(FakeCudaMemory, BatchWhoseCopiesWriteTheSameBytesIsMisuse) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  const CUdeviceptr host = Address(MakePinned(kPage));
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  for (const std::size_t second : {100, 99}) {
    EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
    std::array<CUdeviceptr, 2> to{at, at + second};
    std::array<CUdeviceptr, 2> from{host, host};
    std::array<std::size_t, 2> sizes{100, 100};
    std::size_t first = 0;
    std::size_t failed = 0;

    EXPECT_EQ(
        cuda().memcpy_batch_async(to.data(), from.data(), sizes.data(), 2, &attributes, &first, 1, &failed, stream),
        CUDA_SUCCESS);
  }

  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("two copies write the same bytes")));
}

TEST_F(FakeCudaMemory, CopyOfFreedMemoryIsSticky) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::byte* const host = MakePinned(kPage);
  fake_cuda::HoldWork();
  ASSERT_EQ(cuda().memcpy_async(Address(host), at, kPage, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda().mem_free(at), CUDA_SUCCESS);
  fake_cuda::ReleaseWork();

  EXPECT_EQ(cuda().stream_synchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda().stream_query(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaMemory, LaterCopyOfFreedMemoryIsStickyToo) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::byte* const host = MakePinned(kPage);
  ASSERT_EQ(cuda().mem_free(at), CUDA_SUCCESS);

  ASSERT_EQ(cuda().memcpy_async(at, Address(host), kPage, stream), CUDA_SUCCESS);

  EXPECT_EQ(cuda().stream_synchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaMemory, CopyOfMemoryThatWasUnregisteredIsSticky) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::byte* const host = MakePinned(kPage);
  fake_cuda::HoldWork();
  ASSERT_EQ(cuda().memcpy_async(Address(host), at, kPage, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda().mem_host_unregister(host), CUDA_SUCCESS);
  fake_cuda::ReleaseWork();

  EXPECT_EQ(cuda().stream_synchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaMemory, OnlyPagesThatAreThereAreRegistered) {
  const UniqueFd file(::memfd_create("short", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), kPage), 0);
  void* const at = ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);

  EXPECT_EQ(cuda().mem_host_register(at, 2 * kPage, kMemHostRegisterPortable), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda().mem_host_register(at, kPage, kMemHostRegisterPortable), CUDA_SUCCESS);

  EXPECT_EQ(cuda().mem_host_unregister(at), CUDA_SUCCESS);
  EXPECT_EQ(::munmap(at, 2 * kPage), 0);
}

TEST_F(FakeCudaMemory, UnmappingBeforeUnregisteringIsMisuse) {
  void* const at = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(cuda().mem_host_register(at, kPage, kMemHostRegisterPortable), CUDA_SUCCESS);
  ASSERT_EQ(::munmap(at, kPage), 0);

  EXPECT_EQ(cuda().mem_host_unregister(at), CUDA_SUCCESS);

  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("unmapped before")));
}

TEST_F(FakeCudaMemory, CopyBeyondAnAllocationIsSticky) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::byte* const host = MakePinned(2 * kPage);

  ASSERT_EQ(cuda().memcpy_async(Address(host), at + 1, kPage, stream), CUDA_SUCCESS);

  EXPECT_EQ(cuda().stream_synchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaMemory, HostCodeCannotTouchGpuMemory) {
  const CUdeviceptr at = MakeGpuMemory(kPage);

  // The kernel says so instead of a signal.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  EXPECT_EQ(::write(ends[1], reinterpret_cast<const void*>(at), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  for (const int end : ends) ::close(end);
}

TEST_F(FakeCudaMemory, KernelRunsInItsStreamWithCopiedArguments) {
  struct Arguments {
    CUdeviceptr at;
    unsigned int value;
  };
  fake_cuda::DefineKernel(
      "fill", {.argument_bytes = {sizeof(Arguments)}, .run = [](const fake_cuda::Launch& launch, void** arguments) {
                 const auto* given = static_cast<const Arguments*>(arguments[0]);
                 auto* words = reinterpret_cast<unsigned int*>(given->at);
                 for (unsigned int i = 0; i < launch.grid[0] * launch.block[0]; ++i) words[i] = given->value;
               }});
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::byte* const host = MakePinned(kPage);
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  EXPECT_EQ(cuda().module_load_data(&module, "no ptx"), CUDA_ERROR_INVALID_IMAGE);
  ASSERT_EQ(cuda().module_load_data(&module, ".version 8.0\n.target sm_70\n"), CUDA_SUCCESS);
  EXPECT_EQ(cuda().module_get_function(&fill, module, "empty"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(cuda().module_get_function(&fill, module, "fill"), CUDA_SUCCESS);
  const auto launch = [&](unsigned int block, CUstream in) {
    Arguments arguments{.at = at, .value = 7};
    void* pointers[] = {&arguments};
    return cuda().launch_kernel(fill, 4, 1, 1, block, 1, 1, 0, in, pointers, nullptr);
  };

  EXPECT_EQ(launch(2048, stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(launch(256, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda().memcpy_async(Address(host), at, kPage, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda().stream_synchronize(stream), CUDA_SUCCESS);

  EXPECT_EQ(reinterpret_cast<unsigned int*>(host)[1023], 7U);
  EXPECT_EQ(cuda().module_unload(module), CUDA_SUCCESS);
  EXPECT_EQ(launch(256, stream), CUDA_ERROR_INVALID_HANDLE);
}

class FakeCudaCapture : public FakeCudaTest {
 protected:
  CUresult Begin(CUstream stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return Find<PFN_cuStreamBeginCapture_v10010>("cuStreamBeginCapture", 10010)(stream, mode);
  }
  CUresult End(CUstream stream) {
    CUgraph graph = nullptr;
    return Find<PFN_cuStreamEndCapture_v10000>("cuStreamEndCapture", 10000)(stream, &graph);
  }
  CUstreamCaptureStatus StatusOf(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuda().stream_is_capturing(stream, &status), CUDA_SUCCESS);
    return status;
  }
};

TEST_F(FakeCudaCapture, CapturedWorkDoesNotRun) {
  const CUstream stream = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kPage);
  std::byte* const host = MakePinned(kPage);
  ASSERT_EQ(Find<PFN_cuMemsetD8Async_v3020>("cuMemsetD8Async", 3020)(at, 7, kPage, stream), CUDA_SUCCESS);
  ASSERT_EQ(Begin(stream), CUDA_SUCCESS);

  ASSERT_EQ(cuda().memcpy_async(Address(host), at, kPage, stream), CUDA_SUCCESS);

  EXPECT_EQ(End(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda().stream_synchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(host[0], std::byte{0});
}

TEST_F(FakeCudaCapture, BatchOfCopiesCannotBeCaptured) {
  const CUstream stream = MakeStream();
  CUdeviceptr to = MakeGpuMemory(kPage);
  CUdeviceptr from = Address(MakePinned(kPage));
  std::size_t size = kPage;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  std::size_t failed = 0;
  ASSERT_EQ(Begin(stream), CUDA_SUCCESS);

  EXPECT_EQ(cuda().memcpy_batch_async(&to, &from, &size, 1, &attributes, &first, 1, &failed, stream),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

  EXPECT_EQ(End(stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCapture, CapturedEventPullsTheWaitingStreamIn) {
  const CUstream origin = MakeStream();
  const CUstream fork = MakeStream();
  const CUevent event = MakeEvent();
  const CUevent back = MakeEvent();
  const auto event_query = Find<PFN_cuEventQuery_v2000>("cuEventQuery", 2000);
  ASSERT_EQ(Begin(origin), CUDA_SUCCESS);
  ASSERT_EQ(cuda().event_record(event, origin), CUDA_SUCCESS);
  ASSERT_EQ(cuda().stream_wait_event(fork, event, CU_EVENT_WAIT_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(StatusOf(fork), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(End(origin), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(StatusOf(fork), CU_STREAM_CAPTURE_STATUS_NONE);
  // The event stays one of the capture until it is recorded again.
  EXPECT_EQ(event_query(event), CUDA_ERROR_CAPTURED_EVENT);

  ASSERT_EQ(Begin(origin), CUDA_SUCCESS);
  ASSERT_EQ(cuda().event_record(event, origin), CUDA_SUCCESS);
  ASSERT_EQ(cuda().stream_wait_event(fork, event, CU_EVENT_WAIT_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(cuda().event_record(back, fork), CUDA_SUCCESS);
  ASSERT_EQ(cuda().stream_wait_event(origin, back, CU_EVENT_WAIT_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(End(origin), CUDA_SUCCESS);
}

TEST_F(FakeCudaCapture, WaitForAnEventOutsideInvalidates) {
  const CUstream captured = MakeStream();
  const CUstream outside = MakeStream();
  const CUevent event = MakeEvent();
  ASSERT_EQ(cuda().event_record(event, outside), CUDA_SUCCESS);
  ASSERT_EQ(Begin(captured), CUDA_SUCCESS);

  EXPECT_EQ(cuda().stream_wait_event(captured, event, CU_EVENT_WAIT_DEFAULT), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);

  EXPECT_EQ(StatusOf(captured), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(End(captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCapture, LegacyStreamCannotBeUsedBesideABlockingCapture) {
  const CUstream blocking = MakeStream(CU_STREAM_DEFAULT);
  const CUevent event = MakeEvent();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  ASSERT_EQ(Begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);

  EXPECT_EQ(cuda().stream_is_capturing(kLegacyStream, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(StatusOf(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cuda().event_record(event, kLegacyStream), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);

  EXPECT_EQ(End(blocking), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// What cuThreadExchangeStreamCaptureMode documents, for an unsafe call by the capture's thread and by another.
TEST_F(FakeCudaCapture, ModesDecideWhoMayCallWhatIsUnsafe) {
  struct Case {
    CUstreamCaptureMode capture, thread;
    bool same_thread, allowed;
  };
  constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
  constexpr auto kLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  for (const Case& test :
       {Case{kGlobal, kGlobal, true, false}, Case{kGlobal, kGlobal, false, false}, Case{kGlobal, kLocal, false, true},
        Case{kGlobal, kRelaxed, true, true}, Case{kLocal, kGlobal, true, false}, Case{kLocal, kGlobal, false, true},
        Case{kRelaxed, kGlobal, true, true}, Case{kRelaxed, kGlobal, false, true}}) {
    SCOPED_TRACE(testing::Message() << test.capture << " " << test.thread << " " << test.same_thread);
    const CUstream captured = MakeStream();
    const CUstream idle = MakeStream();
    ASSERT_EQ(Begin(captured, test.capture), CUDA_SUCCESS);
    const auto unsafe = [&] {
      EXPECT_EQ(driver_->ctx_push_current(contexts_[0]), CUDA_SUCCESS);
      CUstreamCaptureMode mode = test.thread;
      EXPECT_EQ(cuda().thread_exchange_capture_mode(&mode), CUDA_SUCCESS);
      EXPECT_EQ(cuda().stream_query(idle), test.allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      EXPECT_EQ(cuda().thread_exchange_capture_mode(&mode), CUDA_SUCCESS);
      CUcontext popped = nullptr;
      EXPECT_EQ(driver_->ctx_pop_current(&popped), CUDA_SUCCESS);
    };
    test.same_thread ? unsafe() : std::thread(unsafe).join();
    EXPECT_EQ(End(captured), test.allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

TEST_F(FakeCudaCapture, AnotherThreadCannotEndIt) {
  const CUstream stream = MakeStream();
  ASSERT_EQ(Begin(stream), CUDA_SUCCESS);
  std::thread other([&] {
    EXPECT_EQ(driver_->ctx_push_current(contexts_[0]), CUDA_SUCCESS);
    EXPECT_EQ(End(stream), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  });
  other.join();
  EXPECT_EQ(End(stream), CUDA_SUCCESS);
  EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
}

}  // namespace
}  // namespace cairn
