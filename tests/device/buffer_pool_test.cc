#include "device/buffer_pool.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>
#include <utility>

#include "base/worker_pool.h"
#include "cairn/options.h"
#include "device/host_device.h"
#include "support/forked.h"

namespace cairn {
namespace {

using Priority = BufferPool::Priority;

std::unique_ptr<BufferPool> MakePool(std::uint64_t cap, std::uint64_t chunk) {
  auto pool = BufferPool::Make(cap, chunk, 1);
  EXPECT_EQ(pool.status(), Status::Ok());
  return pool.ok() ? *std::move(pool) : nullptr;
}

std::vector<BufferPool::Chunk> TakeAll(BufferPool& pool) {
  std::vector<BufferPool::Chunk> chunks;
  while (BufferPool::Chunk chunk = pool.TryAcquire(Priority::kRestore)) chunks.push_back(std::move(chunk));
  return chunks;
}

void AwaitWaitingRestore(BufferPool& pool) {
  while (pool.restores_waiting() == 0) std::this_thread::yield();
}

TEST(BufferPool, HoldsAsManyChunksAsTheCapAllows) {
  const auto pool = MakePool(11_MiB, 2_MiB);

  const std::vector<BufferPool::Chunk> chunks = TakeAll(*pool);

  EXPECT_EQ(pool->chunk_count(), 5U);
  EXPECT_EQ(pool->chunk_bytes(), 2_MiB);
  EXPECT_EQ(pool->total_bytes(), 10_MiB);
  ASSERT_EQ(chunks.size(), 5U);
  std::vector<std::uintptr_t> addresses;
  for (const BufferPool::Chunk& chunk : chunks) {
    addresses.push_back(reinterpret_cast<std::uintptr_t>(chunk.data()));
    std::memset(chunk.data(), 0xAB, 2_MiB);
  }
  std::sort(addresses.begin(), addresses.end());
  EXPECT_EQ(addresses.front() % 2_MiB, 0U);
  for (std::size_t i = 1; i < addresses.size(); ++i) EXPECT_EQ(addresses[i] - addresses[i - 1], 2_MiB);
}

TEST(BufferPool, ChunksOfOneMebibyteAreAlignedToBlocks) {
  const auto pool = MakePool(3_MiB, 1_MiB);

  for (const BufferPool::Chunk& chunk : TakeAll(*pool)) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(chunk.data()) % kBlock, 0U);
  }
}

TEST(BufferPool, TooSmallACapNamesTheMinimum) {
  const auto pool = BufferPool::Make(31_MiB, 4_MiB, 8);

  EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(pool.status().message(), testing::HasSubstr("32505856"));  // found
  EXPECT_THAT(pool.status().message(), testing::HasSubstr("33554432"));  // expected
  EXPECT_TRUE(BufferPool::Make(32_MiB, 4_MiB, 8).ok());
}

