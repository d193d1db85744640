#include "device/cuda_sums.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/status_macros.h"
#include "device/cuda_kernels.h"

namespace cairn {
namespace {

// Made by scripts/make-ptx from sum_kernel.h. The driver compiles it for its GPU.
constexpr char kSumPtx[] =
#include "device/sum_kernel.ptx.inc"
    ;

// Few, to leave the GPU to training.
constexpr std::uint64_t kMostBlocks = 64;
// A line of the GPU's cache, so that no two batches share one.
constexpr std::uint64_t kPlaceAlignment = 128;

}  // namespace

CudaSums::~CudaSums() {
  if (memory_.empty()) return;
  {
    // Also after the context failed: memory must not stay page-locked after it is unmapped.
    const CudaContext::Scope scope(context_);
    if (pinned_ && scope.result() == CUDA_SUCCESS) (void)context_.driver().mem_host_unregister(memory_.data());
  }
  (void)munmap(memory_.data(), memory_.size());
}

void CudaSums::Load(std::uint64_t bytes, std::uint64_t batches) {
  most_bytes_ = bytes;
  Status status = LoadModule();
  if (status.ok()) status = MapPlaces(batches);
  if (status.ok()) return;
  why_not_ = status.message();
  Unload();
}

Status CudaSums::LoadModule() {
  const CudaDriver& driver = context_.driver();
  if (!driver.loads_kernels()) {
    return Error(StatusCode::kUnsupported, "the driver lacks the functions that load kernels");
  }
  CAIRN_RETURN_IF_ERROR(context_.Check(driver.module_load_data(&module_, kSumPtx), "loading the kernel that sums up"));
  return context_.Check(driver.module_get_function(&sum_slices_, module_, "cairn_sum_slices"), "finding a kernel");
}

Status CudaSums::MapPlaces(std::uint64_t batches) {
  const std::uint64_t place = AlignUp(MaxSlices(most_bytes_) * sizeof(std::uint32_t), kPlaceAlignment);
  const std::uint64_t bytes = AlignUp(place * batches, kBlock);
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Error(StatusCode::kResourceExhausted, "no memory for {} bytes of sums", bytes);
  }
  memory_ = {static_cast<std::byte*>(mapped), bytes};
  (void)madvise(mapped, bytes, MADV_DONTFORK);
  CAIRN_RETURN_IF_ERROR(context_.Check(
      context_.driver().mem_host_register(mapped, bytes, kMemHostRegisterPortable | kMemHostRegisterDeviceMap),
      "pinning memory for sums"));
  pinned_ = true;
  if (!GpuReaches(context_, memory_)) {
    return Error(StatusCode::kUnsupported, "the GPU does not reach host memory by the host's addresses");
  }
  const MutexLock lock(mutex_);
  for (std::uint64_t i = batches; i-- > 0;) {
    free_.push_back(reinterpret_cast<std::uint32_t*>(memory_.data() + i * place));
  }
  return Status::Ok();
}

void CudaSums::Unload() {
  if (module_ != nullptr) (void)context_.driver().module_unload(module_);
  module_ = nullptr;
}

Status CudaSums::Check(std::span<const CopyPiece> pieces) const {
  if (module_ == nullptr) {
    return Error(StatusCode::kUnsupported, "cuda:{} does not compute checksums: {}", context_.index(), why_not_);
  }
  if (pieces.empty() || PlanCudaSums(pieces, most_bytes_)) return Status::Ok();
  return Error(StatusCode::kUnsupported,
               "cuda:{} computes checksums of contiguous tensors, of at most {} bytes in some thousand pieces",
               context_.index(), most_bytes_);
}

Result<std::shared_ptr<const CudaSums::Batch>> CudaSums::Plan(std::span<const CopyPiece> pieces) {
  CAIRN_RETURN_IF_ERROR(Check({}));
  std::optional<CudaSumPlan> plan = PlanCudaSums(pieces, most_bytes_);
  if (!plan) return Check(pieces);
  std::uint32_t* place = nullptr;
  {
    const MutexLock lock(mutex_);
    if (free_.empty()) {
      return Error(StatusCode::kResourceExhausted, "cuda:{}: more batches with sums than it was opened for",
                   context_.index());
    }
    place = free_.back();
    free_.pop_back();
  }
  return std::make_shared<const Batch>(*this, *std::move(plan), place);
}

CudaSums::Batch::Batch(CudaSums& owner, CudaSumPlan plan, std::uint32_t* slices)
    : owner_(owner), plan_(std::move(plan)), slices_(slices) {
  PlaceSlices(plan_, slices);
}

CudaSums::Batch::~Batch() {
  const MutexLock lock(owner_.mutex_);
  owner_.free_.push_back(slices_);
}

Status CudaSums::Batch::Launch(CUstream lane) const {
  const CudaContext& context = owner_.context_;
  for (const kernels::SumTable& table : plan_.tables) {
    // The driver copies the parameter within the call.
    std::array<void*, 1> parameters = {const_cast<kernels::SumTable*>(&table)};
    const std::uint64_t blocks = DivideUp(SlicesOf(table), std::uint64_t{kernels::kThreadsPerBlock});
    CAIRN_RETURN_IF_ERROR(context.Check(
        context.driver().launch_kernel(owner_.sum_slices_, static_cast<unsigned int>(std::min(blocks, kMostBlocks)), 1,
                                       1, kernels::kThreadsPerBlock, 1, 1, 0, lane, parameters.data(), nullptr),
        fmt::format("a kernel that sums {} pieces", table.pieces)));
  }
  return Status::Ok();
}

}  // namespace cairn
