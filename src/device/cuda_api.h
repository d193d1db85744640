#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// The part of the CUDA driver's API that Cairn and its tests use, so that neither needs CUDA's headers. Names, values
// and layouts are those of cuda.h and cudaTypedefs.h, whose documentation holds; a type's suffix is the CUDA version of
// its signature. What is a macro there has a name of ours here. Both headers may be included in one file:
// tests/device/cuda_api_test.cc does that, and compares them.

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUarray_st;
struct CUevent_st;
struct CUstream_st;
struct CUgraph_st;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = CUctx_st*;
using CUmodule = CUmod_st*;
using CUfunction = CUfunc_st*;
using CUarray = CUarray_st*;
using CUevent = CUevent_st*;
using CUstream = CUstream_st*;
using CUgraph = CUgraph_st*;
using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;

enum CUresult : unsigned int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_MPS_RPC_FAILURE = 806,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_EXTERNAL_DEVICE = 911,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : unsigned int {
  CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
};

enum CUpointer_attribute : unsigned int {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
};

enum CUmemorytype : unsigned int {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
};

enum CUstream_flags : unsigned int { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum CUevent_flags : unsigned int { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum CUevent_wait_flags : unsigned int { CU_EVENT_WAIT_DEFAULT = 0 };
enum CUstreamWaitValue_flags : unsigned int { CU_STREAM_WAIT_VALUE_GEQ = 0 };
enum CUstreamWriteValue_flags : unsigned int { CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
enum CUdriverProcAddress_flags : unsigned int { CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1 };

enum CUstreamCaptureStatus : unsigned int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : unsigned int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUmemcpySrcAccessOrder : unsigned int { CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1 };
enum CUmemcpyFlags : unsigned int {
  CU_MEMCPY_FLAG_DEFAULT = 0,
  CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1,
};
enum CUmemLocationType : unsigned int { CU_MEM_LOCATION_TYPE_INVALID = 0 };

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

struct CUmemcpyAttributes {
  CUmemcpySrcAccessOrder srcAccessOrder;
  CUmemLocation srcLocHint;
  CUmemLocation dstLocHint;
  unsigned int flags;
};

struct CUDA_MEMCPY2D {
  std::size_t srcXInBytes;
  std::size_t srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  std::size_t srcPitch;
  std::size_t dstXInBytes;
  std::size_t dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  std::size_t dstPitch;
  std::size_t WidthInBytes;
  std::size_t Height;
};

/// CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned int kMemAttachGlobal = 1;
inline constexpr unsigned int kMemHostRegisterPortable = 1;
inline constexpr unsigned int kMemHostRegisterDeviceMap = 2;
/// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD
inline const CUstream kLegacyStream = reinterpret_cast<CUstream>(1);     // NOLINT(performance-no-int-to-ptr)
inline const CUstream kPerThreadStream = reinterpret_cast<CUstream>(2);  // NOLINT(performance-no-int-to-ptr)

using PFN_cuGetProcAddress_v11030 = CUresult (*)(const char* symbol, void** function, int version, cuuint64_t flags);
using PFN_cuDriverGetVersion_v2020 = CUresult (*)(int* version);
using PFN_cuGetErrorName_v6000 = CUresult (*)(CUresult error, const char** text);
using PFN_cuGetErrorString_v6000 = CUresult (*)(CUresult error, const char** text);
using PFN_cuInit_v2000 = CUresult (*)(unsigned int flags);

using PFN_cuDeviceGetCount_v2000 = CUresult (*)(int* count);
using PFN_cuDeviceGet_v2000 = CUresult (*)(CUdevice* device, int ordinal);
using PFN_cuDeviceGetAttribute_v2000 = CUresult (*)(int* value, CUdevice_attribute attribute, CUdevice device);
using PFN_cuDeviceGetPCIBusId_v4010 = CUresult (*)(char* bus_id, int size, CUdevice device);
using PFN_cuDevicePrimaryCtxRetain_v7000 = CUresult (*)(CUcontext* context, CUdevice device);
using PFN_cuDevicePrimaryCtxRelease_v11000 = CUresult (*)(CUdevice device);
using PFN_cuCtxPushCurrent_v4000 = CUresult (*)(CUcontext context);
using PFN_cuCtxPopCurrent_v4000 = CUresult (*)(CUcontext* context);
using PFN_cuCtxGetCurrent_v4000 = CUresult (*)(CUcontext* context);
using PFN_cuThreadExchangeStreamCaptureMode_v10010 = CUresult (*)(CUstreamCaptureMode* mode);

using PFN_cuMemGetInfo_v3020 = CUresult (*)(std::size_t* free, std::size_t* total);
using PFN_cuMemAlloc_v3020 = CUresult (*)(CUdeviceptr* memory, std::size_t bytes);
using PFN_cuMemAllocManaged_v6000 = CUresult (*)(CUdeviceptr* memory, std::size_t bytes, unsigned int flags);
using PFN_cuMemFree_v3020 = CUresult (*)(CUdeviceptr memory);
using PFN_cuMemHostRegister_v6050 = CUresult (*)(void* memory, std::size_t bytes, unsigned int flags);
using PFN_cuMemHostUnregister_v4000 = CUresult (*)(void* memory);
using PFN_cuPointerGetAttributes_v7000 = CUresult (*)(unsigned int count, CUpointer_attribute* attributes,
                                                      void** values, CUdeviceptr at);
using PFN_cuMemcpyAsync_v4000 = CUresult (*)(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream);
using PFN_cuMemcpy2DAsync_v3020 = CUresult (*)(const CUDA_MEMCPY2D* copy, CUstream stream);
using PFN_cuMemcpyBatchAsync_v12080 = CUresult (*)(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes,
                                                   std::size_t count, CUmemcpyAttributes* attributes,
                                                   std::size_t* first, std::size_t attribute_count, std::size_t* failed,
                                                   CUstream stream);
using PFN_cuMemsetD8Async_v3020 = CUresult (*)(CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream stream);

using PFN_cuStreamCreate_v2000 = CUresult (*)(CUstream* stream, unsigned int flags);
using PFN_cuStreamDestroy_v4000 = CUresult (*)(CUstream stream);
using PFN_cuStreamQuery_v2000 = CUresult (*)(CUstream stream);
using PFN_cuStreamSynchronize_v2000 = CUresult (*)(CUstream stream);
using PFN_cuStreamWaitEvent_v3020 = CUresult (*)(CUstream stream, CUevent event, unsigned int flags);
using PFN_cuStreamIsCapturing_v10000 = CUresult (*)(CUstream stream, CUstreamCaptureStatus* status);
using PFN_cuStreamBeginCapture_v10010 = CUresult (*)(CUstream stream, CUstreamCaptureMode mode);
using PFN_cuStreamEndCapture_v10000 = CUresult (*)(CUstream stream, CUgraph* graph);
using PFN_cuGraphDestroy_v10000 = CUresult (*)(CUgraph graph);
using PFN_cuStreamWaitValue32_v11070 = CUresult (*)(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                                    unsigned int flags);
using PFN_cuStreamWriteValue32_v11070 = CUresult (*)(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                                     unsigned int flags);
using CUhostFn = void (*)(void* argument);
using PFN_cuLaunchHostFunc_v10000 = CUresult (*)(CUstream stream, CUhostFn function, void* argument);

using PFN_cuEventCreate_v2000 = CUresult (*)(CUevent* event, unsigned int flags);
using PFN_cuEventDestroy_v4000 = CUresult (*)(CUevent event);
using PFN_cuEventRecord_v2000 = CUresult (*)(CUevent event, CUstream stream);
using PFN_cuEventQuery_v2000 = CUresult (*)(CUevent event);
using PFN_cuEventSynchronize_v2000 = CUresult (*)(CUevent event);

using PFN_cuModuleLoadData_v2000 = CUresult (*)(CUmodule* module, const void* image);
using PFN_cuModuleGetFunction_v2000 = CUresult (*)(CUfunction* function, CUmodule module, const char* name);
using PFN_cuModuleUnload_v2000 = CUresult (*)(CUmodule module);
using PFN_cuLaunchKernel_v4000 = CUresult (*)(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                              unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                              unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                              void** arguments, void** extra);

}  // namespace cairn
