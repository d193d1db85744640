#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "cairn/tensor.h"

namespace cairn::trainer {

/// "cpu" or "cuda" (device 0), ready for use: torch's CUDA half is loaded, and both halves are told to compute the same
/// thing the same way each time. `threads` are the CPU's, 0 means as many as torch would take. Throws
/// std::runtime_error where the device is not there.
at::Device PrepareDevice(const std::string& name, int threads);

/// Throws std::runtime_error where the device's memory cannot take `bytes` more, which `what` needs. On a GPU torch
/// itself says so.
void CheckMemory(at::Device device, const std::string& what, std::uint64_t bytes);

/// torch's threads for one operation: results are the same bit by bit only among runs with the same number.
int IntraOpThreads();

/// The stream that torch works on, as Cairn takes it.
cairn::Stream CurrentStream(at::Device device);

/// The generator that torch's own operations draw from.
at::Generator DefaultGenerator(at::Device device);

/// A view of the tensor's memory. Throws std::runtime_error for an element type that Cairn has not.
cairn::TensorView ViewOf(const at::Tensor& tensor);

}  // namespace cairn::trainer
