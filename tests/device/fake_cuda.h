#pragma once

#include <string>

#include "device/cuda_api.h"

/// Controls of the CUDA driver's test double (see fake_cuda.cc), in addition to the driver API that it exports.
namespace cairn::fake_cuda {

/// Resets to a healthy driver of CUDA 13.0 with two GPUs and no calls counted. No device may exist.
void Reset();
void SetDriverVersion(int version);
void SetGpus(int count);
/// Hides the function from cuGetProcAddress.
void Hide(const std::string& function);
/// After `after` more successful calls of the function, one fails with `result` and does nothing.
void Fail(const std::string& function, CUresult result, int after = 0);
/// Simulates a sticky error: drops all queued work, and every later call returns the error.
void SetSticky(CUresult result);
[[nodiscard]] int Calls(const std::string& function);
/// Streams, events, allocations, registered ranges and retained contexts that were created and not released.
[[nodiscard]] int LiveObjects();

}  // namespace cairn::fake_cuda
