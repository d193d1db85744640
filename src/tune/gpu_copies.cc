#include "tune/gpu_copies.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "device/cuda_device.h"
#include "tune/measure.h"

namespace cairn {
namespace {

using Clock = Deadline::Clock;

constexpr std::uint64_t kChunksAtOnce = 128U << 20;
constexpr std::uint64_t kWord = 0x9e3779b97f4a7c15;

double Seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

StridedLayout LayoutOf(MutableBytes memory) {
  return {.base = memory.data(), .row_bytes = memory.size(), .outer = {}, .bytes = memory.size()};
}

/// Touched: pinning would fault the pages in one by one.
Result<std::unique_ptr<BufferPool>> MakePool(std::uint64_t bytes, std::uint64_t chunk_bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool, BufferPool::Make(bytes, chunk_bytes, 1));
  WorkerPool workers("cairn-touch", static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U)));
  CAIRN_RETURN_IF_ERROR(workers.status());
  pool->Touch(workers);
  return pool;
}

/// Copies that are under way. Shared with the device, which may outlive a wait that a sticky error has ended.
struct UnderWay {
  void Done(const Status& ended) CAIRN_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    if (status.ok()) status = ended;
    if (--count == 0) changed.NotifyAll();
  }
  Mutex mutex;
  CondVar changed;
  std::size_t count CAIRN_GUARDED_BY(mutex) = 0;
  Status status CAIRN_GUARDED_BY(mutex);
};

/// The first error, or a sticky one, after which nobody hears of the others.
Status CopyAndWait(Device& device, std::vector<CopyBatch> batches) {
  const auto under_way = std::make_shared<UnderWay>();
  {
    const MutexLock lock(under_way->mutex);
    under_way->count = batches.size();
  }
  for (CopyBatch& batch : batches) {
    const auto done = [under_way](const Status& status) { under_way->Done(status); };
    if (const Status refused = device.Copy(std::move(batch), done); !refused.ok()) under_way->Done(refused);
  }
  MutexLock lock(under_way->mutex);
  while (under_way->count > 0) {
    if (under_way->changed.WaitUntil(under_way->mutex, Deadline::In(std::chrono::seconds(1)))) continue;
    CAIRN_RETURN_IF_ERROR(device.Health());
  }
  return under_way->status;
}

}  // namespace

Result<std::unique_ptr<GpuLink>> GpuLink::Open(int index, int lanes, std::uint64_t bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, MakeCudaDevice({.index = index, .lanes = lanes}));
  std::unique_ptr<GpuLink> link(new GpuLink(std::move(device)));
  CAIRN_RETURN_IF_ERROR(link->SetUp(bytes));
  return link;
}

Status GpuLink::SetUp(std::uint64_t bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::byte* const memory, device_->AllocateStaging(bytes));
  memory_ = {memory, bytes};
  CAIRN_ASSIGN_OR_RETURN(pool_, MakePool(bytes, bytes));
  const auto began = Clock::now();
  CAIRN_RETURN_IF_ERROR(pool_->PinWith(*device_));
  pin_seconds_per_byte_ = Seconds(Clock::now() - began) / static_cast<double>(bytes);
  return Status::Ok();
}

Result<LinkRate> GpuLink::Measure(BufferPool& pool, std::chrono::nanoseconds time) {
  const auto rate = [&](CopyDirection direction) {
    return ProbeCopy(*device_, pool, memory_, time, Clock::now, direction);
  };
  CAIRN_ASSIGN_OR_RETURN(const CopyRate to_host, rate(CopyDirection::kToHost));
  CAIRN_ASSIGN_OR_RETURN(const CopyRate to_device, rate(CopyDirection::kToDevice));
  return LinkRate{.to_host = to_host.bytes_per_second, .to_device = to_device.bytes_per_second};
}

Result<LinkRate> GpuLink::Single(std::chrono::nanoseconds time) { return Measure(*pool_, time); }

Result<LinkRate> GpuLink::Chunks(std::uint64_t chunk_bytes, std::chrono::nanoseconds time) {
  const std::uint64_t at_once = std::max(chunk_bytes, std::min<std::uint64_t>(kChunksAtOnce, memory_.size()));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<BufferPool> pool, MakePool(at_once, chunk_bytes));
  CAIRN_RETURN_IF_ERROR(pool->PinWith(*device_));
  return Measure(*pool, time);
}

Result<double> GpuLink::Staging(std::chrono::nanoseconds time) {
  constexpr std::size_t kAtOnce = 16;
  const std::uint64_t half = memory_.size() / 2;
  const StridedLayout from = LayoutOf(memory_.first(half));
  const auto began = Clock::now();
  std::uint64_t copied = 0;
  while (Clock::now() - began < time) {
    std::vector<CopyBatch> batches(
        kAtOnce, {.direction = CopyDirection::kToStaging,
                  .pieces = {{.tensor = &from, .begin = 0, .end = half, .memory = memory_.data() + half}}});
    CAIRN_RETURN_IF_ERROR(CopyAndWait(*device_, std::move(batches)));
    copied += kAtOnce * half;
  }
  return static_cast<double>(copied) / Seconds(Clock::now() - began);
}

Result<bool> GpuLink::Intact() {
  const BufferPool::Chunk chunk = pool_->TryAcquire(BufferPool::Priority::kSave);
  const StridedLayout on_gpu = LayoutOf(memory_);
  const std::uint64_t words = memory_.size() / sizeof(std::uint64_t);
  const auto word = [](std::uint64_t i) { return (i + 1) * kWord; };
  const auto copy = [&](CopyDirection direction) {
    const CopyPiece whole{.tensor = &on_gpu, .begin = 0, .end = memory_.size(), .memory = chunk.data()};
    return CopyAndWait(*device_, {{.direction = direction, .pieces = {whole}}});
  };
  for (std::uint64_t i = 0; i < words; ++i) {
    const std::uint64_t value = word(i);
    std::memcpy(chunk.data() + i * sizeof(value), &value, sizeof(value));
  }
  CAIRN_RETURN_IF_ERROR(copy(CopyDirection::kToDevice));
  std::memset(chunk.data(), 0, memory_.size());
  CAIRN_RETURN_IF_ERROR(copy(CopyDirection::kToHost));
  for (std::uint64_t i = 0; i < words; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, chunk.data() + i * sizeof(value), sizeof(value));
    if (value != word(i)) return false;
  }
  return true;
}

}  // namespace cairn
