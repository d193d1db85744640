// Compares src/device/cuda_api.h with CUDA's headers, by compiling. Where they are not installed this file is left out.
#include "device/cuda_api.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <type_traits>

namespace cairn {
namespace {

// Names one of CUDA's types as Cairn does.
template <typename T>
struct Ours {
  using Type = T;
};
template <typename T>
using OursT = typename Ours<T>::Type;
template <typename T>
struct Ours<const T> {
  using Type = const OursT<T>;
};
template <typename T>
struct Ours<T*> {
  using Type = OursT<T>*;
};
template <typename Result, typename... Arguments>
struct Ours<Result(Arguments...)> {
  using Type = OursT<Result>(OursT<Arguments>...);
};

#define SAME_TYPE(theirs, ours)                                                      \
  static_assert(sizeof(theirs) == sizeof(ours) && alignof(theirs) == alignof(ours)); \
  template <>                                                                        \
  struct Ours<theirs> {                                                              \
    using Type = ours;                                                               \
  }
#define SAME_HANDLE(name) \
  template <>             \
  struct Ours<::name> {   \
    using Type = name;    \
  }
#define SAME_ENUM(name)                                                                                 \
  static_assert(std::is_same_v<std::underlying_type_t<::name>, std::underlying_type_t<::cairn::name>>); \
  SAME_TYPE(::name, ::cairn::name)
#define SAME_VALUE(name) static_assert(static_cast<long long>(::name) == static_cast<long long>(::cairn::name))
#define SAME_MEMBER(type, name)                                           \
  static_assert(offsetof(::type, name) == offsetof(::cairn::type, name)); \
  static_assert(std::is_same_v<OursT<decltype(::type::name)>, decltype(::cairn::type::name)>)
#define SAME_FUNCTION(name) static_assert(std::is_same_v<OursT<::name>, ::cairn::name>)

SAME_HANDLE(CUctx_st);
SAME_HANDLE(CUmod_st);
SAME_HANDLE(CUfunc_st);
SAME_HANDLE(CUarray_st);
SAME_HANDLE(CUevent_st);
SAME_HANDLE(CUstream_st);
SAME_HANDLE(CUgraph_st);
SAME_ENUM(CUresult);
SAME_ENUM(CUdevice_attribute);
SAME_ENUM(CUpointer_attribute);
SAME_ENUM(CUmemorytype);
SAME_ENUM(CUstreamCaptureStatus);
SAME_ENUM(CUstreamCaptureMode);
SAME_ENUM(CUmemLocationType);
#if CUDA_VERSION >= 12080
SAME_ENUM(CUmemcpySrcAccessOrder);
SAME_TYPE(::CUmemcpyAttributes, ::cairn::CUmemcpyAttributes);
#endif
SAME_TYPE(::CUmemLocation, ::cairn::CUmemLocation);
SAME_TYPE(::CUDA_MEMCPY2D, ::cairn::CUDA_MEMCPY2D);

static_assert(std::is_same_v<::CUdevice, CUdevice> && std::is_same_v<::CUdeviceptr, CUdeviceptr>);
static_assert(std::is_same_v<::cuuint32_t, cuuint32_t> && sizeof(::cuuint64_t) == sizeof(cuuint64_t));
static_assert(static_cast<unsigned int>(CU_MEM_ATTACH_GLOBAL) == kMemAttachGlobal);
static_assert(CU_MEMHOSTREGISTER_PORTABLE == kMemHostRegisterPortable);
static_assert(CU_MEMHOSTREGISTER_DEVICEMAP == kMemHostRegisterDeviceMap);

SAME_VALUE(CUDA_SUCCESS);
SAME_VALUE(CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(CUDA_ERROR_STUB_LIBRARY);
SAME_VALUE(CUDA_ERROR_NO_DEVICE);
SAME_VALUE(CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(CUDA_ERROR_INVALID_IMAGE);
SAME_VALUE(CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_VALUE(CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_VALUE(CUDA_ERROR_INVALID_PTX);
SAME_VALUE(CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME_VALUE(CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
SAME_VALUE(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME_VALUE(CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(CUDA_ERROR_ILLEGAL_STATE);
SAME_VALUE(CUDA_ERROR_NOT_FOUND);
SAME_VALUE(CUDA_ERROR_NOT_READY);
SAME_VALUE(CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME_VALUE(CUDA_ERROR_LAUNCH_TIMEOUT);
SAME_VALUE(CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME_VALUE(CUDA_ERROR_ASSERT);
SAME_VALUE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_VALUE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_VALUE(CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME_VALUE(CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME_VALUE(CUDA_ERROR_MISALIGNED_ADDRESS);
SAME_VALUE(CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME_VALUE(CUDA_ERROR_INVALID_PC);
SAME_VALUE(CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME_VALUE(CUDA_ERROR_MPS_RPC_FAILURE);
SAME_VALUE(CUDA_ERROR_MPS_CLIENT_TERMINATED);
SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME_VALUE(CUDA_ERROR_CAPTURED_EVENT);
SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME_VALUE(CUDA_ERROR_EXTERNAL_DEVICE);
SAME_VALUE(CUDA_ERROR_UNKNOWN);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
SAME_VALUE(CU_POINTER_ATTRIBUTE_CONTEXT);
SAME_VALUE(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(CU_MEMORYTYPE_HOST);
SAME_VALUE(CU_MEMORYTYPE_DEVICE);
SAME_VALUE(CU_STREAM_DEFAULT);
SAME_VALUE(CU_STREAM_NON_BLOCKING);
SAME_VALUE(CU_EVENT_DEFAULT);
SAME_VALUE(CU_EVENT_BLOCKING_SYNC);
SAME_VALUE(CU_EVENT_DISABLE_TIMING);
SAME_VALUE(CU_EVENT_WAIT_DEFAULT);
SAME_VALUE(CU_STREAM_WAIT_VALUE_GEQ);
SAME_VALUE(CU_STREAM_WRITE_VALUE_DEFAULT);
SAME_VALUE(CU_GET_PROC_ADDRESS_LEGACY_STREAM);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(CU_MEM_LOCATION_TYPE_INVALID);
#if CUDA_VERSION >= 12080
SAME_VALUE(CUDA_ERROR_CONTAINED);
SAME_VALUE(CUDA_ERROR_TENSOR_MEMORY_LEAK);
SAME_VALUE(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME_VALUE(CU_MEMCPY_FLAG_DEFAULT);
SAME_VALUE(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
#endif

SAME_MEMBER(CUmemLocation, type);
SAME_MEMBER(CUmemLocation, id);
SAME_MEMBER(CUDA_MEMCPY2D, srcXInBytes);
SAME_MEMBER(CUDA_MEMCPY2D, srcY);
SAME_MEMBER(CUDA_MEMCPY2D, srcMemoryType);
SAME_MEMBER(CUDA_MEMCPY2D, srcHost);
SAME_MEMBER(CUDA_MEMCPY2D, srcDevice);
SAME_MEMBER(CUDA_MEMCPY2D, srcArray);
SAME_MEMBER(CUDA_MEMCPY2D, srcPitch);
SAME_MEMBER(CUDA_MEMCPY2D, dstXInBytes);
SAME_MEMBER(CUDA_MEMCPY2D, dstY);
SAME_MEMBER(CUDA_MEMCPY2D, dstMemoryType);
SAME_MEMBER(CUDA_MEMCPY2D, dstHost);
SAME_MEMBER(CUDA_MEMCPY2D, dstDevice);
SAME_MEMBER(CUDA_MEMCPY2D, dstArray);
SAME_MEMBER(CUDA_MEMCPY2D, dstPitch);
SAME_MEMBER(CUDA_MEMCPY2D, WidthInBytes);
SAME_MEMBER(CUDA_MEMCPY2D, Height);
#if CUDA_VERSION >= 12080
SAME_MEMBER(CUmemcpyAttributes, srcAccessOrder);
SAME_MEMBER(CUmemcpyAttributes, srcLocHint);
SAME_MEMBER(CUmemcpyAttributes, dstLocHint);
SAME_MEMBER(CUmemcpyAttributes, flags);
#endif

SAME_FUNCTION(PFN_cuGetProcAddress_v11030);
SAME_FUNCTION(PFN_cuDriverGetVersion_v2020);
SAME_FUNCTION(PFN_cuGetErrorName_v6000);
SAME_FUNCTION(PFN_cuGetErrorString_v6000);
SAME_FUNCTION(PFN_cuInit_v2000);
SAME_FUNCTION(PFN_cuDeviceGetCount_v2000);
SAME_FUNCTION(PFN_cuDeviceGet_v2000);
SAME_FUNCTION(PFN_cuDeviceGetAttribute_v2000);
SAME_FUNCTION(PFN_cuDeviceGetPCIBusId_v4010);
SAME_FUNCTION(PFN_cuDevicePrimaryCtxRetain_v7000);
SAME_FUNCTION(PFN_cuDevicePrimaryCtxRelease_v11000);
SAME_FUNCTION(PFN_cuCtxPushCurrent_v4000);
SAME_FUNCTION(PFN_cuCtxPopCurrent_v4000);
SAME_FUNCTION(PFN_cuCtxGetCurrent_v4000);
SAME_FUNCTION(PFN_cuThreadExchangeStreamCaptureMode_v10010);
SAME_FUNCTION(PFN_cuMemGetInfo_v3020);
SAME_FUNCTION(PFN_cuMemAlloc_v3020);
SAME_FUNCTION(PFN_cuMemAllocManaged_v6000);
SAME_FUNCTION(PFN_cuMemFree_v3020);
SAME_FUNCTION(PFN_cuMemHostRegister_v6050);
SAME_FUNCTION(PFN_cuMemHostUnregister_v4000);
SAME_FUNCTION(PFN_cuPointerGetAttributes_v7000);
SAME_FUNCTION(PFN_cuMemcpyAsync_v4000);
SAME_FUNCTION(PFN_cuMemcpy2DAsync_v3020);
#if CUDA_VERSION >= 12080
SAME_FUNCTION(PFN_cuMemcpyBatchAsync_v12080);
#endif
SAME_FUNCTION(PFN_cuMemsetD8Async_v3020);
SAME_FUNCTION(PFN_cuStreamCreate_v2000);
SAME_FUNCTION(PFN_cuStreamDestroy_v4000);
SAME_FUNCTION(PFN_cuStreamQuery_v2000);
SAME_FUNCTION(PFN_cuStreamSynchronize_v2000);
SAME_FUNCTION(PFN_cuStreamWaitEvent_v3020);
SAME_FUNCTION(PFN_cuStreamIsCapturing_v10000);
SAME_FUNCTION(PFN_cuStreamBeginCapture_v10010);
SAME_FUNCTION(PFN_cuStreamEndCapture_v10000);
SAME_FUNCTION(PFN_cuGraphDestroy_v10000);
SAME_FUNCTION(PFN_cuStreamWaitValue32_v11070);
SAME_FUNCTION(PFN_cuStreamWriteValue32_v11070);
SAME_FUNCTION(PFN_cuLaunchHostFunc_v10000);
SAME_FUNCTION(PFN_cuEventCreate_v2000);
SAME_FUNCTION(PFN_cuEventDestroy_v4000);
SAME_FUNCTION(PFN_cuEventRecord_v2000);
SAME_FUNCTION(PFN_cuEventQuery_v2000);
SAME_FUNCTION(PFN_cuEventSynchronize_v2000);
SAME_FUNCTION(PFN_cuModuleLoadData_v2000);
SAME_FUNCTION(PFN_cuModuleGetFunction_v2000);
SAME_FUNCTION(PFN_cuModuleUnload_v2000);
SAME_FUNCTION(PFN_cuLaunchKernel_v4000);

TEST(CudaApi, StreamHandlesThatAreMacrosInCudaAreEqual) {
  EXPECT_EQ(static_cast<void*>(CU_STREAM_LEGACY), static_cast<void*>(kLegacyStream));
  EXPECT_EQ(static_cast<void*>(CU_STREAM_PER_THREAD), static_cast<void*>(kPerThreadStream));
}

}  // namespace
}  // namespace cairn
