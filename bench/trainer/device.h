#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace cairn::trainer {

/// "cpu" or "cuda" (device 0), ready for use: torch's CUDA library is loaded if needed, and results are deterministic.
/// `threads` is the number of CPU threads; 0 means torch's default. Throws std::runtime_error if the device is
/// unavailable.
at::Device PrepareDevice(const std::string& name, int threads);

/// Throws std::runtime_error if `what` needs `bytes` more memory than the device has left. Does nothing for a GPU,
/// where torch reports this itself.
void CheckMemory(at::Device device, const std::string& what, std::uint64_t bytes);

/// torch's threads for one operation. Results are bit-identical only between runs with the same number.
int IntraOpThreads();

/// The random generator that torch's operations use by default.
at::Generator DefaultGenerator(at::Device device);

}  // namespace cairn::trainer
