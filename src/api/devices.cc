#include "api/devices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "device/cuda_device.h"

namespace cairn {

Result<Devices::Found> Devices::Get(DeviceId id) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(devices_, [id](const auto& device) { return device->id() == id; });
  if (found != devices_.end()) {
    if (std::ranges::find(ready_, found->get()) != ready_.end()) return Found{.device = *found};
    return SetUp(*found);
  }
  if (id.kind != DeviceKind::kCuda) {
    return Error(StatusCode::kInvalidArgument, "there is no device {}", ToString(id));
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, MakeCuda(id));
  devices_.push_back(std::move(device));
  return SetUp(devices_.back());
}

std::vector<std::shared_ptr<Device>> Devices::Ready() {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Device>> all;
  for (const auto& device : devices_) {
    if (std::ranges::find(ready_, device.get()) != ready_.end()) all.push_back(device);
  }
  return all;
}

std::vector<std::shared_ptr<Device>> Devices::WithStreams() {
  std::vector<std::shared_ptr<Device>> all = Ready();
  std::erase_if(all, [](const auto& device) { return !device->has_streams(); });
  return all;
}

Result<std::unique_ptr<Device>> Devices::MakeCuda(DeviceId id) const {
  if (make_cuda_) return make_cuda_(id, workers_);
  // For every save in flight, and one being accepted: an event for each lane, and for up to 8 streams of the caller.
  // Beside those that are kept in memory there may be as many that go straight to the disk.
  const bool keeps = !options_.memory_root.empty() && !options_.read_only;
  const int lanes = options_.copy_streams + (options_.staging_bytes != 0 ? 1 : 0);
  const int events = ((keeps ? 2 : 1) * options_.max_in_flight + 1) * (lanes + 8);
  // As many chunks as the pool has, or, with no pool on their way, as a lane takes.
  const std::uint64_t chunks = options_.host_memory_bytes / options_.chunk_bytes;
  return MakeCudaDevice({.index = id.index,
                         .lanes = lanes,
                         .events = events,
                         .sum_bytes = options_.gpu_checksums && !options_.read_only ? options_.chunk_bytes : 0,
                         .sum_batches = keeps ? std::numeric_limits<std::uint64_t>::max() : chunks});
}

Result<Devices::Found> Devices::SetUp(const std::shared_ptr<Device>& device) {
  Found found{.device = device, .fresh = true};
  if (device->has_streams()) {
    pool_.PlaceNear(*device, workers_);
    pool_.Touch(workers_);  // Pinning would fault the pages in one by one, as small pages.
    CAIRN_RETURN_IF_ERROR(pool_.PinWith(*device));
    if (options_.staging_bytes != 0) {
      CAIRN_ASSIGN_OR_RETURN(found.staging, device->AllocateStaging(options_.staging_bytes));
    }
  }
  ready_.push_back(device.get());
  return found;
}

}  // namespace cairn
