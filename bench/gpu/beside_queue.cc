// How much a stream takes that stands still, and how long another thread's launches take meanwhile.
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "base/status_macros.h"
#include "bench/gpu/beside.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A call that takes as long waits for a place in a stream's queue.
constexpr std::chrono::milliseconds kBlocked{100};
constexpr std::size_t kCopiesOfABatch = 128;
constexpr std::uint64_t kSmall = 4096;
constexpr std::uint64_t kElement = 4;
constexpr int kLaunchesAtOnce = 32;

double Seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

}  // namespace

Result<std::size_t> Beside::Enqueue(std::string_view kind) {
  if (kind == "copies") {
    CAIRN_RETURN_IF_ERROR(Check(driver_.memcpy_async(Host(kSmall), from_, kSmall, copies_), "copying"));
    return 1U;
  }
  if (kind == "events") {
    CAIRN_RETURN_IF_ERROR(Check(driver_.event_record(events_[1], copies_), "recording"));
    return 1U;
  }
  if (kind == "copies in batches") {
    std::array<CUdeviceptr, kCopiesOfABatch> to;
    std::array<CUdeviceptr, kCopiesOfABatch> from;
    std::array<std::size_t, kCopiesOfABatch> sizes;
    for (std::size_t i = 0; i < kCopiesOfABatch; ++i) {
      to[i] = staging_ + i * kElement;
      from[i] = from_ + 2 * i * kElement;  // With gaps, so that no two are one copy.
      sizes[i] = kElement;
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t of_all = 0;
    std::size_t failed = 0;
    CAIRN_RETURN_IF_ERROR(Check(driver_.memcpy_batch_async(to.data(), from.data(), sizes.data(), kCopiesOfABatch,
                                                           &attributes, &of_all, 1, &failed, copies_),
                                "copying a batch"));
    return kCopiesOfABatch;
  }
  // A wait and a host function, as once behind each chunk.
  CAIRN_RETURN_IF_ERROR(Check(driver_.stream_wait_event(second_, events_[0], CU_EVENT_WAIT_DEFAULT), "waiting"));
  CAIRN_RETURN_IF_ERROR(Check(launch_host_(
                                  second_, [](void*) {}, nullptr),
                              "launching a host function"));
  return 2U;
}

Result<double> Beside::LaunchUntil(const std::atomic<bool>& stop) {
  const CudaContext::Scope scope(context_);
  double longest = 0;
  for (int launched = 1; !stop; ++launched) {
    const auto began = Clock::now();
    CAIRN_RETURN_IF_ERROR(Check(memset_(from_, 1, kElement, training_), "launching"));
    longest = std::max(longest, Seconds(Clock::now() - began));
    if (launched % kLaunchesAtOnce == 0) {
      CAIRN_RETURN_IF_ERROR(Check(driver_.stream_synchronize(training_), "waiting for launches"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return longest;
}

Result<Beside::Filled> Beside::Fill(std::string_view kind, std::size_t count) {
  const CudaContext::Scope scope(context_);
  auto* const flag = reinterpret_cast<std::uint32_t*>(host_);
  CAIRN_RETURN_IF_ERROR(
      Check(wait_value_(copies_, Host(0), ++released_, CU_STREAM_WAIT_VALUE_GEQ), "holding a stream"));
  CAIRN_RETURN_IF_ERROR(Check(driver_.event_record(events_[0], copies_), "recording"));
  std::atomic<std::size_t> taken = 0;
  std::atomic<bool> stop = false;
  Status filled;
  Result<double> longest = 0.0;
  std::thread launching([&] { longest = LaunchUntil(stop); });
  std::thread filling([&] {
    const CudaContext::Scope filling_scope(context_);
    while (taken < count) {
      const Result<std::size_t> more = Enqueue(kind);
      if (!more.ok()) {
        filled = more.status();
        taken = count;
        return;
      }
      taken += *more;
    }
  });
  auto changed = Clock::now();
  for (std::size_t last = 0; taken < count && Clock::now() - changed < kBlocked;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (taken != last) changed = Clock::now();
    last = taken;
  }
  const std::size_t before_release = taken;
  if (before_release >= count) std::this_thread::sleep_for(kBlocked);  // For launches beside a queue that stays full.
  __atomic_store_n(flag, released_, __ATOMIC_RELEASE);
  filling.join();
  stop = true;
  launching.join();
  CAIRN_RETURN_IF_ERROR(filled);
  CAIRN_RETURN_IF_ERROR(longest.status());
  CAIRN_RETURN_IF_ERROR(EndCopies());
  return Filled{.taken = before_release, .longest_launch = *longest};
}

}  // namespace cairn::bench
