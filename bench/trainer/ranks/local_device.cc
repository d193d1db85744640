#include "ranks/local_device.h"

#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <stdexcept>
#include <string>

#include "device.h"

namespace cairn::trainer {

at::Device UseLocalDevice(at::Device device, int local_rank) {
  if (!device.is_cuda()) return device;
  const int found = at::detail::getCUDAHooks().deviceCount();
  if (local_rank >= found) {
    throw std::runtime_error("--device cuda: LOCAL_RANK: expected a number below the " + std::to_string(found) +
                             " devices found, found " + std::to_string(local_rank));
  }
  const at::Device local(at::kCUDA, static_cast<at::DeviceIndex>(local_rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(local);
  return local;
}

void SeedGenerators(at::Device device, std::uint64_t seed) {
  const auto seed_one = [seed](at::Device one) {
    at::Generator generator = DefaultGenerator(one);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  };
  seed_one(at::kCPU);
  if (!device.is_cpu()) seed_one(device);
}

}  // namespace cairn::trainer
