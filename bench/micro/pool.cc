// The pool: taking and returning a chunk of 4 MiB, and creating and touching the pool at Open.
//
//   build/release/bin/bench_micro --benchmark_filter=pool
//
// Peers: malloc and free of the same size, without touching pages; mmap, a byte written in each page, and munmap, the
// cost of memory that is not kept; for the whole pool, the minimum: mmap, MADV_HUGEPAGE, touch.
#include <sys/mman.h>

#include <cstdlib>
#include <memory>

#include "bench/micro/pair.h"
#include "device/buffer_pool.h"

namespace cairn::bench {
namespace {

constexpr std::size_t kChunk = 4U << 20;

void TouchPages(void* memory, std::size_t bytes) {
  auto* pages = static_cast<volatile std::byte*>(memory);
  for (std::size_t i = 0; i < bytes; i += kBlock) pages[i] = std::byte{1};
}

void* Map(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Expect(memory != MAP_FAILED, "pool: mmap failed");
  return memory;
}

std::shared_ptr<BufferPool> MakePool(std::size_t bytes) {
  Result<std::unique_ptr<BufferPool>> pool = BufferPool::Make(bytes, kChunk, 1);
  Check(pool.status());
  (*pool)->Touch();
  return *std::move(pool);
}

Side TakeFrom(const std::shared_ptr<BufferPool>& pool, bool touch, int times) {
  return Timed(
      [pool, touch] {
        const BufferPool::Chunk chunk = pool->TryAcquire(BufferPool::Priority::kSave);
        benchmark::DoNotOptimize(chunk.data());
        if (touch) TouchPages(chunk.data(), kChunk);
      },
      times);
}

Pair TakeBesideMalloc() {
  constexpr int kTimes = 1000;
  const auto allocate = [] {
    void* volatile memory = std::malloc(kChunk);  // Volatile: else the compiler leaves both out.
    std::free(memory);
  };
  return {.cairn = TakeFrom(MakePool(8 * kChunk), /*touch=*/false, kTimes), .peer = Timed(allocate, kTimes)};
}

Pair TakeBesideMmap() {
  return {.cairn = TakeFrom(MakePool(8 * kChunk), /*touch=*/true, 1), .peer = Timed([] {
                                                                        void* memory = Map(kChunk);
                                                                        TouchPages(memory, kChunk);
                                                                        ::munmap(memory, kChunk);
                                                                      })};
}

Pair OpenBesideMap(std::size_t bytes) {
  return {.cairn = Timed([bytes] { MakePool(bytes); }), .peer = Timed([bytes] {
                                                          void* memory = Map(bytes);
                                                          ::madvise(memory, bytes, MADV_HUGEPAGE);
                                                          TouchPages(memory, bytes);
                                                          ::munmap(memory, bytes);
                                                        })};
}

}  // namespace

void AddPool(const Settings& settings) {
  AddPair(settings, "pool/chunk_of_malloc", "malloc and free, untouched", 2, 100, TakeBesideMalloc);
  AddPair(settings, "pool/chunk_touched_of_mmap", "mmap, touch, munmap", 0.1, 100, TakeBesideMmap);
  const std::size_t bytes = settings.Sized(256U << 20, 8U << 20);
  AddPair(settings, "pool/open_of_mmap", "mmap, MADV_HUGEPAGE, touch, munmap", 1.1, 5,
          [bytes] { return OpenBesideMap(bytes); });
}

}  // namespace cairn::bench
