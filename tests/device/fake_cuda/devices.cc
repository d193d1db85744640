// The driver's start, its GPUs, and their primary contexts.
#include <cstdlib>
#include <cstring>
#include <string>

#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {

CUresult GetErrorName(CUresult error, const char** text) {
  static const std::map<CUresult, const char*> names = {
      {CUDA_SUCCESS, "CUDA_SUCCESS"},
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
      {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
      {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
      {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
      {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}};
  const auto found = names.find(error);
  *text = found == names.end() ? nullptr : found->second;
  return found == names.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult GetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "as the fake driver says";
  return CUDA_SUCCESS;
}

namespace {

// For programs that know nothing of the double.
void DefineKernelsIfAsked() {
  static const char* const asked = std::getenv("FAKE_CUDA_KERNELS");
  if (asked != nullptr && std::string(asked) == "1" && !driver().is_tested) DefineCairnsKernels();
}

}  // namespace

CUresult Init(unsigned int flags) {
  DefineKernelsIfAsked();
  FAKE_CUDA_ENTER("cuInit", kNothing);
  Driver& d = driver();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (d.gpus == 0) return CUDA_ERROR_NO_DEVICE;
  d.initialised = true;
  return CUDA_SUCCESS;
}

CUresult DeviceGetCount(int* count) {
  FAKE_CUDA_ENTER("cuDeviceGetCount", kStarted);
  *count = driver().gpus;
  return CUDA_SUCCESS;
}

CUresult DeviceGet(CUdevice* device, int ordinal) {
  FAKE_CUDA_ENTER("cuDeviceGet", kStarted);
  *device = ordinal;
  return ordinal >= 0 && ordinal < driver().gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  FAKE_CUDA_ENTER("cuDeviceGetAttribute", kStarted);
  static const std::map<CUdevice_attribute, int> usual = {
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, kMaxPitch},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1}};
  const Driver& d = driver();
  if (device < 0 || device >= d.gpus) return CUDA_ERROR_INVALID_DEVICE;
  const auto set = d.attributes.find(attribute);
  const auto found = usual.find(attribute);
  if (set == d.attributes.end() && found == usual.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = set != d.attributes.end() ? set->second : found->second;
  return CUDA_SUCCESS;
}

CUresult DeviceGetPciBusId(char* bus_id, int size, CUdevice device) {
  FAKE_CUDA_ENTER("cuDeviceGetPCIBusId", kStarted);
  if (device < 0 || device >= driver().gpus) return CUDA_ERROR_INVALID_DEVICE;
  const std::string text = "ffff:0" + std::to_string(device) + ":00.0";  // No machine has it.
  if (size <= static_cast<int>(text.size())) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(bus_id, text.c_str(), text.size() + 1);
  return CUDA_SUCCESS;
}

CUresult PrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_CUDA_ENTER("cuDevicePrimaryCtxRetain", kStarted);
  Context& mine = driver().contexts[device];
  mine.gpu = device;
  StartThread();
  if (mine.retained++ == 0) mine.legacy = MakeStream(mine, true);
  *context = reinterpret_cast<CUcontext>(&mine);
  return CUDA_SUCCESS;
}

CUresult PrimaryCtxRelease(CUdevice device) {
  FAKE_CUDA_ENTER("cuDevicePrimaryCtxRelease", kStarted);
  Driver& d = driver();
  Context& mine = d.contexts[device];
  if (mine.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (mine.retained == 1) {
    // Freed with the context, but not by who made them.
    if (mine.sticky == CUDA_SUCCESS) {
      driver().left += mine.streams.size() - 1 - mine.per_thread.size() + mine.modules.size();
    }
    DestroyStreams(call.lock(), mine);
    while (!mine.modules.empty()) UnloadModule(mine, *mine.modules.begin());
  }
  --mine.retained;
  for (const auto& [gpu, context] : d.contexts) {
    if (context.retained > 0) return CUDA_SUCCESS;
  }
  StopThread(call.lock());
  return CUDA_SUCCESS;
}

CUresult CtxPushCurrent(CUcontext context) {
  FAKE_CUDA_ENTER("cuCtxPushCurrent", kStarted);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  current_contexts.push_back(reinterpret_cast<Context*>(context));
  return CUDA_SUCCESS;
}

CUresult CtxPopCurrent(CUcontext* context) {
  FAKE_CUDA_ENTER("cuCtxPopCurrent", kStarted);
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(current_contexts.back());
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult CtxGetCurrent(CUcontext* context) {
  *context = current_contexts.empty() ? nullptr : reinterpret_cast<CUcontext>(current_contexts.back());
  return CUDA_SUCCESS;
}

}  // namespace cairn::fake_cuda
