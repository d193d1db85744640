#include "device/buffer_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "base/worker_pool.h"
#include "cairn/options.h"
#include "support/forked.h"

namespace cairn {
namespace {

// Allocates all remaining memory and never frees it.
void ExhaustMemory() {
  std::size_t mapped = 0;
  std::ifstream("/proc/self/statm") >> mapped;
  const rlimit limit{.rlim_cur = mapped * kBlock, .rlim_max = RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
  void* last = nullptr;
  for (std::size_t size = 1_MiB; size >= 16; size = size > 1_KiB ? size / 2 : size - 8) {
    while (void* const taken = std::malloc(size)) {  // NOLINT(cppcoreguidelines-no-malloc): must not throw
      *static_cast<void**>(taken) = std::exchange(last, taken);
    }
  }
}

TEST(BufferPool, TouchesAllPagesWhenNoMemoryIsLeftForJobs) {
  Forked child([](const Say&) {
    WorkerPool workers("worker", 4);
    const auto pool = BufferPool::Make(36_MiB, 36_MiB, 1);
    if (!pool.ok()) return 4;
    const BufferPool::Chunk chunk = (*pool)->TryAcquire(BufferPool::Priority::kRestore);
    std::vector<unsigned char> resident(36_MiB / kBlock);
    ExhaustMemory();

    (*pool)->Touch(workers);

    if (::mincore(chunk.data(), 36_MiB, resident.data()) != 0) return 2;
    const bool whole = std::all_of(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; });
    ::_exit(whole ? 0 : 3);  // The child has no memory left for a normal exit.
  });

  const Forked::End end = child.Wait(Deadline::In(std::chrono::seconds(60)));
  EXPECT_EQ(end.how, Forked::How::kExited) << "signal " << end.value;
  EXPECT_EQ(end.value, 0);
}

}  // namespace
}  // namespace cairn
