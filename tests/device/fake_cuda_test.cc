// The driver's double itself: contexts, handles, events, the launch queue and the schedule.
#include <future>
#include <set>
#include <string>
#include <thread>

#include "device/fake_cuda_fixture.h"

namespace cairn {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kBytes = 4096;

using FakeCudaStreams = FakeCudaTest;

TEST_F(FakeCudaStreams, CallWithoutACurrentContextIsRefused) {
  std::thread other([&] {
    CUstream stream = nullptr;
    EXPECT_EQ(cuda().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_ERROR_INVALID_CONTEXT);
  });
  other.join();

  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("cuStreamCreate: no current context")));
}

TEST_F(FakeCudaStreams, HandlesOfAnotherContextAreRefused) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();

  On(1, [&] {
    EXPECT_EQ(cuda().stream_query(stream), CUDA_ERROR_INVALID_HANDLE);
    const CUstream there = MakeStream();
    EXPECT_EQ(cuda().event_record(event, there), CUDA_ERROR_INVALID_HANDLE);
    return 0;
  });

  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("of two contexts")));
}

TEST_F(FakeCudaStreams, StreamOfAnotherGpuMayWaitForAnEvent) {
  const CUstream here = MakeStream();
  const CUevent event = MakeEvent();
  ASSERT_EQ(cuda().event_record(event, here), CUDA_SUCCESS);

  On(1, [&] {
    const CUstream there = MakeStream();
    EXPECT_EQ(cuda().stream_wait_event(there, event, CU_EVENT_WAIT_DEFAULT), CUDA_SUCCESS);
    EXPECT_EQ(cuda().stream_synchronize(there), CUDA_SUCCESS);
    return 0;
  });

  EXPECT_THAT(fake_cuda::Misuses(), IsEmpty());
}

TEST_F(FakeCudaStreams, DestroyedHandlesAreRefused) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  ASSERT_EQ(cuda().event_destroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuda().event_record(event, stream), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuda().stream_destroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda().stream_synchronize(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCudaStreams, WhatAContextStillHasAtItsEndCountsAsLeft) {
  On(1, [&] { return MakeStream(); });
  const int before = fake_cuda::LiveObjects();

  EXPECT_EQ(cuda().primary_ctx_release(1), CUDA_SUCCESS);
  EXPECT_EQ(cuda().primary_ctx_retain(&contexts_[1], 1), CUDA_SUCCESS);

  EXPECT_EQ(fake_cuda::LiveObjects(), before);
}

TEST_F(FakeCudaStreams, WorkOfADestroyedStreamStillRuns) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  const CUdeviceptr at = MakeGpuMemory(kBytes);
  std::byte* const host = MakePinned(kBytes);
  fake_cuda::HoldWork();
  ASSERT_EQ(Find<PFN_cuMemsetD8Async_v3020>("cuMemsetD8Async", 3020)(at, 7, kBytes, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda().memcpy_async(Address(host), at, kBytes, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);

  // Returns although nothing has run.
  ASSERT_EQ(cuda().stream_destroy(stream), CUDA_SUCCESS);
  fake_cuda::ReleaseWork();

  EXPECT_EQ(cuda().event_synchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(host[kBytes - 1], std::byte{7});
}

TEST_F(FakeCudaStreams, WaitForAnEventThatWasNeverRecordedIsMisuse) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  const auto event_query = Find<PFN_cuEventQuery_v2000>("cuEventQuery", 2000);

  // As the real driver: the event counts as reached.
  EXPECT_EQ(cuda().stream_wait_event(stream, event, CU_EVENT_WAIT_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(event_query(event), CUDA_SUCCESS);

  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("cuStreamWaitEvent: the event was never recorded")));
  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("cuEventQuery: the event was never recorded")));
}

