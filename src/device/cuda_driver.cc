#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <string_view>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// Fills a CudaDriver, function by function, up to the first missing one.
class Loader {
 public:
  Loader(PFN_cuGetProcAddress_v11030 get, int driver_version) : get_(get), driver_version_(driver_version) {}

  template <typename Function>
  void Load(const char* name, int since, Function* function) {
    if (!status_.ok()) return;
    if (const CUresult result = Find(name, since, function); *function == nullptr) {
      status_ =
          Error(StatusCode::kDeviceError, "the CUDA {} driver ({}) lacks {} of CUDA {} (cuGetProcAddress: {})",
                CudaVersionName(driver_version_), kLibrary, name, CudaVersionName(since), static_cast<int>(result));
    }
  }

  template <typename Function>
  void LoadOptional(const char* name, int since, Function* function) {
    if (since <= driver_version_) (void)Find(name, since, function);
  }

  [[nodiscard]] const Status& status() const { return status_; }

 private:
  // Legacy: a null stream always means the legacy one, however this library's user was compiled.
  template <typename Function>
  CUresult Find(const char* name, int since, Function* function) {
    void* address = nullptr;
    const CUresult result = get_(name, &address, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    *function = result == CUDA_SUCCESS ? reinterpret_cast<Function>(address) : nullptr;
    return result;
  }

  const PFN_cuGetProcAddress_v11030 get_;
  const int driver_version_;
  Status status_;
};

// All or none.
void LoadKernelFunctions(Loader& loader, CudaDriver& driver) {
  loader.LoadOptional("cuModuleLoadData", 2000, &driver.module_load_data);
  loader.LoadOptional("cuModuleGetFunction", 2000, &driver.module_get_function);
  loader.LoadOptional("cuModuleUnload", 2000, &driver.module_unload);
  loader.LoadOptional("cuLaunchKernel", 4000, &driver.launch_kernel);
  if (driver.module_load_data != nullptr && driver.module_get_function != nullptr && driver.module_unload != nullptr &&
      driver.launch_kernel != nullptr) {
    return;
  }
  driver.module_load_data = nullptr;
  driver.module_get_function = nullptr;
  driver.module_unload = nullptr;
  driver.launch_kernel = nullptr;
}

Status LoadFunctions(PFN_cuGetProcAddress_v11030 get, CudaDriver& driver) {
  Loader loader(get, driver.version);
  loader.Load("cuGetErrorName", 6000, &driver.get_error_name);
  loader.Load("cuGetErrorString", 6000, &driver.get_error_string);
  loader.Load("cuInit", 2000, &driver.init);
  loader.Load("cuDeviceGetCount", 2000, &driver.device_get_count);
  loader.Load("cuDeviceGet", 2000, &driver.device_get);
  loader.Load("cuDeviceGetAttribute", 2000, &driver.device_get_attribute);
  loader.LoadOptional("cuDeviceGetPCIBusId", 4010, &driver.device_get_pci_bus_id);
  loader.Load("cuDevicePrimaryCtxRetain", 7000, &driver.primary_ctx_retain);
  loader.Load("cuDevicePrimaryCtxRelease", 11000, &driver.primary_ctx_release);
  loader.Load("cuCtxPushCurrent", 4000, &driver.ctx_push_current);
  loader.Load("cuCtxPopCurrent", 4000, &driver.ctx_pop_current);
  loader.Load("cuThreadExchangeStreamCaptureMode", 10010, &driver.thread_exchange_capture_mode);
  loader.Load("cuMemGetInfo", 3020, &driver.mem_get_info);
  loader.Load("cuMemAlloc", 3020, &driver.mem_alloc);
  loader.Load("cuMemFree", 3020, &driver.mem_free);
  loader.Load("cuMemHostRegister", 6050, &driver.mem_host_register);
  loader.Load("cuMemHostUnregister", 4000, &driver.mem_host_unregister);
  loader.Load("cuPointerGetAttributes", 7000, &driver.pointer_get_attributes);
  loader.Load("cuMemcpyAsync", 4000, &driver.memcpy_async);
  loader.Load("cuMemcpy2DAsync", 3020, &driver.memcpy_2d_async);
  // CUDA 13.0 changed the signature and dropped the failed copy's index. Newer drivers still have that of 12.8.
  loader.LoadOptional("cuMemcpyBatchAsync", 12080, &driver.memcpy_batch_async);
  loader.Load("cuStreamCreate", 2000, &driver.stream_create);
  loader.Load("cuStreamDestroy", 4000, &driver.stream_destroy);
  loader.Load("cuStreamQuery", 2000, &driver.stream_query);
  loader.Load("cuStreamSynchronize", 2000, &driver.stream_synchronize);
  loader.Load("cuStreamWaitEvent", 3020, &driver.stream_wait_event);
  loader.Load("cuStreamIsCapturing", 10000, &driver.stream_is_capturing);
  loader.Load("cuEventCreate", 2000, &driver.event_create);
  loader.Load("cuEventDestroy", 4000, &driver.event_destroy);
  loader.Load("cuEventRecord", 2000, &driver.event_record);
  loader.Load("cuEventSynchronize", 2000, &driver.event_synchronize);
  LoadKernelFunctions(loader, driver);
  return loader.status();
}

struct Needed {
  CUdevice_attribute attribute;
  std::string_view name;
  std::string_view lacking;
};

// Pool and tensors are named by one kind of address, and the pool is registered where it is.
constexpr std::array<Needed, 3> kNeeded{
    {{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING",
      "does not share its addresses with the host"},
     {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED",
      "cannot register host memory"},
     {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
      "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
      "cannot use registered host memory at the host's address"}}};

}  // namespace

