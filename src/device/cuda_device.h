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
/// shares with torch and the CUDA runtime. Unsupported where there is no driver (or this build had no CUDA headers);
/// a driver that is there but too old is an error that names the version found and the one needed.
[[nodiscard]] Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options);

/// Ok where a driver and at least one GPU are there; else why not.
[[nodiscard]] Status CudaAvailable();

}  // namespace cairn