// What a context's end or loss drops never runs, but streams of other GPUs that wait for it must not stand still.
TEST_F(FakeCudaStreams, StreamGoesOnIfTheRecordThatItWaitsForIsDropped) {
  const auto wait_value = Find<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070);
  std::byte* const flag = MakePinned(kBytes);
  for (const bool lost : {false, true}) {
    const CUstream here = MakeStream();
    On(1, [&] {
      const CUstream there = MakeStream();
      const CUevent event = MakeEvent();
      EXPECT_EQ(wait_value(there, Address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
      EXPECT_EQ(cuda().event_record(event, there), CUDA_SUCCESS);
      return On(0, [&] { return cuda().stream_wait_event(here, event, CU_EVENT_WAIT_DEFAULT); });
    });
    ASSERT_EQ(cuda().stream_query(here), CUDA_ERROR_NOT_READY);

    if (lost) {
      fake_cuda::SetSticky(CUDA_ERROR_LAUNCH_FAILED, 1);
    } else {
      ASSERT_EQ(cuda().primary_ctx_release(1), CUDA_SUCCESS);
      ASSERT_EQ(cuda().primary_ctx_retain(&contexts_[1], 1), CUDA_SUCCESS);
    }
    auto waiting =
        std::async(std::launch::async, [&] { return On(0, [&] { return cuda().stream_synchronize(here); }); });
    const bool ended = waiting.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    EXPECT_TRUE(ended) << (lost ? "lost" : "released");
    if (!ended) fake_cuda::SetSticky(CUDA_ERROR_LAUNCH_FAILED, 0);

    EXPECT_EQ(waiting.get(), CUDA_SUCCESS);
  }
}

TEST_F(FakeCudaStreams, LossOfOneGpuLeavesTheOtherAlone) {
  const CUstream here = MakeStream();
  const CUevent event = MakeEvent();
  ASSERT_EQ(cuda().event_record(event, here), CUDA_SUCCESS);

  fake_cuda::SetSticky(CUDA_ERROR_LAUNCH_FAILED, 1);

  EXPECT_EQ(cuda().event_record(event, here), CUDA_SUCCESS);
  EXPECT_EQ(cuda().stream_synchronize(here), CUDA_SUCCESS);
  CUstream there = nullptr;
  EXPECT_EQ(On(1, [&] { return cuda().stream_create(&there, CU_STREAM_NON_BLOCKING); }), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(FakeCudaStreams, FlagThatTheHostWritesIsSeen) {
  const auto wait_value = Find<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070);
  std::byte* const flag = MakePinned(kBytes);
  const CUstream stream = MakeStream();
  const CUstream other = MakeStream();
  const CUdeviceptr at = MakeGpuMemory(kBytes);
  const auto memset_async = Find<PFN_cuMemsetD8Async_v3020>("cuMemsetD8Async", 3020);
  for (std::uint32_t value = 1; value <= 50; ++value) {
    ASSERT_EQ(wait_value(stream, Address(flag), value, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    // Afterwards nothing else wakes the scheduler.
    ASSERT_EQ(memset_async(at, 1, kBytes, other), CUDA_SUCCESS);
    ASSERT_EQ(cuda().stream_synchronize(other), CUDA_SUCCESS);
    ASSERT_EQ(cuda().stream_query(stream), CUDA_ERROR_NOT_READY);

    __atomic_store_n(reinterpret_cast<std::uint32_t*>(flag), value, __ATOMIC_RELEASE);

    ASSERT_EQ(cuda().stream_synchronize(stream), CUDA_SUCCESS);
  }
}

TEST_F(FakeCudaStreams, CallThatWaitsForAPlaceInAFullQueueFailsWithItsContext) {
  const CUdeviceptr at = MakeGpuMemory(kBytes);
  const auto memset_async = Find<PFN_cuMemsetD8Async_v3020>("cuMemsetD8Async", 3020);
  const CUstream stream = MakeStream();
  fake_cuda::HoldWork();
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(memset_async(at, 1, kBytes, stream), CUDA_SUCCESS);
  auto blocked =
      std::async(std::launch::async, [&] { return On(0, [&] { return memset_async(at, 1, kBytes, stream); }); });
  while (fake_cuda::BlockedLaunches() == 0) std::this_thread::yield();

  fake_cuda::SetSticky(CUDA_ERROR_LAUNCH_FAILED, 0);

  EXPECT_EQ(blocked.get(), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(FakeCudaStreams, EventIsReachedWhenTheWorkBeforeItHasRun) {
  const auto event_query = Find<PFN_cuEventQuery_v2000>("cuEventQuery", 2000);
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  fake_cuda::HoldWork();
  ASSERT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);

  EXPECT_EQ(event_query(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda().stream_query(stream), CUDA_ERROR_NOT_READY);
  fake_cuda::ReleaseWork();

  EXPECT_EQ(cuda().event_synchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(event_query(event), CUDA_SUCCESS);
}

TEST_F(FakeCudaStreams, LegacyStreamAndBlockingStreamsOrderEachOther) {
  const CUdeviceptr at = MakeGpuMemory(kBytes);
  std::byte* const host = MakePinned(kBytes);
  const auto memset_async = Find<PFN_cuMemsetD8Async_v3020>("cuMemsetD8Async", 3020);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    fake_cuda::SetSchedule(seed);
    const CUstream blocking = MakeStream(CU_STREAM_DEFAULT);

    for (unsigned char i = 1; i <= 4; ++i) {
      ASSERT_EQ(memset_async(at, i, kBytes, i % 2 == 0 ? blocking : kLegacyStream), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuda().memcpy_async(Address(host), at, kBytes, kLegacyStream), CUDA_SUCCESS);
    ASSERT_EQ(cuda().stream_synchronize(kLegacyStream), CUDA_SUCCESS);

    ASSERT_EQ(host[kBytes - 1], std::byte{4}) << "seed " << seed;
    ASSERT_EQ(cuda().stream_destroy(blocking), CUDA_SUCCESS);
  }
}

using FakeCudaQueue = FakeCudaTest;

TEST_F(FakeCudaQueue, LaunchIntoAFullQueueBlocksOtherThreadsToo) {
  const CUstream full = MakeStream();
  const CUstream other = MakeStream();
  const CUevent event = MakeEvent();
  fake_cuda::HoldWork();
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(cuda().event_record(event, full), CUDA_SUCCESS);
  ASSERT_EQ(fake_cuda::BlockedLaunches(), 0);

  std::thread launches([&] {
    EXPECT_EQ(driver_->ctx_push_current(contexts_[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuda().event_record(event, full), CUDA_SUCCESS);
  });
  while (fake_cuda::BlockedLaunches() < 1) std::this_thread::yield();
  std::thread bystander([&] {
    EXPECT_EQ(driver_->ctx_push_current(contexts_[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuda().stream_query(other), CUDA_SUCCESS);
  });
  while (fake_cuda::BlockedLaunches() < 2) std::this_thread::yield();
  fake_cuda::ReleaseWork();
  launches.join();
  bystander.join();

  EXPECT_EQ(cuda().stream_synchronize(full), CUDA_SUCCESS);
}

TEST_F(FakeCudaQueue, BatchCountsEachOfItsCopies) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  const CUdeviceptr at = MakeGpuMemory(kBytes);
  std::byte* const host = MakePinned(kBytes);
  fake_cuda::HoldWork();
  std::vector<CUdeviceptr> to(1000, Address(host));
  std::vector<CUdeviceptr> from(1000, at);
  std::vector<std::size_t> sizes(1000, 8);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += 4 * i % kBytes / 8 * 8;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  std::size_t failed = 0;
  ASSERT_EQ(cuda().memcpy_batch_async(to.data(), from.data(), sizes.data(), to.size(), &attributes, &first, 1, &failed,
                                      stream),
            CUDA_SUCCESS);
  for (int i = 0; i < 24; ++i) ASSERT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda::BlockedLaunches(), 0);

  std::thread launches([&] {
    EXPECT_EQ(driver_->ctx_push_current(contexts_[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);
  });
  while (fake_cuda::BlockedLaunches() < 1) std::this_thread::yield();
  fake_cuda::ReleaseWork();
  launches.join();
}

class FakeCudaWaits : public FakeCudaTest {
 protected:
  // On a thread that waits for the event, with the context current.
  std::future<CUresult> Await(CUevent event) {
    const int before = fake_cuda::Calls("cuEventSynchronize");
    auto waits = std::async(std::launch::async,
                            [this, event] { return On(0, [&] { return cuda().event_synchronize(event); }); });
    while (fake_cuda::Calls("cuEventSynchronize") == before) std::this_thread::yield();
    return waits;
  }
  static bool Ended(const std::future<CUresult>& waits) {
    return waits.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready;
  }
};

TEST_F(FakeCudaWaits, HeldOnesHoldNoStream) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  fake_cuda::HoldWaits();
  ASSERT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);
  auto waits = Await(event);

  EXPECT_EQ(cuda().stream_synchronize(stream), CUDA_SUCCESS);
  EXPECT_FALSE(Ended(waits));
  fake_cuda::ReleaseWaits();

  EXPECT_EQ(waits.get(), CUDA_SUCCESS);
}

TEST_F(FakeCudaWaits, EndWithTheErrorOfALostContext) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  fake_cuda::HoldWork();
  ASSERT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);
  auto waits = Await(event);
  EXPECT_FALSE(Ended(waits));

  fake_cuda::SetSticky(CUDA_ERROR_LAUNCH_FAILED, 0);

  EXPECT_EQ(waits.get(), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(FakeCudaWaits, SpinningIsMisuse) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent(CU_EVENT_DISABLE_TIMING);
  ASSERT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);

  EXPECT_EQ(cuda().event_synchronize(event), CUDA_SUCCESS);

  EXPECT_THAT(fake_cuda::Misuses(), Contains(HasSubstr("CU_EVENT_BLOCKING_SYNC")));
}

TEST_F(FakeCudaWaits, EventIsNotTouchedWhileAThreadWaitsForIt) {
  const CUstream stream = MakeStream();
  const CUevent event = MakeEvent();
  fake_cuda::HoldWaits();
  ASSERT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);
  auto waits = Await(event);

  EXPECT_EQ(cuda().event_record(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuda().event_destroy(event), CUDA_SUCCESS);
  fake_cuda::ReleaseWaits();

  EXPECT_EQ(waits.get(), CUDA_SUCCESS);
  EXPECT_THAT(fake_cuda::Misuses(),
              ElementsAre(HasSubstr("cuEventRecord: a thread waits"), HasSubstr("cuEventDestroy: a thread waits")));
}

using FakeCudaSchedule = FakeCudaTest;

TEST_F(FakeCudaSchedule, SeedsChooseDifferentOrdersOfStreamsThatWaitForNothing) {
  std::set<std::string> orders;
  std::string order;
  fake_cuda::DefineKernel("note", {.argument_bytes = {sizeof(char)}, .run = [&order](const auto&, void** arguments) {
                                     order += *static_cast<const char*>(arguments[0]);
                                   }});
  CUmodule module = nullptr;
  CUfunction note = nullptr;
  ASSERT_EQ(cuda().module_load_data(&module, ".version 8.0\n.target sm_70\n"), CUDA_SUCCESS);
  ASSERT_EQ(cuda().module_get_function(&note, module, "note"), CUDA_SUCCESS);
  const std::vector<CUstream> streams{MakeStream(), MakeStream(), MakeStream()};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    fake_cuda::SetSchedule(seed);
    order.clear();
    fake_cuda::HoldWork();
    for (std::size_t i = 0; i < streams.size(); ++i) {
      char name = static_cast<char>('a' + i);
      std::array<void*, 1> arguments = {&name};
      ASSERT_EQ(cuda().launch_kernel(note, 1, 1, 1, 1, 1, 1, 0, streams[i], arguments.data(), nullptr), CUDA_SUCCESS);
    }
    fake_cuda::ReleaseWork();
    for (const CUstream stream : streams) ASSERT_EQ(cuda().stream_synchronize(stream), CUDA_SUCCESS);
    orders.insert(order);
  }

  EXPECT_EQ(orders.size(), 6U);
  EXPECT_EQ(cuda().module_unload(module), CUDA_SUCCESS);
}

TEST_F(FakeCudaSchedule, EveryOrderKeepsAStreamsOwn) {
  const CUstream first = MakeStream();
  const CUstream second = MakeStream();
  const CUevent event = MakeEvent();
  const CUdeviceptr at = MakeGpuMemory(kBytes);
  std::byte* const host = MakePinned(kBytes);
  const auto memset_async = Find<PFN_cuMemsetD8Async_v3020>("cuMemsetD8Async", 3020);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    fake_cuda::SetSchedule(seed);
    ASSERT_EQ(memset_async(at, 1, kBytes, first), CUDA_SUCCESS);
    ASSERT_EQ(memset_async(at, 2, kBytes, first), CUDA_SUCCESS);
    ASSERT_EQ(cuda().event_record(event, first), CUDA_SUCCESS);
    ASSERT_EQ(cuda().stream_wait_event(second, event, CU_EVENT_WAIT_DEFAULT), CUDA_SUCCESS);
    ASSERT_EQ(cuda().memcpy_async(Address(host), at, kBytes, second), CUDA_SUCCESS);
    ASSERT_EQ(cuda().stream_synchronize(second), CUDA_SUCCESS);
    ASSERT_EQ(host[0], std::byte{2}) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cairn
