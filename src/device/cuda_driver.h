#pragma once

#include <memory>
#include <string>

#include "cairn/status.h"
#include "device/cuda_api.h"

namespace cairn {

/// The driver's functions that Cairn calls, from libcuda.so.1, found at run time. Newer drivers still have the older
/// signatures.
struct CudaDriver {
  /// The oldest supported driver: the first with cuGetProcAddress.
  static constexpr int kOldestVersion = 11030;

  /// Loads and initialises the driver. Unsupported if there is no driver or no GPU; DeviceError if the driver is too
  /// old (the message names both versions), lacks a function, or does not start.
  [[nodiscard]] static Result<std::shared_ptr<const CudaDriver>> Load();

  /// Finds the GPU, and checks that copies between it and registered host memory work by the host's addresses.
  /// InvalidArgument if there is no such GPU, Unsupported, with the way out, if they do not.
  [[nodiscard]] Result<CUdevice> FindDevice(int index) const;

  /// "CUDA_ERROR_INVALID_VALUE (invalid argument)".
  [[nodiscard]] std::string Describe(CUresult result) const;

  /// 1000 * major + 10 * minor.
  int version = 0;

  PFN_cuGetErrorName_v6000 get_error_name = nullptr;
  PFN_cuGetErrorString_v6000 get_error_string = nullptr;
  PFN_cuInit_v2000 init = nullptr;
  PFN_cuDeviceGetCount_v2000 device_get_count = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  /// Null if the driver does not have it.
  PFN_cuDeviceGetPCIBusId_v4010 device_get_pci_bus_id = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_ctx_retain = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 primary_ctx_release = nullptr;
  PFN_cuCtxPushCurrent_v4000 ctx_push_current = nullptr;
  PFN_cuCtxPopCurrent_v4000 ctx_pop_current = nullptr;
  PFN_cuThreadExchangeStreamCaptureMode_v10010 thread_exchange_capture_mode = nullptr;

  PFN_cuMemGetInfo_v3020 mem_get_info = nullptr;
  PFN_cuMemAlloc_v3020 mem_alloc = nullptr;
  PFN_cuMemFree_v3020 mem_free = nullptr;
  PFN_cuMemHostRegister_v6050 mem_host_register = nullptr;
  PFN_cuMemHostUnregister_v4000 mem_host_unregister = nullptr;
  PFN_cuPointerGetAttributes_v7000 pointer_get_attributes = nullptr;
  PFN_cuMemcpyAsync_v4000 memcpy_async = nullptr;
  PFN_cuMemcpy2DAsync_v3020 memcpy_2d_async = nullptr;
  /// Null before CUDA 12.8.
  PFN_cuMemcpyBatchAsync_v12080 memcpy_batch_async = nullptr;

  PFN_cuStreamCreate_v2000 stream_create = nullptr;
  PFN_cuStreamDestroy_v4000 stream_destroy = nullptr;
  PFN_cuStreamQuery_v2000 stream_query = nullptr;
  PFN_cuStreamSynchronize_v2000 stream_synchronize = nullptr;
  PFN_cuStreamWaitEvent_v3020 stream_wait_event = nullptr;
  PFN_cuStreamIsCapturing_v10000 stream_is_capturing = nullptr;
  PFN_cuEventCreate_v2000 event_create = nullptr;
  PFN_cuEventDestroy_v4000 event_destroy = nullptr;
  PFN_cuEventRecord_v2000 event_record = nullptr;
  PFN_cuEventSynchronize_v2000 event_synchronize = nullptr;

  /// Null where the driver does not have all four.
  PFN_cuModuleLoadData_v2000 module_load_data = nullptr;
  PFN_cuModuleGetFunction_v2000 module_get_function = nullptr;
  PFN_cuModuleUnload_v2000 module_unload = nullptr;
  PFN_cuLaunchKernel_v4000 launch_kernel = nullptr;
  [[nodiscard]] bool loads_kernels() const {
    return module_load_data != nullptr && module_get_function != nullptr && module_unload != nullptr &&
           launch_kernel != nullptr;
  }
};

/// "12.8" for 12080.
[[nodiscard]] std::string CudaVersionName(int version);

}  // namespace cairn
