#include "device/cuda_kernels.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"

namespace cairn {
namespace {

// Made by scripts/make-ptx from copy_kernels.h. The driver compiles it for its GPU.
constexpr char kCopyPtx[] =
#include "device/copy_kernels.ptx.inc"
    ;

}  // namespace

bool GpuReaches(const CudaContext& context, MutableBytes memory) {
  for (const std::byte* at : {memory.data(), memory.data() + memory.size() - 1}) {
    CUdeviceptr on_gpu = 0;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    void* value = &on_gpu;
    const auto address = reinterpret_cast<CUdeviceptr>(at);
    if (context.driver().pointer_get_attributes(1, &attribute, &value, address) != CUDA_SUCCESS) return false;
    if (on_gpu != address) return false;
  }
  return true;
}

void CudaKernels::Load() {
  if (const Status status = LoadModule(); !status.ok()) {
    why_not_ = status.message();
    Unload();
  }
}

Status CudaKernels::LoadModule() {
  const CudaDriver& driver = context_.driver();
  if (!driver.loads_kernels()) {
    return Error(StatusCode::kUnsupported, "the driver lacks the functions that load kernels");
  }
  // Finding the functions is what loads the kernels where CUDA loads lazily: now, not at the first save.
  CAIRN_RETURN_IF_ERROR(context_.Check(driver.module_load_data(&module_, kCopyPtx), "loading Cairn's kernels"));
  CAIRN_RETURN_IF_ERROR(
      context_.Check(driver.module_get_function(&copy_strided_, module_, "cairn_copy_strided"), "finding a kernel"));
  return context_.Check(driver.module_get_function(&copy_pieces_, module_, "cairn_copy_pieces"), "finding a kernel");
}

void CudaKernels::Unload() {
  if (module_ != nullptr) (void)context_.driver().module_unload(module_);
  module_ = nullptr;
}

void CudaKernels::AddHostMemory(MutableBytes memory) {
  if (!loaded() || memory.empty() || !GpuReaches(context_, memory)) return;
  const MutexLock lock(mutex_);
  host_memory_[memory.data()] = memory.data() + memory.size();
}

void CudaKernels::RemoveHostMemory(MutableBytes memory) {
  const MutexLock lock(mutex_);
  host_memory_.erase(memory.data());
}

bool CudaKernels::Serve(const CopyBatch& batch) const {
  if (!loaded() || batch.pieces.empty()) return false;
  if (batch.direction == CopyDirection::kToStaging) return true;
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (const CopyPiece& piece : batch.pieces) {
    if (piece.begin >= piece.end) continue;
    const std::byte* const piece_end = piece.memory + (piece.rows - 1) * piece.memory_pitch + piece.end - piece.begin;
    begin = begin == nullptr ? piece.memory : std::min<const std::byte*>(begin, piece.memory);
    end = std::max(end, piece_end);
  }
  if (begin == nullptr) return false;
  const MutexLock lock(mutex_);
  const auto after = host_memory_.upper_bound(begin);
  return after != host_memory_.begin() && end <= std::prev(after)->second;
}

Status CudaKernels::Launch(const CudaKernelPlan& plan, CopyDirection direction, CUstream lane) const {
  const auto launch = [&](CUfunction kernel, const void* parameter, std::uint64_t words) {
    // The driver copies the parameter within the call.
    std::array<void*, 1> parameters = {const_cast<void*>(parameter)};
    return context_.driver().launch_kernel(kernel, KernelBlocks(words, direction), 1, 1, kernels::kThreadsPerBlock, 1,
                                           1, 0, lane, parameters.data(), nullptr);
  };
  for (const kernels::StridedCopy& copy : plan.strided) {
    CAIRN_RETURN_IF_ERROR(
        context_.Check(launch(copy_strided_, &copy, copy.rows * copy.words),
                       fmt::format("a kernel that copies {} rows of {} bytes", copy.rows, copy.width)));
  }
  for (const kernels::PieceTable& table : plan.tables) {
    CAIRN_RETURN_IF_ERROR(context_.Check(launch(copy_pieces_, &table, kernels::WordsOf(table)),
                                         fmt::format("a kernel that copies {} pieces", table.pieces)));
  }
  return Status::Ok();
}

}  // namespace cairn
