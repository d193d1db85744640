// A pool that grows up to its cap, and the NUMA node of its memory.
#include <gmock/gmock.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "cairn/options.h"
#include "device/buffer_pool.h"
#include "device/host_device.h"
#include "device/numa.h"
#include "testing/forwarding_device.h"
#include "testing/temp_dir.h"

namespace cairn {
namespace {

using Priority = BufferPool::Priority;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::unique_ptr<BufferPool> MakePool(std::uint64_t bytes, std::uint64_t cap) {
  auto pool = BufferPool::MakeGrowing(bytes, cap, 1_MiB, 2);
  EXPECT_EQ(pool.status(), Status::Ok());
  return pool.ok() ? *std::move(pool) : nullptr;
}

std::vector<BufferPool::Chunk> TakeAll(BufferPool& pool) {
  std::vector<BufferPool::Chunk> chunks;
  while (BufferPool::Chunk chunk = pool.TryAcquire(Priority::kRestore)) chunks.push_back(std::move(chunk));
  return chunks;
}

/// Whether the kernel may read a byte there for this process.
bool Readable(const std::byte* address) {
  int ends[2] = {};
  EXPECT_EQ(::pipe(ends), 0);
  const bool readable = ::write(ends[1], address, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return readable;
}

/// The node that the kernel prefers for this address; none if it has no preference.
std::optional<int> PreferredNode(const void* address) {
  constexpr int kPolicyOfAddress = 2;  // MPOL_F_ADDR
  int mode = 0;
  unsigned long nodes[16] = {};
  if (::syscall(SYS_get_mempolicy, &mode, nodes, 1024UL, address, kPolicyOfAddress) != 0) return std::nullopt;
  if (mode != MPOL_PREFERRED) return std::nullopt;
  for (int node = 0; node < 64; ++node) {
    if ((nodes[0] >> node & 1UL) != 0) return node;
  }
  return std::nullopt;
}

/// Records what is pinned.
class PinningDevice final : public ForwardingDevice {
 public:
  explicit PinningDevice(WorkerPool& workers, std::optional<NumaNode> node = {})
      : ForwardingDevice(HostDevice::Make({}, workers)), node_(node) {}

  [[nodiscard]] std::optional<NumaNode> numa_node() const override { return node_; }
  Status PinMemory(MutableBytes memory) override {
    if (on_pin) on_pin();
    if (refuses) return Error(StatusCode::kResourceExhausted, "no more memory may be pinned");
    pinned.push_back(memory.size());
    at.push_back(memory.data());
    return Status::Ok();
  }
  void UnpinMemory(MutableBytes memory) override { unpinned.push_back(memory.size()); }

  std::function<void()> on_pin;
  bool refuses = false;
  std::vector<std::size_t> pinned;
  std::vector<std::size_t> unpinned;
  std::vector<std::byte*> at;

 private:
  const std::optional<NumaNode> node_;
};

TEST(GrowingPool, GrowsToWhatIsAskedAndNeverBeyondItsCap) {
  WorkerPool workers("workers", 2);
  const auto pool = MakePool(3_MiB, 8_MiB + 1);
  EXPECT_EQ(pool->cap_bytes(), 8_MiB);
  EXPECT_EQ(TakeAll(*pool).size(), 3U);

  EXPECT_EQ(pool->GrowTo(5_MiB - 1, workers), Status::Ok());
  EXPECT_EQ(pool->total_bytes(), 5_MiB);
  EXPECT_EQ(pool->GrowTo(4_MiB, workers), Status::Ok());
  EXPECT_EQ(pool->total_bytes(), 5_MiB);
  EXPECT_EQ(pool->GrowTo(1ULL << 60, workers), Status::Ok());

  const std::vector<BufferPool::Chunk> chunks = TakeAll(*pool);
  EXPECT_EQ(chunks.size(), 8U);
  std::byte* last = nullptr;
  for (const BufferPool::Chunk& chunk : chunks) {
    std::memset(chunk.data(), 0xAB, 1_MiB);
    last = std::max(last, chunk.data());
  }
  EXPECT_EQ(pool->peak_bytes(), 8_MiB);
  EXPECT_FALSE(Readable(last + 1_MiB)) << "a guard page follows";
}

TEST(GrowingPool, ReservesAddressesOnly) {
  constexpr std::uint64_t kCap = 1ULL << 38;  // Beyond that a sanitizer's own maps may be in the way.
  const auto pool = MakePool(2_MiB, kCap);
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(pool->cap_bytes(), kCap);
  const BufferPool::Chunk chunk = pool->TryAcquire(Priority::kSave);
  EXPECT_TRUE(Readable(chunk.data() + 2_MiB - 1));
  EXPECT_FALSE(Readable(chunk.data() + 2_MiB)) << "no memory without GrowTo";
}

TEST(GrowingPool, BeginsWithTheLeastThatWorks) {
  EXPECT_EQ(MakePool(0, 8_MiB)->total_bytes(), 2_MiB);
  EXPECT_EQ(MakePool(100_MiB, 8_MiB)->total_bytes(), 8_MiB);
}

TEST(GrowingPool, WaitersGetTheNewChunks) {
  WorkerPool workers("workers", 1);
  const auto pool = MakePool(2_MiB, 4_MiB);
  const std::vector<BufferPool::Chunk> taken = TakeAll(*pool);
  std::promise<void> freed;
  pool->SetOnFree([&] { freed.set_value(); });
  EXPECT_FALSE(pool->TryAcquire(Priority::kSave));
  std::future<bool> restore =
      std::async(std::launch::async, [&] { return pool->Acquire(Priority::kRestore, Deadline::Infinite()).ok(); });
  while (pool->restores_waiting() == 0) std::this_thread::yield();

  EXPECT_EQ(pool->GrowTo(4_MiB, workers), Status::Ok());

  EXPECT_TRUE(restore.get());
  freed.get_future().wait();  // The engine hears of it.
  pool->SetOnFree({});
}

TEST(GrowingPool, PinsEachPartWithEachDevice) {
  WorkerPool workers("workers", 1);
  PinningDevice first(workers);
  PinningDevice second(workers);
  auto pool = MakePool(2_MiB, 8_MiB);
  EXPECT_FALSE(pool->pinned());
  EXPECT_EQ(pool->PinWith(first), Status::Ok());
  EXPECT_TRUE(pool->pinned());

  EXPECT_EQ(pool->GrowTo(5_MiB, workers), Status::Ok());
  EXPECT_EQ(pool->PinWith(second), Status::Ok());

  EXPECT_THAT(first.pinned, ElementsAre(2_MiB, 3_MiB));
  EXPECT_THAT(second.pinned, ElementsAre(2_MiB, 3_MiB));
  EXPECT_EQ(first.at[1], first.at[0] + 2_MiB);
  EXPECT_FALSE(pool->TouchNext()) << "what is pinned was touched";
  pool.reset();
  EXPECT_THAT(first.unpinned, ElementsAre(2_MiB, 3_MiB));
  EXPECT_THAT(second.unpinned, ElementsAre(2_MiB, 3_MiB));
}

TEST(GrowingPool, PinsAPoolInParts) {
  WorkerPool workers("workers", 1);
  PinningDevice device(workers);
  const auto small_chunks = MakePool(600_MiB, 600_MiB);
  EXPECT_EQ(small_chunks->PinWith(device), Status::Ok());
  EXPECT_THAT(device.pinned, ElementsAre(256_MiB, 256_MiB, 88_MiB)) << "the trainer's launches get in between";

  PinningDevice other(workers);
  const auto large_chunks = BufferPool::MakeGrowing(0, 1024_MiB, 512_MiB, 2);
  EXPECT_EQ((*large_chunks)->PinWith(other), Status::Ok());
  EXPECT_THAT(other.pinned, ElementsAre(512_MiB, 512_MiB)) << "a chunk is in one part";
}

TEST(GrowingPool, LendsEachPartAsSoonAsItIsPinned) {
  WorkerPool workers("workers", 1);
  PinningDevice device(workers);
  const auto pool = MakePool(2_MiB, 300_MiB);
  EXPECT_EQ(pool->PinWith(device), Status::Ok());
  std::vector<std::uint64_t> sizes;
  device.on_pin = [&] {
    sizes.push_back(pool->total_bytes());
    device.refuses = sizes.size() == 2;
  };

  EXPECT_EQ(pool->GrowTo(261_MiB, workers).code(), StatusCode::kResourceExhausted);

  EXPECT_THAT(sizes, ElementsAre(2_MiB, 258_MiB));
  EXPECT_EQ(TakeAll(*pool).size(), 258U) << "what could be pinned stays";
}

TEST(GrowingPool, AddsNothingOnceItIsStopped) {
  WorkerPool workers("workers", 1);
  const auto pool = MakePool(2_MiB, 8_MiB);

  pool->StopGrowing();

  EXPECT_EQ(pool->GrowTo(8_MiB, workers), Status::Ok());
  EXPECT_EQ(pool->total_bytes(), 2_MiB);
}

TEST(GrowingPool, StaysAsItWasIfADeviceDoesNotPin) {
  WorkerPool workers("workers", 1);
  PinningDevice first(workers);
  PinningDevice second(workers);
  const auto pool = MakePool(2_MiB, 8_MiB);
  EXPECT_EQ(pool->PinWith(first), Status::Ok());
  EXPECT_EQ(pool->PinWith(second), Status::Ok());
  second.refuses = true;

  EXPECT_EQ(pool->GrowTo(6_MiB, workers).code(), StatusCode::kResourceExhausted);

  EXPECT_EQ(pool->total_bytes(), 2_MiB);
  EXPECT_THAT(first.unpinned, ElementsAre(4_MiB));
  EXPECT_EQ(TakeAll(*pool).size(), 2U);
  second.refuses = false;
  EXPECT_EQ(pool->GrowTo(6_MiB, workers), Status::Ok());
  EXPECT_EQ(TakeAll(*pool).size(), 6U);
}

TEST(GrowingPool, TouchesWhatWasAdded) {
  WorkerPool workers("workers", 1);
  const auto pool = MakePool(2_MiB, 8_MiB);
  while (pool->TouchNext()) {
  }
  EXPECT_FALSE(pool->TouchNext());

  EXPECT_EQ(pool->GrowTo(8_MiB, workers), Status::Ok());
  while (pool->TouchNext()) {
  }

  for (const BufferPool::Chunk& chunk : TakeAll(*pool)) {
    unsigned char resident[1_MiB / kBlock] = {};
    ASSERT_EQ(::mincore(chunk.data(), 1_MiB, resident), 0);
    for (const unsigned char page : resident) EXPECT_EQ(page & 1, 1);
  }
}

/// The CPUs that the pool's only thread may use.
std::vector<int> CpusOf(WorkerPool& workers) {
  std::promise<std::vector<int>> promise;
  workers.Post([&] {
    cpu_set_t set;
    std::vector<int> cpus;
    EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    promise.set_value(cpus);
  });
  return promise.get_future().get();
}

TEST(Numa, ThePoolAndItsWorkersAreOnTheNodeOfTheFirstGpuThatHasOne) {
  WorkerPool workers("workers", 1);
  const std::vector<int> all = CpusOf(workers);
  PinningDevice without(workers);
  PinningDevice on_0(workers, NumaNode{.number = 0, .cpus = {all.back(), CPU_SETSIZE - 1}});
  PinningDevice nowhere(workers, NumaNode{.number = 1023, .cpus = {all.front()}});
  const auto pool = MakePool(2_MiB, 4_MiB);
  const BufferPool::Chunk chunk = pool->TryAcquire(Priority::kSave);
  if (!PreferNode({chunk.data(), 1_MiB}, 0)) GTEST_SKIP() << "this kernel or sandbox has no mbind";

  const auto other = MakePool(2_MiB, 4_MiB);
  const BufferPool::Chunk theirs = other->TryAcquire(Priority::kSave);
  other->PlaceNear(without, workers);
  EXPECT_EQ(PreferredNode(theirs.data()), std::nullopt);
  other->PlaceNear(nowhere, workers);
  EXPECT_EQ(PreferredNode(theirs.data()), std::nullopt) << "a node that is not there changes nothing";
  EXPECT_EQ(CpusOf(workers), all);
  other->PlaceNear(on_0, workers);
  EXPECT_EQ(PreferredNode(theirs.data()), 0);
  EXPECT_THAT(CpusOf(workers), ElementsAre(all.back())) << "of the node's, what this process may use";
  EXPECT_EQ(other->PinWith(on_0), Status::Ok());
  EXPECT_EQ(other->GrowTo(4_MiB, workers), Status::Ok());
  EXPECT_EQ(PreferredNode(on_0.at.back()), 0) << "also what is added later";
}

TEST(Numa, WorkersStayWhereTheyAreIfTheNodeHasTooFewCpusForThem) {
  WorkerPool one("workers", 1);
  const std::vector<int> all = CpusOf(one);
  one.KeepTo({});
  one.KeepTo({CPU_SETSIZE - 1});
  EXPECT_EQ(CpusOf(one), all);
  WorkerPool two("workers", 2);
  two.KeepTo({all.front()});
  EXPECT_EQ(CpusOf(two), all);
}

TEST(Numa, NodesThatDoNotExistAreRefused) {
  const auto pool = MakePool(2_MiB, 2_MiB);
  const BufferPool::Chunk chunk = pool->TryAcquire(Priority::kSave);
  EXPECT_FALSE(PreferNode({chunk.data(), 1_MiB}, 1000));
  EXPECT_FALSE(PreferNode({chunk.data(), 1_MiB}, 1024));
  EXPECT_FALSE(PreferNode({chunk.data(), 1_MiB}, -1));
}

TEST(Numa, TheNodeOfAGpuIsWhatTheKernelSays) {
  const TempDir root;
  const auto write = [&](const std::string& device, const std::string& text) {
    const std::string folder = root / ("sys/bus/pci/devices/" + device);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/numa_node") << text;
  };
  write("0000:3b:00.0", "1\n");
  write("0000:3c:00.0", "-1\n");
  write("0000:3d:00.0", "one\n");
  const auto node_of = [&](const std::string& device) { return NumaNodeOfPci(device, root.path()); };

  ASSERT_TRUE(node_of("0000:3B:00.0"));
  EXPECT_EQ(node_of("0000:3B:00.0")->number, 1);
  EXPECT_THAT(node_of("0000:3B:00.0")->cpus, IsEmpty());
  EXPECT_FALSE(node_of("0000:3c:00.0"));
  EXPECT_FALSE(node_of("0000:3d:00.0"));
  EXPECT_FALSE(node_of("0000:3e:00.0"));

  std::filesystem::create_directories(root / "sys/devices/system/node/node1");
  std::ofstream(root / "sys/devices/system/node/node1/cpulist") << "2-4,9,12-13\n";
  EXPECT_THAT(node_of("0000:3B:00.0")->cpus, ElementsAre(2, 3, 4, 9, 12, 13));
}

}  // namespace
}  // namespace cairn
