#include "device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <malloc.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace cairn::trainer {
namespace {

at::Device PrepareCuda() {
  // cuBLAS reads this when it starts, and is deterministic only with it.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // NOLINT(concurrency-mt-unsafe): nobody reads it yet.
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error(std::string("--device cuda: this torch was built without CUDA: ") + ::dlerror());
  }
  if (!at::globalContext().hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) {
    throw std::runtime_error("--device cuda: no CUDA device found (is the driver loaded?)");
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  return {at::kCUDA, 0};
}

/// Keeps freed memory in the heap. Each step frees and allocates hundreds of megabytes of gradients; if they went back
/// to the kernel in between, page faults would cost VGG-16 0.6 CPU seconds a step.
void KeepFreedMemory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace

at::Device PrepareDevice(const std::string& name, int threads) {
  at::Context& context = at::globalContext();
  if (threads > 0) at::set_num_threads(threads);
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
  context.setBenchmarkCuDNN(false);
  if (name == "cpu") {
    KeepFreedMemory();
    return at::kCPU;
  }
  if (name == "cuda") return PrepareCuda();
  throw std::runtime_error("--device " + name + ": expected cpu or cuda");
}

void CheckMemory(at::Device device, const std::string& what, std::uint64_t bytes) {
  if (!device.is_cpu()) return;
  constexpr std::uint64_t kKi = 1024;
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word && word != "MemAvailable:") {
  }
  std::uint64_t available = 0;
  if (!(file >> available) || bytes <= available * kKi) return;
  const auto in_gb = [](std::uint64_t size) { return std::to_string(size / 1'000'000'000) + " GB"; };
  throw std::runtime_error("out of memory: " + what + ": expected " + in_gb(bytes) + " available, found " +
                           in_gb(available * kKi));
}

int IntraOpThreads() { return at::get_num_threads(); }

at::Generator DefaultGenerator(at::Device device) { return at::globalContext().defaultGenerator(device); }

}  // namespace cairn::trainer
