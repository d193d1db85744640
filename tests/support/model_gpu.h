#pragma once

#include <memory>

#include "api/wiring.h"
#include "device/host_device.h"

namespace cairn {

inline constexpr DeviceId kModelGpu{DeviceKind::kCuda, 0};

/// Host memory behind streams that stands in for GPU 0: shows the engine what a GPU would, on any machine.
class ModelGpu {
 public:
  explicit ModelGpu(double bytes_per_second = 0, int lanes = 2) : bytes_per_second_(bytes_per_second), lanes_(lanes) {}

  /// Wiring for one Checkpointer, which owns the device; valid while this object lives.
  [[nodiscard]] Wiring Wire() {
    Wiring wiring;
    wiring.devices = [this](WorkerPool& workers) -> Result<std::vector<std::shared_ptr<Device>>> {
      device_ = HostDevice::Make(
          {.id = kModelGpu, .lanes = lanes_, .streams = true, .bytes_per_second = bytes_per_second_}, workers);
      return std::vector<std::shared_ptr<Device>>{device_};
    };
    return wiring;
  }
  [[nodiscard]] HostDevice& device() { return *device_; }

 private:
  const double bytes_per_second_;
  const int lanes_;
  std::shared_ptr<HostDevice> device_;
};

}  // namespace cairn
