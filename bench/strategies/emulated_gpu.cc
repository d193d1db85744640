#include "bench/strategies/emulated_gpu.h"

#include <algorithm>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/strided.h"

namespace cairn::bench {
namespace {

constexpr int kLanes = 2;  // Options::copy_streams.
constexpr std::uint64_t kPiece = 4U << 20;

// Counts copies that are under way.
class Outstanding {
 public:
  void Begin() {
    MutexLock lock(mutex_);
    ++count_;
  }
  void Done(const Status& status) {
    MutexLock lock(mutex_);
    if (status_.ok()) status_ = status;
    if (--count_ == 0) none_.NotifyAll();
  }
  Status Await() {
    MutexLock lock(mutex_);
    while (count_ > 0) none_.Wait(mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  CondVar none_;
  int count_ CAIRN_GUARDED_BY(mutex_) = 0;
  Status status_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

EmulatedGpu::EmulatedGpu(double bytes_per_second)
    : workers_("bench-gpu", 1),
      device_(HostDevice::Make(
          {.id = {DeviceKind::kCuda, 0}, .lanes = kLanes, .streams = true, .bytes_per_second = bytes_per_second},
          workers_)),
      stream_(device_->MakeStream()) {}

Status EmulatedGpu::CopyToHost(Bytes from, MutableBytes to) {
  // The layout serves both ways; a copy to the host only reads it.
  return Copy(CopyDirection::kToHost, {const_cast<std::byte*>(from.data()), from.size()}, to.data());
}

Status EmulatedGpu::CopyToDevice(Bytes from, MutableBytes to) {
  return Copy(CopyDirection::kToDevice, to, const_cast<std::byte*>(from.data()));
}

Status EmulatedGpu::Copy(CopyDirection direction, MutableBytes tensor, std::byte* memory) {
  const StridedLayout layout{.base = tensor.data(), .row_bytes = tensor.size(), .outer = {}, .bytes = tensor.size()};
  // One that is smaller than two pieces still uses both lanes.
  const std::uint64_t piece = std::min(kPiece, AlignUp(DivideUp(tensor.size(), kLanes), kBlock));
  Outstanding copies;
  Status asked;
  int lane = 0;
  for (std::uint64_t at = 0; at < tensor.size() && asked.ok(); at += piece) {
    CopyBatch batch{.direction = direction, .lane = lane, .pieces = {}};
    batch.pieces.push_back({.tensor = &layout,
                            .begin = at,
                            .end = std::min<std::uint64_t>(at + piece, tensor.size()),
                            .memory = memory + at});
    lane = (lane + 1) % kLanes;
    copies.Begin();
    asked = device_->Copy(std::move(batch), [&copies](const Status& status) { copies.Done(status); });
    if (!asked.ok()) copies.Done(asked);
  }
  return copies.Await();
}

}  // namespace cairn::bench
