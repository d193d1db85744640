// What calls set up on first use, because Open was not told of it: devices, and a pool as large as the state.
#include <algorithm>

#include "api/checkpointer_impl.h"
#include "api/resolve_options.h"
#include "base/human.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

using Clock = SaveTask::Clock;

std::string Since(Clock::time_point begun) {
  return HumanSeconds(std::chrono::duration<double>(Clock::now() - begun).count());
}

}  // namespace

Status Checkpointer::SetUp(DeviceId device) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->SetUpDevice(device, false).status();
}

Result<std::shared_ptr<Device>> Checkpointer::Impl::GetDevice(DeviceId id) { return SetUpDevice(id, true); }

Result<std::shared_ptr<Device>> Checkpointer::Impl::SetUpDevice(DeviceId id, bool late) {
  const Clock::time_point begun = Clock::now();
  Devices::Found found;
  {
    // Held until the engine has the device: nobody may find it set up before that.
    MutexLock lock(device_mutex);
    CAIRN_ASSIGN_OR_RETURN(found, devices->Get(id));
    if (!found.fresh || engine == nullptr) return found.device;
    engine->AddDevice(found.device, found.staging);
  }
  WarnWithoutGpuChecksums(*found.device);
  if (late) {
    Notify({.severity = Severity::kWarning,
            .message = fmt::format("{} was set up in {}, within the call that used it first: {} of host memory were "
                                   "pinned. cuda_devices does so at Open",
                                   ToString(id), Since(begun), HumanBytes(pool->total_bytes()))});
  }
  return found.device;
}

void Checkpointer::Impl::WarnWithoutGpuChecksums(const Device& device) const {
  if (!options.gpu_checksums || options.read_only || !device.has_streams()) return;
  const Status status = device.CheckSums({});
  if (status.ok()) return;
  Notify({.severity = Severity::kWarning,
          .status = status,
          .message = fmt::format("the host computes the checksums instead of {}: {}", ToString(device.id()),
                                 status.message())});
}

void Checkpointer::Impl::FitPool(std::uint64_t state_bytes, Severity severity) {
  if (!grows || options.read_only) return;
  MutexLock lock(fit_mutex);
  if (state_bytes <= fitted_bytes) return;
  fitted_bytes = state_bytes;
  const std::uint64_t before = pool->total_bytes();
  // Since Open the trainer may have taken much of the memory that was available then.
  const std::uint64_t most = before + ChooseHostMemory(group->size());
  const Clock::time_point begun = Clock::now();
  const Status status = pool->GrowTo(std::min(state_bytes, most), workers);
  if (!status.ok()) {
    Notify({.severity = Severity::kWarning,
            .status = status,
            .message = fmt::format("the pool stays at {}, for a state of {}: {}", HumanBytes(before),
                                   HumanBytes(state_bytes), status.message())});
  } else if (pool->pinned() && pool->total_bytes() > before) {
    Notify({.severity = severity,
            .message = fmt::format("pinned {} more of host memory in {}, for a state of {}: "
                                   "host_memory_bytes={} does so at Open",
                                   HumanBytes(pool->total_bytes() - before), Since(begun), HumanBytes(state_bytes),
                                   pool->total_bytes())});
  }
}

}  // namespace cairn
