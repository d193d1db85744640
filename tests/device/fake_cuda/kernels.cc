// Modules and kernels. A kernel is a function of the test, which DefineKernel gives a name.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "device/fake_cuda/driver.h"

namespace cairn::fake_cuda {
namespace {

constexpr unsigned int kMaxThreads = 1024;
constexpr unsigned int kMaxGridYZ = 65535;

FakeFunction* FindFunction(CUfunction handle) {
  auto* function = reinterpret_cast<FakeFunction*>(handle);
  return driver().functions.contains(function) ? function : nullptr;
}

bool IsPtx(const void* image) {
  const std::string_view text(static_cast<const char*>(image));
  return text.find(".version") != text.npos && text.find(".target") != text.npos;
}

}  // namespace

CUresult ModuleLoadData(CUmodule* handle, const void* image) {
  FAKE_CUDA_ENTER("cuModuleLoadData", kContext | kUnsafeBesideCapture);
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsPtx(image)) return CUDA_ERROR_INVALID_IMAGE;
  const std::vector<std::string_view>& images = driver().images;
  if (!images.empty() && std::find(images.begin(), images.end(), static_cast<const char*>(image)) == images.end()) {
    return CUDA_ERROR_INVALID_PTX;
  }
  Context& context = *current_contexts.back();
  auto* loaded = new FakeModule{.context = &context};
  context.modules.insert(loaded);
  *handle = reinterpret_cast<CUmodule>(loaded);
  return CUDA_SUCCESS;
}

CUresult ModuleUnload(CUmodule handle) {
  FAKE_CUDA_ENTER("cuModuleUnload", kContext | kUnsafeBesideCapture);
  Context& context = *current_contexts.back();
  auto* loaded = reinterpret_cast<FakeModule*>(handle);
  if (!context.modules.contains(loaded)) return CUDA_ERROR_INVALID_HANDLE;
  UnloadModule(context, loaded);
  return CUDA_SUCCESS;
}

void UnloadModule(Context& context, FakeModule* loaded) {
  context.modules.erase(loaded);
  std::erase_if(driver().functions, [&](FakeFunction* function) {
    if (function->module != loaded) return false;
    delete function;
    return true;
  });
  delete loaded;
}

CUresult ModuleGetFunction(CUfunction* handle, CUmodule module, const char* name) {
  FAKE_CUDA_ENTER("cuModuleGetFunction", kContext);
  Driver& d = driver();
  Context& context = *current_contexts.back();
  auto* loaded = reinterpret_cast<FakeModule*>(module);
  if (!context.modules.contains(loaded)) return CUDA_ERROR_INVALID_HANDLE;
  if (!d.kernels.contains(name)) return CUDA_ERROR_NOT_FOUND;
  auto* function = new FakeFunction{.context = &context, .module = loaded, .name = name};
  d.functions.insert(function);
  *handle = reinterpret_cast<CUfunction>(function);
  return CUDA_SUCCESS;
}

CUresult LaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                      CUstream handle_of_stream, void** arguments, void** extra) {
  FAKE_CUDA_ENTER("cuLaunchKernel", kContext);
  FakeStream* stream = nullptr;
  if (const CUresult found = FindForWork(handle_of_stream, &stream); found != CUDA_SUCCESS) return found;
  const FakeFunction* const function = FindFunction(handle);
  if (function == nullptr || function->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > kMaxThreads || grid_y > kMaxGridYZ ||
      grid_z > kMaxGridYZ || extra != nullptr || grid_x > 0x7fffffff) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Kernel& kernel = driver().kernels.at(function->name);
  // The driver copies the arguments in the call, too.
  std::vector<std::vector<std::byte>> copies;
  for (std::size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
    copies.emplace_back(kernel.argument_bytes[i]);
    std::memcpy(copies.back().data(), arguments[i], kernel.argument_bytes[i]);
  }
  const Launch launch{.grid = {grid_x, grid_y, grid_z},
                      .block = {block_x, block_y, block_z},
                      .shared = shared_bytes,
                      .gpu = stream->context->gpu};
  return Enqueue(call, *stream, {.run = [run = kernel.run, launch, copies = std::move(copies)]() mutable {
                   const GpuAccess access;
                   std::vector<void*> pointers;
                   for (std::vector<std::byte>& copy : copies) pointers.push_back(copy.data());
                   if (!Broken("kernels")) run(launch, pointers.data());
                   return CUDA_SUCCESS;
                 }});
}

}  // namespace cairn::fake_cuda
