#pragma once

#include <memory>
#include <vector>

#include "api/wiring.h"
#include "base/mutex.h"
#include "base/worker_pool.h"
#include "cairn/options.h"
#include "device/buffer_pool.h"
#include "device/device.h"
#include "engine/staging.h"

namespace cairn {

/// The devices of one Checkpointer. A CUDA device that Options did not name is set up on its first use. Safe from any
/// thread.
class Devices {
 public:
  /// `given` exist from the start. `pool` is pinned with every device that has streams; `workers` touch its pages
  /// first.
  Devices(const Options& options, BufferPool& pool, WorkerPool& workers, const Wiring& wiring,
          std::vector<std::shared_ptr<Device>> given)
      : options_(options), pool_(pool), workers_(workers), make_cuda_(wiring.cuda), devices_(std::move(given)) {}

  struct Found {
    std::shared_ptr<Device> device;
    std::byte* staging = nullptr;  ///< Options::staging_bytes of it, or null.
    bool fresh = false;            ///< Set up by this call.
  };
  /// Finds the device, and sets it up if that was not done yet: events, pinned pool, staging memory.
  Result<Found> Get(DeviceId id) CAIRN_EXCLUDES(mutex_);
  /// Those that are set up; and of these the ones with streams.
  [[nodiscard]] std::vector<std::shared_ptr<Device>> Ready() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<std::shared_ptr<Device>> WithStreams() CAIRN_EXCLUDES(mutex_);

 private:
  Result<std::unique_ptr<Device>> MakeCuda(DeviceId id) const;
  Result<Found> SetUp(const std::shared_ptr<Device>& device) CAIRN_REQUIRES(mutex_);

  const Options& options_;
  BufferPool& pool_;
  WorkerPool& workers_;
  const decltype(Wiring::cuda) make_cuda_;
  Mutex mutex_;
  std::vector<std::shared_ptr<Device>> devices_ CAIRN_GUARDED_BY(mutex_);
  std::vector<const Device*> ready_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
