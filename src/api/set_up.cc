// What calls set up on first use, because Open was not told of it: devices.
#include "api/checkpointer_impl.h"
#include "api/memory_root.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "engine/engine.h"

namespace cairn {
namespace {

using Clock = SaveTask::Clock;

std::string Since(Clock::time_point begun) { return HumanDuration(Clock::now() - begun); }

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
    if (memory != nullptr) memory->engine().AddDevice(found.device, nullptr);
  }
  WarnWithoutGpuChecksums(*found.device);
  if (late) {
    Notify({.severity = Severity::kWarning,
            .message = fmt::format("{} was set up in {}, within the call that used it first: {} of host memory were "
                                   "pinned. cuda_devices does so at Open",
                                   ToString(id), Since(begun), HumanBytes(pool->total_bytes())),
            .phase = "memory",
            .duration = Clock::now() - begun});
  }
  return found.device;
}

void Checkpointer::Impl::WarnWithoutGpuChecksums(const Device& device) const {
  if (!options.gpu_checksums || options.read_only || !device.has_streams()) return;
  const Status status = device.CheckSums({});
  if (status.ok()) return;
  Notify({.kind = EventKind::kFallBack,
          .severity = Severity::kWarning,
          .status = status,
          .message =
              fmt::format("the host computes the checksums instead of {}: {}", ToString(device.id()), status.message()),
          .phase = "open"});
}

}  // namespace cairn
