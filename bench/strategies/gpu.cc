#include "bench/strategies/emulated_gpu.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/strided.h"

namespace cairn::bench {
namespace {

constexpr int kLanes = 2;  // Options::copy_streams.
constexpr std::uint64_t kBatch = 4U << 20;

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

Status EmulatedGpu::CopyToHost(const DeviceState& from, std::uint64_t begin, MutableBytes to) {
  return Copy(CopyDirection::kToHost, from, begin, to);
}

Status EmulatedGpu::CopyToDevice(Bytes from, const DeviceState& to) {
  // A copy to the device only reads the host's memory.
  return Copy(CopyDirection::kToDevice, to, 0, {const_cast<std::byte*>(from.data()), from.size()});
}

Status EmulatedGpu::Copy(CopyDirection direction, const DeviceState& state, std::uint64_t begin, MutableBytes memory) {
  const std::vector<DeviceState::Tensor>& tensors = state.tensors();
  auto tensor = std::upper_bound(tensors.begin(), tensors.end(), begin,
                                 [](std::uint64_t at, const DeviceState::Tensor& t) { return at < t.end(); });
  // What is smaller than two batches still uses both lanes.
  const std::uint64_t most = std::min(kBatch, AlignUp(DivideUp(memory.size(), kLanes), kBlock));
  Outstanding copies;
  Status asked;
  int lane = 0;
  for (std::uint64_t done = 0; done < memory.size() && asked.ok();) {
    CopyBatch batch{.direction = direction, .lane = lane, .pieces = {}};
    const std::uint64_t until = std::min<std::uint64_t>(done + most, memory.size());
    while (done < until) {
      const std::uint64_t at = begin + done - tensor->begin;
      const std::uint64_t n = std::min(until - done, tensor->layout.bytes - at);
      batch.pieces.push_back({.tensor = &tensor->layout, .begin = at, .end = at + n, .memory = memory.data() + done});
      done += n;
      if (at + n == tensor->layout.bytes) ++tensor;
    }
    lane = (lane + 1) % kLanes;
    copies.Begin();
    asked = device_->Copy(std::move(batch), [&copies](const Status& status) { copies.Done(status); });
    if (!asked.ok()) copies.Done(asked);
  }
  return copies.Await();
}

}  // namespace cairn::bench
