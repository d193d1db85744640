#include "device/cuda_context.h"

#include <array>

#include "base/status_macros.h"

namespace cairn {
namespace {

bool IsSticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

}  // namespace

// Calls that the driver considers unsafe during a capture, such as a stream query, would invalidate a global capture
// elsewhere in the process (torch captures in this mode). Ours never touch a capturing stream, so the mode is relaxed.
CudaContext::Scope::Scope(const CudaContext& context)
    : driver_(*context.driver_), result_(driver_.ctx_push_current(context.context_)) {
  if (result_ == CUDA_SUCCESS) (void)driver_.thread_exchange_capture_mode(&capture_mode_);
}

CudaContext::Scope::~Scope() {
  if (result_ != CUDA_SUCCESS) return;
  (void)driver_.thread_exchange_capture_mode(&capture_mode_);
  CUcontext popped = nullptr;
  (void)driver_.ctx_pop_current(&popped);
}

CudaContext::~CudaContext() {
  if (context_ != nullptr) (void)driver_->primary_ctx_release(device_);
}

Status CudaContext::Retain() {
  CAIRN_ASSIGN_OR_RETURN(device_, driver_->FindDevice(index_));
  CUcontext context = nullptr;
  CAIRN_RETURN_IF_ERROR(Check(driver_->primary_ctx_retain(&context, device_), "retaining the primary context"));
  context_ = context;
  return Status::Ok();
}

std::optional<NumaNode> CudaContext::FindNumaNode() const {
  std::array<char, 32> bus_id{};
  const auto get = driver_->device_get_pci_bus_id;
  if (get == nullptr || get(bus_id.data(), static_cast<int>(bus_id.size()), device_) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  return NumaNodeOfPci(bus_id.data());
}

Status CudaContext::sticky() const {
  const MutexLock lock(mutex_);
  return sticky_;
}

Status CudaContext::SetSticky(CUresult result, std::string_view what) const {
  const MutexLock lock(mutex_);
  if (sticky_.ok()) {
    sticky_ = Error(StatusCode::kDeviceError, "cuda:{}: {}: {}; this process cannot use the GPU's context any more",
                    index_, what, driver_->Describe(result));
  }
  return sticky_;
}

Status CudaContext::Fail(CUresult result, std::string_view what) const {
  if (IsSticky(result)) return SetSticky(result, what);
  if (Status sticky = this->sticky(); !sticky.ok()) return sticky;
  const StatusCode code =
      result == CUDA_ERROR_OUT_OF_MEMORY ? StatusCode::kResourceExhausted : StatusCode::kDeviceError;
  return Error(code, "cuda:{}: {}: {}", index_, what, driver_->Describe(result));
}

bool CudaContext::KnowsHostMemory(const std::byte* at) const {
  // CUDA leaves these as they are, or zero, for a pointer that it does not know.
  unsigned int memory_type = 0;
  unsigned int managed = 0;
  std::array<CUpointer_attribute, 2> attributes = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  std::array<void*, 2> values = {&memory_type, &managed};
  const Status found = Run([&] {
    return Check(driver().pointer_get_attributes(attributes.size(), attributes.data(), values.data(),
                                                 reinterpret_cast<std::uintptr_t>(at)),
                 "finding the owner of a CPU tensor's memory");
  });
  return found.ok() && (memory_type == CU_MEMORYTYPE_HOST || managed != 0);
}

}  // namespace cairn
