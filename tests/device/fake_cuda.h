#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda_api.h"

/// Controls of the CUDA driver's test double (tests/device/fake_cuda/), in addition to the driver API that it exports.
///
/// Programs that know nothing of it are steered by the environment. FAKE_CUDA_KERNELS=1: they have Cairn's kernels.
/// FAKE_CUDA_BROKEN: a list of what the driver does wrong without saying so, for tests that must notice: copies (leave
/// out their last byte), events (nobody waits for them), kernels (do nothing). It holds for tests as well.
///
/// It checks what the driver's documentation demands. What the real driver would silently accept, although Cairn never
/// means to do it, is a misuse: a test that expects none looks at Misuses().
namespace cairn::fake_cuda {

/// Resets to a healthy driver of CUDA 13.0 with two GPUs and no calls counted. No device may exist. The schedule's seed
/// is 0, or, where the environment has FAKE_CUDA_SEED=N, N at the first reset of the process and one more at each later
/// one.
void Reset();
void SetDriverVersion(int version);
void SetGpus(int count);
/// What cuDeviceGetAttribute answers, for every GPU.
void SetAttribute(CUdevice_attribute attribute, int value);
/// Hides the function from cuGetProcAddress.
void Hide(const std::string& function);
/// After `after` more successful calls of the function, one fails with `result` and does nothing.
void Fail(const std::string& function, CUresult result, int after = 0);
/// Simulates a sticky error of all GPUs, or of one: drops all queued work, and every later call within its context
/// returns the error.
void SetSticky(CUresult result);
void SetSticky(CUresult result, int gpu);

/// Streams run in one of the legal orders, chosen by the seed, with delays: an operation runs, and a thread that waits
/// for an event wakes, long after it could. 0, the default: each as soon as possible.
void SetSchedule(std::uint64_t seed);
[[nodiscard]] std::uint64_t Seed();
/// No operation begins between the two.
void HoldWork();
void ReleaseWork();
/// No cuEventSynchronize ends between the two: no CPU is free for the threads that wait for events.
void HoldWaits();
void ReleaseWaits();

struct Launch {
  std::array<unsigned int, 3> grid{};
  std::array<unsigned int, 3> block{};
  unsigned int shared = 0;
  int gpu = 0;
};
/// A kernel that every loaded module has. `run` is called once for a launch, where it may touch GPU memory.
struct Kernel {
  std::vector<std::size_t> argument_bytes;
  std::function<void(const Launch& launch, void** arguments)> run;
};
void DefineKernel(const std::string& name, Kernel kernel);
/// Defines the kernels of Cairn's PTX, which a module must then have, and which must be compiled from the same source:
/// copy_kernels.h and sum_kernel.h, run by the host, thread by thread. A bad access is a sticky error.
void DefineCairnsKernels();

[[nodiscard]] int Calls(const std::string& function);
/// Calls that waited because a stream already had 1,024 operations outstanding (a batch counts each of its copies): the
/// call that found it full, and others, which the driver's lock then keeps out.
[[nodiscard]] int BlockedLaunches();
/// One line for each: pageable memory in a copy, a wait for an event that was never recorded, a thread that spins until
/// an event, an event that is recorded again or destroyed while a thread waits for it, a handle of another context, a
/// call without a context.
[[nodiscard]] std::vector<std::string> Misuses();
/// Streams, events, allocations, registered ranges, modules and retained contexts that were created and not released,
/// also if their context is gone. Of a lost context only whether it is retained: the driver frees the rest with it, and
/// refuses to before.
[[nodiscard]] int LiveObjects();
[[nodiscard]] std::string DescribeLiveObjects();

}  // namespace cairn::fake_cuda
