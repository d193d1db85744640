#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace cairn::trainer {

/// Makes the GPU of this number the current one, if `device` is a GPU, and returns it. Throws std::runtime_error if
/// there is none.
at::Device UseLocalDevice(at::Device device, int local_rank);

/// Seeds the random generators that torch's operations use by default, of the CPU and of the device.
void SeedGenerators(at::Device device, std::uint64_t seed);

}  // namespace cairn::trainer
