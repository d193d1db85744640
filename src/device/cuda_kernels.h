#pragma once

#include <map>
#include <string>

#include "base/bytes.h"
#include "base/mutex.h"
#include "device/cuda_context.h"
#include "device/cuda_kernel_plan.h"

namespace cairn {

/// Whether the GPU's kernels reach this pinned memory by its host address. With the context current.
[[nodiscard]] bool GpuReaches(const CudaContext& context, MutableBytes memory);

/// Cairn's kernels in one GPU's context, and the host memory that they may use. Safe from any thread after Load.
class CudaKernels {
 public:
  /// The context must outlive this.
  explicit CudaKernels(const CudaContext& context) : context_(context) {}
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  /// Called once, with the context current, which compiles the kernels for this GPU. A driver or GPU that cannot run
  /// them is no error: the kernels then serve nothing, and why_not() says why.
  void Load();
  /// With the context current. No launch may be in flight.
  void Unload();
  [[nodiscard]] bool loaded() const { return module_ != nullptr; }
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

  /// Notes pinned memory, with the context current, if the GPU reaches it by its host address.
  void AddHostMemory(MutableBytes memory) CAIRN_EXCLUDES(mutex_);
  void RemoveHostMemory(MutableBytes memory) CAIRN_EXCLUDES(mutex_);
  /// Whether they are loaded and reach the batch's memory.
  [[nodiscard]] bool Serve(const CopyBatch& batch) const CAIRN_EXCLUDES(mutex_);

  /// Enqueues the plan's copies in a stream of the context, which must be current. On failure some may be in flight.
  [[nodiscard]] Status Launch(const CudaKernelPlan& plan, CopyDirection direction, CUstream lane) const;

 private:
  [[nodiscard]] Status LoadModule();

  const CudaContext& context_;
  // Constant after Load.
  CUmodule module_ = nullptr;
  CUfunction copy_strided_ = nullptr;
  CUfunction copy_pieces_ = nullptr;
  std::string why_not_ = "they are turned off";

  mutable Mutex mutex_;
  // Pinned ranges: begin to end.
  std::map<const std::byte*, const std::byte*> host_memory_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
