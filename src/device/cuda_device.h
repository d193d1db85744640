#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace cairn {

struct CudaDeviceOptions {
  int index = 0;
  int lanes = 2;
  /// Events in stock: for each save in flight, one for each caller's stream and one for each lane.
  int events = 64;
};

/// One CUDA GPU through the driver API, found at run time (libcuda.so.1); uses the device's primary context, which it
/// shares with torch and the CUDA runtime. Unsupported where there is no driver or no GPU, or this build had no CUDA
/// headers; InvalidArgument for an index beyond the last GPU. A driver that is there but too old (the message names the
/// version found and the one needed) or does not start is a DeviceError: no reason to go on without the GPU.
[[nodiscard]] Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options);

/// Ok where a driver and at least one GPU are there; else why not: Unsupported or DeviceError, as MakeCudaDevice has
/// it.
[[nodiscard]] Status CudaAvailable();

}  // namespace cairn
