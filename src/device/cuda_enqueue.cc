#include "device/cuda_enqueue.h"

#include "base/status_macros.h"

namespace cairn {
namespace {

Status EnqueueRuns(const CudaContext& context, CudaCopyPlan& plan, CUstream lane) {
  const std::size_t count = plan.sizes.size();
  if (count > 1 && context.driver().memcpy_batch_async != nullptr) {
    // No PREFER_OVERLAP_WITH_COMPUTE, which costs bandwidth. Sources are tensors that the caller's stream writes, or
    // chunks that are already filled: stream order is right for both.
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    std::size_t failed = SIZE_MAX;
    const CUresult result = context.driver().memcpy_batch_async(plan.to.data(), plan.from.data(), plan.sizes.data(),
                                                                count, &attributes, &first, 1, &failed, lane);
    if (result == CUDA_SUCCESS) return Status::Ok();
    if (result != CUDA_ERROR_NOT_SUPPORTED) {
      return context.Check(result, failed < count
                                       ? fmt::format("copy {} of a batch of {} ({} bytes from {:#x} to {:#x})", failed,
                                                     count, plan.sizes[failed], plan.from[failed], plan.to[failed])
                                       : fmt::format("a batch of {} copies", count));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (const CUresult result = context.driver().memcpy_async(plan.to[i], plan.from[i], plan.sizes[i], lane);
        result != CUDA_SUCCESS) {
      return context.Check(result, fmt::format("copy {} of {} ({} bytes from {:#x} to {:#x})", i, count, plan.sizes[i],
                                               plan.from[i], plan.to[i]));
    }
  }
  return Status::Ok();
}

Status EnqueueRows(const CudaContext& context, const CudaCopyPlan::Rows& rows, CopyDirection direction, CUstream lane) {
  CUDA_MEMCPY2D copy{};
  copy.WidthInBytes = rows.width;
  copy.Height = rows.height;
  const CUmemorytype memory_type = direction == CopyDirection::kToStaging ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  if (direction == CopyDirection::kToDevice) {
    copy.srcMemoryType = memory_type;
    copy.srcHost = rows.memory;
    copy.srcPitch = rows.memory_pitch;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = rows.tensor;
    copy.dstPitch = rows.pitch;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = rows.tensor;
    copy.srcPitch = rows.pitch;
    copy.dstMemoryType = memory_type;
    copy.dstHost = rows.memory;
    copy.dstDevice = reinterpret_cast<CUdeviceptr>(rows.memory);
    copy.dstPitch = rows.memory_pitch;
  }
  const CUresult result = context.driver().memcpy_2d_async(&copy, lane);
  if (result == CUDA_SUCCESS) return Status::Ok();
  return context.Check(result, fmt::format("a copy of {} rows of {} bytes, {} apart on the GPU and {} in memory",
                                           rows.height, rows.width, rows.pitch, rows.memory_pitch));
}

}  // namespace

Status EnqueueCopies(const CudaContext& context, CudaCopyPlan& plan, CopyDirection direction, CUstream lane) {
  CAIRN_RETURN_IF_ERROR(EnqueueRuns(context, plan, lane));
  for (const CudaCopyPlan::Rows& rows : plan.rows) {
    CAIRN_RETURN_IF_ERROR(EnqueueRows(context, rows, direction, lane));
  }
  return Status::Ok();
}

}  // namespace cairn
