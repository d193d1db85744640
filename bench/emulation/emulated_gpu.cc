#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "bench/emulation/gpu.h"
#include "bench/emulation/host_memory.h"
#include "device/host_device.h"

namespace cairn::bench {
namespace {

constexpr int kLanes = 2;  // Options::copy_streams.

class EmulatedGpu : public Gpu {
 public:
  explicit EmulatedGpu(double bytes_per_second)
      : workers_("bench-gpu", 1),
        host_(HostDevice::Make(
            {.id = {DeviceKind::kCuda, 0}, .lanes = kLanes, .streams = true, .bytes_per_second = bytes_per_second},
            workers_)),
        device_(host_),
        stream_(host_->MakeStream()) {}

  Result<MutableBytes> Allocate(std::uint64_t bytes) override {
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool,
                           MakeHostMemory(AlignUp(bytes, kBlock), AlignUp(bytes, kBlock)));
    MutexLock lock(mutex_);
    memory_.push_back(std::move(pool));
    chunks_.push_back(memory_.back()->TryAcquire(BufferPool::Priority::kSave));
    return MutableBytes(chunks_.back().data(), bytes);
  }
  [[nodiscard]] bool emulated() const override { return true; }
  Status Write(Bytes from, const StridedLayout& to) override {
    host_->Launch(stream_, [&] { ScatterBytes(to, 0, from.size(), from.data()); });
    return Synchronize();
  }
  [[nodiscard]] Stream stream() const override { return stream_; }
  Status Synchronize() override {
    host_->Synchronize(stream_);
    return {};
  }
  [[nodiscard]] const std::shared_ptr<Device>& device() const override { return device_; }

 private:
  WorkerPool workers_;
  const std::shared_ptr<HostDevice> host_;
  const std::shared_ptr<Device> device_;
  const Stream stream_;

  Mutex mutex_;
  std::vector<std::unique_ptr<BufferPool>> memory_ CAIRN_GUARDED_BY(mutex_);
  std::vector<BufferPool::Chunk> chunks_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Gpu> EmulateGpu(double bytes_per_second) { return std::make_unique<EmulatedGpu>(bytes_per_second); }

}  // namespace cairn::bench
