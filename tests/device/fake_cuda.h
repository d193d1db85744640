#pragma once

#include <cuda.h>

#include <string>

/// Controls of the CUDA driver's test double (fake_cuda.cc says what it is), beside the driver API that it exports.
namespace fake_cuda {

/// Back to a healthy driver of CUDA 13.0 with two GPUs, no calls counted. Between devices.
void Reset();
void SetDriverVersion(int version);
void SetGpus(int count);
/// The driver has no such function: cuGetProcAddress does not find it.
void Hide(const std::string& function);
/// Once `after` more calls of the function have gone well, one fails with `result`, and does nothing.
void Fail(const std::string& function, CUresult result, int after = 0);
/// Something ran into a sticky error: whatever is queued is dropped, and every later call returns it.
void Stick(CUresult result);
[[nodiscard]] int Calls(const std::string& function);
/// Streams, events, allocations, registered ranges and retained contexts that were made and not given back.
[[nodiscard]] int LiveObjects();

}  // namespace fake_cuda