std::string CudaVersionName(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string CudaDriver::Describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return fmt::format("CUDA error {}", static_cast<int>(result));
  }
  if (get_error_string(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

Result<CUdevice> CudaDriver::FindDevice(int index) const {
  const auto failed = [&](CUresult result, std::string_view what) {
    return Error(StatusCode::kDeviceError, "cuda:{}: {}: {}", index, what, Describe(result));
  };
  int count = 0;
  if (const CUresult result = device_get_count(&count); result != CUDA_SUCCESS) {
    return failed(result, "counting the GPUs");
  }
  if (index < 0 || index >= count) {
    return Error(StatusCode::kInvalidArgument, "cuda:{}: no such GPU: the driver shows {} (check CUDA_VISIBLE_DEVICES)",
                 index, count);
  }
  CUdevice device = 0;
  if (const CUresult result = device_get(&device, index); result != CUDA_SUCCESS) {
    return failed(result, "finding the GPU");
  }
  for (const Needed& needed : kNeeded) {
    int value = 0;
    if (const CUresult result = device_get_attribute(&value, needed.attribute, device); result != CUDA_SUCCESS) {
      return failed(result, fmt::format("reading {}", needed.name));
    }
    if (value == 0) {
      return Error(StatusCode::kUnsupported,
                   "cuda:{}: this GPU {} ({} is 0, as in WSL2): Cairn cannot save its tensors; save copies of them on "
                   "the CPU, or run on Linux itself",
                   index, needed.lacking, needed.name);
    }
  }
  return device;
}

Result<std::shared_ptr<const CudaDriver>> CudaDriver::Load() {
  // Never closed: other code in the process uses the driver too, and it must not be unloaded.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = dlerror();
    return Error(StatusCode::kUnsupported, "no CUDA driver: cannot load {} ({})", kLibrary,
                 why == nullptr ? "no reason given" : why);
  }
  auto driver = std::make_shared<CudaDriver>();
  const auto get_version = reinterpret_cast<PFN_cuDriverGetVersion_v2020>(dlsym(library, "cuDriverGetVersion"));
  if (get_version == nullptr) return Error(StatusCode::kDeviceError, "{} has no cuDriverGetVersion", kLibrary);
  if (const CUresult result = get_version(&driver->version); result == CUDA_ERROR_STUB_LIBRARY) {
    return Error(StatusCode::kUnsupported, "no CUDA driver: the {} found is the toolkit's stub", kLibrary);
  } else if (result != CUDA_SUCCESS) {
    return Error(StatusCode::kDeviceError, "cannot read the version of {}: CUDA error {}", kLibrary,
                 static_cast<int>(result));
  }
  // The first signature, without a suffix: every driver since has it.
  const auto get = reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"));
  if (driver->version < kOldestVersion || get == nullptr) {
    return Error(StatusCode::kDeviceError, "the CUDA driver is too old: expected CUDA {} or newer, found {}",
                 CudaVersionName(kOldestVersion), CudaVersionName(driver->version));
  }
  CAIRN_RETURN_IF_ERROR(LoadFunctions(get, *driver));

  int gpus = 0;
  CUresult result = driver->init(0);
  if (result == CUDA_SUCCESS) result = driver->device_get_count(&gpus);
  if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && gpus == 0)) {
    return Error(StatusCode::kUnsupported, "the CUDA {} driver shows no GPU (check CUDA_VISIBLE_DEVICES)",
                 CudaVersionName(driver->version));
  }
  if (result != CUDA_SUCCESS) {
    return Error(StatusCode::kDeviceError, "the CUDA {} driver failed to start: {}", CudaVersionName(driver->version),
                 driver->Describe(result));
  }
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

}  // namespace cairn
