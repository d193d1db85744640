// What libcuda.so.1 exports: cuDriverGetVersion, and cuGetProcAddress for all else.
#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {
namespace {

struct Entry {
  int since = 0;
  // The version that changed this name's signature; 0 for none.
  int until = 0;
  void* function = nullptr;
};

template <typename Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

const std::map<std::string, Entry>& Entries() {
  static const std::map<std::string, Entry> entries = {
      {"cuGetErrorName", {6000, 0, Address(GetErrorName)}},
      {"cuGetErrorString", {6000, 0, Address(GetErrorString)}},
      {"cuInit", {2000, 0, Address(Init)}},
      {"cuDeviceGetCount", {2000, 0, Address(DeviceGetCount)}},
      {"cuDeviceGet", {2000, 0, Address(DeviceGet)}},
      {"cuDeviceGetAttribute", {2000, 0, Address(DeviceGetAttribute)}},
      {"cuDeviceGetPCIBusId", {4010, 0, Address(DeviceGetPciBusId)}},
      {"cuDevicePrimaryCtxRetain", {7000, 0, Address(PrimaryCtxRetain)}},
      {"cuDevicePrimaryCtxRelease", {11000, 0, Address(PrimaryCtxRelease)}},
      {"cuCtxPushCurrent", {4000, 0, Address(CtxPushCurrent)}},
      {"cuCtxPopCurrent", {4000, 0, Address(CtxPopCurrent)}},
      {"cuThreadExchangeStreamCaptureMode", {10010, 0, Address(ExchangeCaptureMode)}},
      {"cuCtxGetCurrent", {4000, 0, Address(CtxGetCurrent)}},
      {"cuMemsetD8Async", {3020, 0, Address(MemsetD8Async)}},
      {"cuMemGetInfo", {3020, 0, Address(MemGetInfo)}},
      {"cuMemAlloc", {3020, 0, Address(MemAlloc)}},
      {"cuMemAllocManaged", {6000, 0, Address(MemAllocManaged)}},
      {"cuMemFree", {3020, 0, Address(MemFree)}},
      {"cuMemHostRegister", {6050, 0, Address(MemHostRegister)}},
      {"cuMemHostUnregister", {4000, 0, Address(MemHostUnregister)}},
      {"cuPointerGetAttributes", {7000, 0, Address(PointerGetAttributes)}},
      {"cuMemcpyAsync", {4000, 0, Address(MemcpyAsync)}},
      {"cuMemcpy2DAsync", {3020, 0, Address(Memcpy2DAsync)}},
      {"cuMemcpyBatchAsync", {12080, 13000, Address(MemcpyBatchAsync)}},
      {"cuStreamCreate", {2000, 0, Address(StreamCreate)}},
      {"cuStreamDestroy", {4000, 0, Address(StreamDestroy)}},
      {"cuStreamQuery", {2000, 0, Address(StreamQuery)}},
      {"cuStreamSynchronize", {2000, 0, Address(StreamSynchronize)}},
      {"cuStreamWaitEvent", {3020, 0, Address(StreamWaitEvent)}},
      {"cuStreamIsCapturing", {10000, 0, Address(StreamIsCapturing)}},
      {"cuStreamBeginCapture", {10010, 0, Address(StreamBeginCapture)}},
      {"cuStreamEndCapture", {10000, 0, Address(StreamEndCapture)}},
      {"cuGraphDestroy", {10000, 0, Address(GraphDestroy)}},
      {"cuStreamWaitValue32", {11070, 0, Address(StreamWaitValue32)}},
      {"cuStreamWriteValue32", {11070, 0, Address(StreamWriteValue32)}},
      {"cuLaunchHostFunc", {10000, 0, Address(LaunchHostFunc)}},
      {"cuEventCreate", {2000, 0, Address(EventCreate)}},
      {"cuEventDestroy", {4000, 0, Address(EventDestroy)}},
      {"cuEventRecord", {2000, 0, Address(EventRecord)}},
      {"cuEventQuery", {2000, 0, Address(EventQuery)}},
      {"cuEventSynchronize", {2000, 0, Address(EventSynchronize)}},
      {"cuModuleLoadData", {2000, 0, Address(ModuleLoadData)}},
      {"cuModuleUnload", {2000, 0, Address(ModuleUnload)}},
      {"cuModuleGetFunction", {2000, 0, Address(ModuleGetFunction)}},
      {"cuLaunchKernel", {4000, 0, Address(LaunchKernel)}},
  };
  return entries;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) CUresult cuDriverGetVersion(int* version);
__attribute__((visibility("default"))) CUresult cuGetProcAddress(const char* name, void** function, int version,
                                                                 cuuint64_t flags);

CUresult cuDriverGetVersion(int* version) {
  FAKE_CUDA_ENTER("cuDriverGetVersion", kNothing);
  *version = driver().version;
  return CUDA_SUCCESS;
}

// The signature of CUDA 11.3.
CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
  FAKE_CUDA_ENTER("cuGetProcAddress", kNothing);
  const Driver& d = driver();
  *function = nullptr;
  if (version > d.version || flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM) return CUDA_ERROR_INVALID_VALUE;
  const auto found = Entries().find(name);
  if (found == Entries().end() || d.hidden.contains(name) || found->second.since > d.version) {
    return CUDA_ERROR_NOT_FOUND;
  }
  const bool served = version >= found->second.since && (found->second.until == 0 || version < found->second.until);
  if (served) *function = found->second.function;
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace cairn::fake_cuda
