#include "tune/gpu_copies.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "device/cuda_device.h"
#include "tune/copies_under_way.h"
#include "tune/measure.h"

namespace cairn {
namespace {

using Clock = Deadline::Clock;

constexpr std::uint64_t kChunksAtOnce = 128U << 20;

double SecondsOf(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

/// Touched: pinning would fault the pages in one by one.
Result<std::unique_ptr<BufferPool>> MakePool(std::uint64_t bytes, std::uint64_t chunk_bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool, BufferPool::Make(bytes, chunk_bytes, 1));
  WorkerPool workers("cairn-touch", static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U)));
  CAIRN_RETURN_IF_ERROR(workers.status());
  pool->Touch(workers);
  return pool;
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
  pin_seconds_per_byte_ = SecondsOf(Clock::now() - began) / static_cast<double>(bytes);
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
  const StridedLayout from{.base = memory_.data(), .row_bytes = half, .outer = {}, .bytes = half};
  const auto began = Clock::now();
  std::uint64_t copied = 0;
  while (Clock::now() - began < time) {
    std::vector<CopyBatch> batches(
        kAtOnce, {.direction = CopyDirection::kToStaging,
                  .pieces = {{.tensor = &from, .begin = 0, .end = half, .memory = memory_.data() + half}}});
    CopiesUnderWay copies(*device_);
    for (CopyBatch& batch : batches) copies.Add(std::move(batch));
    CAIRN_RETURN_IF_ERROR(copies.Wait());
    copied += kAtOnce * half;
  }
  return static_cast<double>(copied) / SecondsOf(Clock::now() - began);
}

}  // namespace cairn
