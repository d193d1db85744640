#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"

namespace cairn {

struct CudaDeviceOptions {
  int index = 0;
  int lanes = 2;
  /// How many events to create. Each save in flight needs one for each caller's stream and one for each lane.
  int events = 64;
  /// False: copies without kernels, as on a GPU that cannot run them. To compare both.
  bool kernels = true;
  /// If not 0: a kernel fills CopyBatch::sums of batches of up to this many bytes, at most 1 GiB.
  std::uint64_t sum_bytes = 0;
  /// How many such batches may be in flight: the buffers of the pool. More than the lanes take are not needed.
  std::uint64_t sum_batches = 0;
};

/// One CUDA GPU through the driver API, which is found at run time (libcuda.so.1). Uses the device's primary context,
/// as torch and the CUDA runtime do. Unsupported without a driver or a GPU, or for a GPU that cannot copy from and to
/// host memory by its addresses (WSL2); InvalidArgument for an index beyond the last GPU; DeviceError for a driver that
/// is too old (the message names both versions) or does not start, so that nobody goes on without the GPU by mistake.
[[nodiscard]] Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options);

/// How many GPUs there are. Unsupported without a driver or a GPU, or if one of them cannot be used; DeviceError as
/// from MakeCudaDevice.
[[nodiscard]] Result<int> CountCudaDevices();

/// Ok if there is a driver and at least one GPU, and all GPUs can be used; otherwise Unsupported or DeviceError, as
/// from MakeCudaDevice.
[[nodiscard]] Status CudaAvailable();

}  // namespace cairn