TEST(BufferPool, RefusesUnalignedChunkSizes) {
  EXPECT_EQ(BufferPool::Make(1_MiB, 0, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BufferPool::Make(1_MiB, 1000, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST(BufferPool, TooMuchMemoryIsResourceExhausted) {
  // 64 TiB fits the address space, but no memory.
  const auto pool = BufferPool::Make(64ULL << 40, 1ULL << 30, 1);
  if (pool.ok()) GTEST_SKIP() << "this kernel promises any amount of memory (vm.overcommit_memory = 1)";

  EXPECT_EQ(pool.status().code(), StatusCode::kResourceExhausted);
}

TEST(BufferPool, TouchBacksThePoolAndKeepsContents) {
  const auto pool = MakePool(16_MiB, 4_MiB);
  const BufferPool::Chunk chunk = pool->TryAcquire(Priority::kSave);
  std::memset(chunk.data(), 0x5A, 4_MiB);

  pool->Touch();

  EXPECT_TRUE(std::all_of(chunk.data(), chunk.data() + 4_MiB, [](std::byte b) { return b == std::byte{0x5A}; }));
  std::vector<unsigned char> resident(pool->total_bytes() / kBlock);
  const std::vector<BufferPool::Chunk> others = TakeAll(*pool);
  for (const BufferPool::Chunk& other : others) {
    ASSERT_EQ(::mincore(other.data(), 4_MiB, resident.data()), 0);
    EXPECT_TRUE(
        std::all_of(resident.begin(), resident.begin() + 4_MiB / kBlock, [](unsigned char r) { return r & 1; }));
  }
}

TEST(BufferPool, TouchWithWorkersBacksTheWholePool) {
  WorkerPool workers("worker", 4);
  for (int round = 0; round < 20; ++round) {
    const auto pool = MakePool(36_MiB, 4_MiB);

    pool->Touch(workers);

    std::vector<unsigned char> resident(4_MiB / kBlock);
    for (const BufferPool::Chunk& chunk : TakeAll(*pool)) {
      ASSERT_EQ(::mincore(chunk.data(), 4_MiB, resident.data()), 0);
      EXPECT_TRUE(std::all_of(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; }));
    }
  }
}

TEST(BufferPool, TouchedPoolIsBackedByHugePages) {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string enabled;
  std::getline(file, enabled);
  if (enabled.empty() || enabled.find("[never]") != std::string::npos) {
    GTEST_SKIP() << "transparent huge pages are off here: " << enabled;
  }
  const auto pool = MakePool(64_MiB, 4_MiB);
  const auto neighbour = MakePool(64_MiB, 4_MiB);
  EXPECT_EQ(pool->HugepageBytes(), 0U);

  pool->Touch();
  neighbour->Touch();

  // Under memory pressure a few may be missing. Those of the neighbour are never counted.
  EXPECT_GE(pool->HugepageBytes(), 32_MiB);
  EXPECT_LE(pool->HugepageBytes(), 64_MiB);
}

TEST(BufferPool, PeakIsTheMostInUseAtOnce) {
  const auto pool = MakePool(8_MiB, 1_MiB);
  EXPECT_EQ(pool->peak_bytes(), 0U);

  {
    BufferPool::Chunk first = pool->TryAcquire(Priority::kSave);
    BufferPool::Chunk second = pool->TryAcquire(Priority::kSave);
    first.Reset();
    const BufferPool::Chunk third = pool->TryAcquire(Priority::kSave);
    EXPECT_EQ(pool->peak_bytes(), 2_MiB);
  }
  const BufferPool::Chunk last = pool->TryAcquire(Priority::kSave);

  EXPECT_EQ(pool->peak_bytes(), 2_MiB);
}

TEST(BufferPool, ChunkHasOneOwner) {
  const auto pool = MakePool(1_MiB, 1_MiB);
  BufferPool::Chunk chunk = pool->TryAcquire(Priority::kSave);
  std::byte* const data = chunk.data();

  BufferPool::Chunk moved = std::move(chunk);
  EXPECT_EQ(moved.data(), data);
  EXPECT_FALSE(pool->TryAcquire(Priority::kSave));
  BufferPool::Chunk assigned;
  assigned = std::move(moved);
  EXPECT_FALSE(pool->TryAcquire(Priority::kSave));
  assigned = {};

  EXPECT_EQ(pool->TryAcquire(Priority::kSave).data(), data);
}

TEST(BufferPool, AcquireSleepsUntilAChunkIsReturned) {
  const auto pool = MakePool(1_MiB, 1_MiB);
  BufferPool::Chunk held = pool->TryAcquire(Priority::kSave);
  std::byte* const data = held.data();

  auto waiter = std::async(std::launch::async, [&] { return pool->Acquire(Priority::kSave, Deadline::Infinite()); });
  held.Reset();

  const Result<BufferPool::Chunk> chunk = waiter.get();
  ASSERT_TRUE(chunk.ok());
  EXPECT_EQ(chunk->data(), data);
}

TEST(BufferPool, AcquireGivesUpAtItsDeadline) {
  const auto pool = MakePool(1_MiB, 1_MiB);
  const BufferPool::Chunk held = pool->TryAcquire(Priority::kSave);

  const auto deadline = Deadline::In(std::chrono::milliseconds(20));
  const Result<BufferPool::Chunk> chunk = pool->Acquire(Priority::kRestore, deadline);

  EXPECT_EQ(chunk.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(deadline.passed());
}

TEST(BufferPool, RestoresGoBeforeSaves) {
  const auto pool = MakePool(1_MiB, 1_MiB);
  BufferPool::Chunk held = pool->TryAcquire(Priority::kSave);
  std::atomic<bool> restored = false;
  auto save = std::async(std::launch::async, [&] {
    const auto chunk = pool->Acquire(Priority::kSave, Deadline::Infinite());
    return chunk.ok() && restored;
  });
  auto restore = std::async(std::launch::async, [&] {
    auto chunk = pool->Acquire(Priority::kRestore, Deadline::Infinite());
    EXPECT_FALSE(pool->TryAcquire(Priority::kSave));
    restored = true;
    return chunk.ok();
  });
  AwaitWaitingRestore(*pool);

  held.Reset();

  EXPECT_TRUE(restore.get());
  EXPECT_TRUE(save.get());
}

TEST(BufferPool, SavesGetNothingWhileARestoreWaits) {
  const auto pool = MakePool(2_MiB, 1_MiB);
  std::atomic<int> free_calls = 0;
  pool->SetOnFree([&] { ++free_calls; });
  std::vector<BufferPool::Chunk> held = TakeAll(*pool);
  EXPECT_FALSE(pool->TryAcquire(Priority::kSave));
  auto restore =
      std::async(std::launch::async, [&] { return pool->Acquire(Priority::kRestore, Deadline::Infinite()); });
  AwaitWaitingRestore(*pool);
  EXPECT_EQ(free_calls, 0);

  held.clear();

  Result<BufferPool::Chunk> chunk = restore.get();
  ASSERT_TRUE(chunk.ok());
  // The second chunk was left for the save, which was notified.
  EXPECT_EQ(free_calls, 1);
  EXPECT_TRUE(pool->TryAcquire(Priority::kSave));
}

TEST(BufferPool, OnFreeIsCalledOncePerFailedAcquire) {
  const auto pool = MakePool(2_MiB, 1_MiB);
  int calls = 0;
  // Would deadlock under the pool's lock.
  pool->SetOnFree([&] {
    ++calls;
    EXPECT_TRUE(pool->TryAcquire(Priority::kSave));
  });
  // The last attempt fails.
  std::vector<BufferPool::Chunk> held = TakeAll(*pool);

  held.pop_back();
  EXPECT_EQ(calls, 1);
  held.pop_back();
  EXPECT_EQ(calls, 1);

  held = TakeAll(*pool);
  held.clear();
  EXPECT_EQ(calls, 2);
}

TEST(BufferPool, RestoreThatTimesOutUnblocksSaves) {
  const auto pool = MakePool(1_MiB, 1_MiB);
  BufferPool::Chunk held = pool->TryAcquire(Priority::kSave);
  auto save = std::async(std::launch::async, [&] { return pool->Acquire(Priority::kSave, Deadline::Infinite()).ok(); });

  const auto restore = pool->Acquire(Priority::kRestore, Deadline::In(std::chrono::milliseconds(10)));
  EXPECT_FALSE(restore.ok());
  held.Reset();

  EXPECT_TRUE(save.get());
}

TEST(BufferPool, ForkedChildHasNoPool) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer maps its own memory where the pool was in a forked child";
#endif
  auto pool = MakePool(2_MiB, 1_MiB);
  pool->Touch();
  const BufferPool::Chunk chunk = pool->TryAcquire(Priority::kSave);

  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char resident = 0;
    const bool unmapped = ::mincore(chunk.data(), kBlock, &resident) != 0 && errno == ENOMEM;
    // The pool's destructor must not unmap what the child maps there.
    void* const own =
        ::mmap(chunk.data(), kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    pool.reset();
    const bool kept = own == chunk.data() && ::mincore(own, kBlock, &resident) == 0;
    ::_exit(unmapped && kept ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_EQ(status, 0);
  chunk.data()[0] = std::byte{1};
}

TEST(BufferPool, ManyThreadsNeverShareAChunk) {
  constexpr int kThreads = 6;
  constexpr int kRounds = 2000;
  const auto pool = MakePool(4_MiB, 1_MiB);
  std::atomic<int> on_loan = 0;
  std::atomic<int> wrong = 0;
  pool->SetOnFree([] {});

  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const auto priority = t == 0 ? Priority::kRestore : Priority::kSave;
        BufferPool::Chunk chunk = pool->TryAcquire(priority);
        if (!chunk) chunk = *pool->Acquire(priority, Deadline::Infinite());
        if (++on_loan > 4) ++wrong;
        // A plain write, so that ThreadSanitizer reports a chunk with two owners.
        std::memset(chunk.data(), t, 64);
        if (chunk.data()[63] != static_cast<std::byte>(t)) ++wrong;
        --on_loan;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0);
  EXPECT_LE(pool->peak_bytes(), 4_MiB);
  EXPECT_EQ(TakeAll(*pool).size(), 4U);
}

TEST(BufferPool, PinsItsChunksUntilDestruction) {
  WorkerPool workers("workers", 1);
  const auto device = HostDevice::Make({}, workers);
  auto pool = MakePool(2_MiB, 1_MiB);

  EXPECT_EQ(pool->PinWith(*device), Status::Ok());
  pool.reset();
}

}  // namespace
}  // namespace cairn
