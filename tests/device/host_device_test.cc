#include "device/host_device.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/crc32c.h"
#include "base/worker_pool.h"
#include "cairn/options.h"
#include "device/device_contract.h"

namespace cairn {
namespace {

using Clock = Deadline::Clock;

struct Buffers {
  explicit Buffers(std::uint64_t bytes) : contents(Pattern(bytes, 1)), memory(bytes) {}
  [[nodiscard]] std::vector<CopyPiece> Pieces() { return {{&tensor, 0, tensor.bytes, memory.data()}}; }

  std::vector<std::byte> contents;
  std::vector<std::byte> memory;
  StridedLayout tensor = Contiguous(contents.data(), contents.size());
};

TEST(HostDevice, SumsDoNotDependOnTheSplit) {
  Buffers buffers(5_MiB + 12345);
  std::vector<std::uint32_t> expected;
  for (std::uint64_t at = 0; at < buffers.contents.size(); at += kChecksumBlock) {
    const Bytes rest = Bytes(buffers.contents).subspan(at);
    expected.push_back(Crc32c(rest.first(std::min<std::size_t>(rest.size(), kChecksumBlock))));
  }

  for (const int lanes : {1, 2, 3, 8}) {
    for (const int threads : {1, 2, 4, 16}) {
      WorkerPool workers("workers", threads);
      const auto device = HostDevice::Make({.lanes = lanes}, workers);
      buffers.memory.assign(buffers.memory.size(), std::byte{0});
      std::vector<std::uint32_t> sums(expected.size());

      ASSERT_EQ(CopyAndWait(*device, {.lane = lanes - 1, .pieces = buffers.Pieces(), .sums = sums.data()}),
                Status::Ok());

      EXPECT_TRUE(buffers.memory == buffers.contents) << lanes << " lanes, " << threads << " threads";
      EXPECT_EQ(sums, expected) << lanes << " lanes, " << threads << " threads";
    }
  }
}

TEST(HostDevice, SumsOfScatteredPiecesAreRefused) {
  WorkerPool workers("workers", 1);
  const auto device = HostDevice::Make({}, workers);
  Buffers buffers(64);
  std::uint32_t sum = 0;

  const Status status = CopyAndWait(*device, {.pieces = {{&buffers.tensor, 0, 8, buffers.memory.data()},
                                                         {&buffers.tensor, 8, 16, buffers.memory.data() + 32}},
                                              .sums = &sum});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("piece 1"), std::string::npos) << status;
}

class HostDeviceBandwidth : public testing::TestWithParam<bool> {};

TEST_P(HostDeviceBandwidth, IsSharedByAllLanes) {
  WorkerPool workers("workers", 2);
  const auto device = HostDevice::Make(
      {.id = {DeviceKind::kCuda, 0}, .lanes = 2, .streams = GetParam(), .bytes_per_second = 100e6}, workers);
  Buffers buffers(1'000'000);
  Buffers other(1'000'000);
  std::promise<void> first;

  const auto begin = Clock::now();
  ASSERT_EQ(device->Copy({.lane = 0, .pieces = buffers.Pieces()}, [&](const Status&) { first.set_value(); }),
            Status::Ok());
  ASSERT_EQ(CopyAndWait(*device, {.direction = CopyDirection::kToDevice, .lane = 1, .pieces = other.Pieces()}),
            Status::Ok());
  first.get_future().get();
  const auto took = Clock::now() - begin;

  // 2 MB at 100 MB/s, less the millisecond that a late sleeper may make up for. No upper bound, as the machine may be
  // busy.
  EXPECT_GE(took, std::chrono::microseconds(18'900));
  EXPECT_EQ(buffers.memory, buffers.contents);
}

TEST_P(HostDeviceBandwidth, DoesNotLimitStaging) {
  WorkerPool workers("workers", 1);
  const auto device =
      HostDevice::Make({.id = {DeviceKind::kCuda, 0}, .streams = GetParam(), .bytes_per_second = 1}, workers);
  Buffers buffers(1'000'000);
  const Result<std::byte*> staging = device->AllocateStaging(1'000'000);
  ASSERT_TRUE(staging.ok());

  // One byte a second would exceed the test's time limit.
  EXPECT_EQ(CopyAndWait(*device, {.direction = CopyDirection::kToStaging,
                                  .pieces = {{&buffers.tensor, 0, 1'000'000, *staging}}}),
            Status::Ok());
}

INSTANTIATE_TEST_SUITE_P(Of, HostDeviceBandwidth, testing::Bool(),
                         [](const auto& of) { return of.param ? "streams" : "plain"; });

TEST(HostDevice, DestructorFinishesQueuedWork) {
  for (const bool streams : {false, true}) {
    WorkerPool workers("workers", 2);
    auto device = HostDevice::Make({.lanes = 2, .streams = streams}, workers);
    Buffers buffers(3_MiB);
    std::atomic<int> calls = 0;
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(device->Copy({.lane = i % 2, .pieces = i == 9 ? buffers.Pieces() : std::vector<CopyPiece>{}},
                             [&](const Status&) { ++calls; }),
                Status::Ok());
    }

    device.reset();

    EXPECT_EQ(calls, 10);
    EXPECT_TRUE(buffers.memory == buffers.contents);
  }
}

TEST(HostDevice, StagingIsAllocatedOnceAndAligned) {
  WorkerPool workers("workers", 1);
  const auto device = HostDevice::Make({}, workers);

  const Result<std::byte*> staging = device->AllocateStaging(10'000);

  ASSERT_TRUE(staging.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*staging) % kBlock, 0U);
  EXPECT_EQ(device->AllocateStaging(10'000).status().code(), StatusCode::kFailedPrecondition);
}

TEST(HostDevice, EmulatedStreamRunsWorkInOrderOnItsThread) {
  WorkerPool workers("workers", 1);
  const auto device = HostDevice::Make({.id = {DeviceKind::kCuda, 1}, .streams = true}, workers);
  const Stream stream = device->MakeStream();
  const Stream default_stream{device->id(), 0};
  std::vector<int> order;
  std::thread::id thread;
  sigset_t blocked;
  sigemptyset(&blocked);

  for (int i = 0; i < 100; ++i) device->Launch(stream, [&order, i] { order.push_back(i); });
  device->Launch(stream, [&] {
    thread = std::this_thread::get_id();
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  });
  device->Synchronize(stream);
  bool ran = false;
  device->Launch(default_stream, [&] { ran = true; });
  device->Synchronize(default_stream);

  ASSERT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
  EXPECT_NE(stream.handle, default_stream.handle);
  EXPECT_TRUE(ran);
}

TEST(HostDevice, EventCoversEarlierWorkInItsStream) {
  WorkerPool workers("workers", 1);
  const auto device = HostDevice::Make({.id = {DeviceKind::kCuda, 0}, .streams = true}, workers);
  const Stream stream = device->MakeStream();
  const Stream waiting = device->MakeStream();
  const Result<EventId> event = device->AcquireEvent();
  std::promise<void> gate;
  bool before = false;

  device->Launch(stream, [&] { before = true; });
  ASSERT_EQ(device->RecordOnStream(stream, *event), Status::Ok());
  device->Launch(stream, [opened = gate.get_future().share()] { opened.wait(); });
  ASSERT_EQ(device->StreamWait(waiting, *event), Status::Ok());

  // Not delayed by work after the record.
  device->Synchronize(waiting);
  EXPECT_TRUE(before);
  gate.set_value();
  // A released event forgets its record.
  device->ReleaseEvent(*event);
  const Result<EventId> again = device->AcquireEvent();
  EXPECT_EQ(device->StreamWait(waiting, *again).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cairn
