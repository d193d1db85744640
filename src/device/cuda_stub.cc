// MakeCudaDevice for builds that found no CUDA headers.
#include "base/status_macros.h"
#include "device/cuda_device.h"

namespace cairn {

Status CudaAvailable() {
  return Error(StatusCode::kUnsupported, "this build of Cairn had no CUDA headers (CAIRN_CUDA)");
}

Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options) {
  return Error(StatusCode::kUnsupported, "cuda:{}: {}", options.index, CudaAvailable().message());
}

}  // namespace cairn
