#include "device/cuda_host_memory.h"

#include <array>
#include <cstdint>

namespace cairn {

bool IsDriversMemory(const CudaContext& context, const std::byte* at) {
  // CUDA leaves these as they are, or zero, for a pointer that it does not know.
  unsigned int memory_type = 0;
  unsigned int managed = 0;
  std::array<CUpointer_attribute, 2> attributes = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  std::array<void*, 2> values = {&memory_type, &managed};
  const Status found = context.Run([&] {
    return context.Check(context.driver().pointer_get_attributes(attributes.size(), attributes.data(), values.data(),
                                                                 reinterpret_cast<std::uintptr_t>(at)),
                         "finding the owner of a CPU tensor's memory");
  });
  return found.ok() && (memory_type == CU_MEMORYTYPE_HOST || managed != 0);
}

}  // namespace cairn
