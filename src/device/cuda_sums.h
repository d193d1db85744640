#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "device/cuda_context.h"
#include "device/cuda_sum_plan.h"

namespace cairn {

/// The kernel that sums up in one GPU's context, and the pinned memory for its slices' numbers, one place for each
/// batch in flight. Safe from any thread after Load.
class CudaSums {
 public:
  /// The context must outlive this.
  explicit CudaSums(const CudaContext& context) : context_(context) {}
  ~CudaSums();
  CudaSums(const CudaSums&) = delete;
  CudaSums& operator=(const CudaSums&) = delete;

  /// Called once, with the context current, which compiles the kernel for this GPU: for `batches` in flight of at most
  /// `bytes` each. A driver or GPU that cannot run it is no error: Check then says why.
  void Load(std::uint64_t bytes, std::uint64_t batches) CAIRN_EXCLUDES(mutex_);
  /// With the context current. No launch may be in flight.
  void Unload();

  /// Device::CheckSums.
  [[nodiscard]] Status Check(std::span<const CopyPiece> pieces) const;

  /// A batch's plan and its place for the numbers, until it is destroyed. The CudaSums must outlive it.
  class Batch {
   public:
    Batch(CudaSums& owner, CudaSumPlan plan, std::uint32_t* slices);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    [[nodiscard]] std::size_t launches() const { return plan_.tables.size(); }
    /// Enqueues the launches in a stream of the context, which must be current. On failure some may be in flight.
    [[nodiscard]] Status Launch(CUstream lane) const;
    /// Once the launches are done.
    void Combine(std::uint32_t* sums) const { CombineSlices(plan_, slices_, sums); }

   private:
    CudaSums& owner_;
    CudaSumPlan plan_;
    std::uint32_t* const slices_;
  };
  /// Unsupported as from Check; ResourceExhausted beyond the batches given to Load.
  [[nodiscard]] Result<std::shared_ptr<const Batch>> Plan(std::span<const CopyPiece> pieces) CAIRN_EXCLUDES(mutex_);

 private:
  [[nodiscard]] Status LoadModule();
  [[nodiscard]] Status MapPlaces(std::uint64_t batches) CAIRN_EXCLUDES(mutex_);

  const CudaContext& context_;
  // Constant after Load.
  CUmodule module_ = nullptr;
  CUfunction sum_slices_ = nullptr;
  MutableBytes memory_;
  bool pinned_ = false;
  std::uint64_t most_bytes_ = 0;
  std::string why_not_ = "it was not asked to";

  mutable Mutex mutex_;
  std::vector<std::uint32_t*> free_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
