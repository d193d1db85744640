// Memory of the GPUs, and the host's that is registered. GPU memory is the host's memory here, but the host's code
// cannot touch it: only an operation that runs can. Managed memory both may touch.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {
namespace {

constexpr std::size_t kGpuBytes = 256U << 20;
constexpr std::size_t kPage = 4096;
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulate = MADV_POPULATE_WRITE;
#else
constexpr int kPopulate = 23;  // Linux 5.14.
#endif

std::size_t Pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
void* Pointer(CUdeviceptr at) { return reinterpret_cast<void*>(at); }

CUresult Allocate(CUdeviceptr* at, std::size_t bytes, bool managed) {
  Driver& d = driver();
  const int gpu = current_contexts.back()->gpu;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::size_t used = 0;
  for (const auto& [start, range] : d.allocations) used += range.gpu == gpu ? range.bytes : 0;
  if (bytes > kGpuBytes - std::min(used, kGpuBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int access = managed ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* const memory = ::mmap(nullptr, Pages(bytes), access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = reinterpret_cast<CUdeviceptr>(memory);
  d.allocations[*at] = {.bytes = bytes, .gpu = gpu, .managed = managed};
  return CUDA_SUCCESS;
}

// The range that holds the first byte; `cut` if the bytes are not all inside one range, or all outside of all.
Ranges::const_iterator Find(const Ranges& ranges, CUdeviceptr at, std::size_t bytes, bool* cut) {
  const auto after = ranges.upper_bound(at);
  *cut = after != ranges.end() && after->first < at + bytes;
  if (after == ranges.begin()) return ranges.end();
  const auto found = std::prev(after);
  const CUdeviceptr end = found->first + found->second.bytes;
  if (at >= end) return ranges.end();
  *cut = *cut || at + bytes > end;
  return found;
}

}  // namespace

Place PlaceOf(CUdeviceptr at, std::size_t bytes) {
  const Driver& d = driver();
  bool cut = false;
  const bool gpu = Find(d.allocations, at, bytes, &cut) != d.allocations.end();
  if (cut) return Place::kCut;
  if (gpu) return Place::kGpu;
  const bool freed = Find(d.freed, at, bytes, &cut) != d.freed.end();
  if (freed || cut) return Place::kFreed;
  const bool pinned = Find(d.registered, at, bytes, &cut) != d.registered.end();
  if (cut) return Place::kCut;
  return pinned ? Place::kPinned : Place::kPageable;
}

Ranges RangesForKernels(int gpu) {
  Ranges ranges;
  for (const auto& [at, range] : driver().allocations) {
    if (range.gpu == gpu) ranges[at] = range;
  }
  for (const auto& [at, range] : driver().registered) {
    if (range.mapped) ranges[at] = range;
  }
  return ranges;
}

bool Holds(const Ranges& ranges, CUdeviceptr at, std::size_t bytes) {
  bool cut = false;
  return Find(ranges, at, bytes, &cut) != ranges.end() && !cut;
}

GpuAccess::GpuAccess() {
  const Lock lock(driver().mutex);
  for (const auto& [at, range] : driver().allocations) {
    if (!range.managed) ranges_[at] = range.bytes;
  }
  Open();
}

GpuAccess::GpuAccess(const std::vector<CUdeviceptr>& addresses) {
  const Lock lock(driver().mutex);
  for (const CUdeviceptr at : addresses) {
    bool cut = false;
    const auto found = Find(driver().allocations, at, 1, &cut);
    if (found != driver().allocations.end() && !found->second.managed) ranges_[found->first] = found->second.bytes;
  }
  Open();
}

GpuAccess::~GpuAccess() {
  for (const auto& [at, bytes] : ranges_) ::mprotect(Pointer(at), Pages(bytes), PROT_NONE);
}

void GpuAccess::Open() const {
  for (const auto& [at, bytes] : ranges_) ::mprotect(Pointer(at), Pages(bytes), PROT_READ | PROT_WRITE);
}

CUresult MemGetInfo(std::size_t* free, std::size_t* total) {
  FAKE_CUDA_ENTER("cuMemGetInfo", kContext);
  *total = kGpuBytes;
  *free = kGpuBytes;
  for (const auto& [at, range] : driver().allocations) {
    if (range.gpu == current_contexts.back()->gpu) *free -= range.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult MemAlloc(CUdeviceptr* at, std::size_t bytes) {
  FAKE_CUDA_ENTER("cuMemAlloc", kContext | kUnsafeBesideCapture);
  return Allocate(at, bytes, false);
}

CUresult MemAllocManaged(CUdeviceptr* at, std::size_t bytes, unsigned int flags) {
  FAKE_CUDA_ENTER("cuMemAllocManaged", kContext | kUnsafeBesideCapture);
  return flags == kMemAttachGlobal ? Allocate(at, bytes, true) : CUDA_ERROR_INVALID_VALUE;
}

// Work that is enqueued may still use the memory: unlike the real function, this does not wait for it.
CUresult MemFree(CUdeviceptr at) {
  FAKE_CUDA_ENTER("cuMemFree", kContext | kUnsafeBesideCapture);
  Driver& d = driver();
  const auto found = d.allocations.find(at);
  if (found == d.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  AwaitRunning(call.lock());
  // The addresses stay taken, so that a late use is found.
  const std::size_t bytes = Pages(found->second.bytes);
  ::mmap(Pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  d.freed[at] = {bytes, found->second.gpu};
  d.allocations.erase(found);
  return CUDA_SUCCESS;
}

CUresult MemHostRegister(void* memory, std::size_t bytes, unsigned int flags) {
  FAKE_CUDA_ENTER("cuMemHostRegister", kContext | kUnsafeBesideCapture);
  Driver& d = driver();
  if (bytes == 0 || (flags & kMemHostRegisterPortable) == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  bool cut = false;
  if (Find(d.registered, at, bytes, &cut) != d.registered.end() || cut) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  // The driver pins every page: there are none behind the end of a file, and none where nothing is mapped.
  const CUdeviceptr first = at / kPage * kPage;
  if (::madvise(Pointer(first), at + bytes - first, kPopulate) != 0 && errno != EINVAL) return CUDA_ERROR_INVALID_VALUE;
  d.registered[at] = {bytes, current_contexts.back()->gpu, (flags & kMemHostRegisterDeviceMap) != 0};
  return CUDA_SUCCESS;
}

CUresult MemHostUnregister(void* memory) {
  FAKE_CUDA_ENTER("cuMemHostUnregister", kContext | kUnsafeBesideCapture);
  AwaitRunning(call.lock());
  Driver& d = driver();
  const auto found = d.registered.find(reinterpret_cast<CUdeviceptr>(memory));
  if (found == d.registered.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  const CUdeviceptr first = found->first / kPage * kPage;
  std::vector<unsigned char> resident(Pages(found->first + found->second.bytes - first) / kPage);
  if (::mincore(Pointer(first), found->first + found->second.bytes - first, resident.data()) != 0) {
    Misuse("cuMemHostUnregister: the memory was unmapped before");
  }
  d.registered.erase(found);
  return CUDA_SUCCESS;
}

CUresult PointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values, CUdeviceptr at) {
  FAKE_CUDA_ENTER("cuPointerGetAttributes", kContext);
  const Driver& d = driver();
  bool cut = false;
  const auto gpu = Find(d.allocations, at, 1, &cut);
  const auto host = Find(d.registered, at, 1, &cut);
  for (unsigned int i = 0; i < count; ++i) {
    auto* value = static_cast<unsigned int*>(values[i]);
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *value = 0;
      if (gpu != d.allocations.end()) *value = CU_MEMORYTYPE_DEVICE;
      if (host != d.registered.end()) *value = CU_MEMORYTYPE_HOST;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
      *value = gpu != d.allocations.end() && gpu->second.managed ? 1 : 0;
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      int ordinal = -2;
      if (gpu != d.allocations.end()) ordinal = gpu->second.gpu;
      if (host != d.registered.end()) ordinal = host->second.gpu;
      std::memcpy(value, &ordinal, sizeof(ordinal));
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
      const bool mapped = gpu != d.allocations.end() || (host != d.registered.end() && host->second.mapped);
      const CUdeviceptr on_gpu = mapped ? at : 0;
      std::memcpy(values[i], &on_gpu, sizeof(on_gpu));
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

void FreeAllMemory() {
  Driver& d = driver();
  for (const Ranges* ranges : {&d.allocations, &d.freed}) {
    for (const auto& [at, range] : *ranges) ::munmap(Pointer(at), Pages(range.bytes));
  }
  d.allocations.clear();
  d.freed.clear();
  d.registered.clear();
}

}  // namespace cairn::fake_cuda
