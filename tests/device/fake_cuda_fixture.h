#pragma once

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <memory>
#include <vector>

#include "device/cuda_context.h"
#include "device/cuda_driver.h"
#include "device/fake_cuda.h"

namespace cairn {

/// Calls the driver's double directly, with the context of GPU 0 current, and its streams, events and memory.
class FakeCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda::Reset();
    Result<std::shared_ptr<const CudaDriver>> loaded = CudaDriver::Load();
    ASSERT_EQ(loaded.status(), Status::Ok());
    driver_ = *loaded;
    for (int gpu = 0; gpu < 2; ++gpu) ASSERT_EQ(driver_->primary_ctx_retain(&contexts_[gpu], gpu), CUDA_SUCCESS);
    ASSERT_EQ(driver_->ctx_push_current(contexts_[0]), CUDA_SUCCESS);
  }
  void TearDown() override {
    fake_cuda::ReleaseWaits();
    fake_cuda::ReleaseWork();
    CUcontext popped = nullptr;
    EXPECT_EQ(driver_->ctx_pop_current(&popped), CUDA_SUCCESS);
    for (int gpu = 0; gpu < 2; ++gpu) EXPECT_EQ(driver_->primary_ctx_release(gpu), CUDA_SUCCESS);
    fake_cuda::Reset();
    for (const auto& [at, bytes] : mapped_) ::munmap(at, bytes);
  }

  /// One of the functions that CudaDriver does not have.
  template <typename Function>
  static Function Find(const char* name, int since) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto get = reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"));
    void* address = nullptr;
    EXPECT_EQ(get(name, &address, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM), CUDA_SUCCESS) << name;
    return reinterpret_cast<Function>(address);
  }

  const CudaDriver& cuda() { return *driver_; }
  CUstream MakeStream(unsigned int flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuda().stream_create(&stream, flags), CUDA_SUCCESS);
    return stream;
  }
  CUevent MakeEvent(unsigned int flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) {
    CUevent event = nullptr;
    EXPECT_EQ(cuda().event_create(&event, flags), CUDA_SUCCESS);
    return event;
  }
  CUdeviceptr MakeGpuMemory(std::size_t bytes) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuda().mem_alloc(&at, bytes), CUDA_SUCCESS);
    return at;
  }
  std::byte* MakePageable(std::size_t bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapped_.emplace_back(at, bytes);
    return static_cast<std::byte*>(at);
  }
  std::byte* MakePinned(std::size_t bytes) {
    std::byte* const at = MakePageable(bytes);
    EXPECT_EQ(cuda().mem_host_register(at, bytes, kMemHostRegisterPortable), CUDA_SUCCESS);
    return at;
  }
  static CUdeviceptr Address(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }
  /// Makes GPU `gpu`'s context current for a call.
  template <typename Body>
  auto On(int gpu, const Body& body) {
    EXPECT_EQ(driver_->ctx_push_current(contexts_[static_cast<std::size_t>(gpu)]), CUDA_SUCCESS);
    auto result = body();
    CUcontext popped = nullptr;
    EXPECT_EQ(driver_->ctx_pop_current(&popped), CUDA_SUCCESS);
    return result;
  }

  std::shared_ptr<const CudaDriver> driver_;
  std::array<CUcontext, 2> contexts_{};
  std::vector<std::pair<void*, std::size_t>> mapped_;
};

}  // namespace cairn
