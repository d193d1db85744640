#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda_context.h"
#include "device/device_contract.h"

namespace cairn {

/// Functions of the driver that only tests call.
struct CudaTestFunctions {
  PFN_cuCtxGetCurrent_v4000 ctx_get_current = nullptr;
  PFN_cuStreamBeginCapture_v10010 stream_begin_capture = nullptr;
  PFN_cuStreamEndCapture_v10000 stream_end_capture = nullptr;
  PFN_cuGraphDestroy_v10000 graph_destroy = nullptr;
  PFN_cuStreamWaitValue32_v11070 stream_wait_value = nullptr;
  PFN_cuStreamWriteValue32_v11070 stream_write_value = nullptr;
  PFN_cuMemsetD8Async_v3020 memset_async = nullptr;
  PFN_cuMemAllocManaged_v6000 mem_alloc_managed = nullptr;
};

/// A GPU through MakeCudaDevice, with memory and streams of the same driver, a real one or its test double.
class CudaUnderTest final : public DeviceUnderTest {
 public:
  /// Null, with the reason, if there is no GPU or no device could be created.
  [[nodiscard]] static std::unique_ptr<CudaUnderTest> Make(std::string& why_not, int gpu = 0);
  ~CudaUnderTest() override;

  Device& device() override { return *device_; }
  std::byte* MakeTensor(Bytes contents) override;
  std::vector<std::byte> ReadTensor(const std::byte* at, std::uint64_t bytes) override;
  MutableBytes MakeHostMemory(std::uint64_t bytes) override;
  Stream MakeStream() override { return MakeStream(CU_STREAM_NON_BLOCKING); }
  void LaunchOnHost(Stream stream, std::function<void()> work) override;
  void LaunchWrite(Stream stream, std::byte* at, std::vector<std::byte> contents) override;
  void Synchronize(Stream stream) override;

  Stream MakeStream(unsigned int flags);
  [[nodiscard]] static CUstream Handle(Stream stream) { return reinterpret_cast<CUstream>(stream.handle); }
  /// Unpinned host memory; lives as long as this.
  MutableBytes MakePlainMemory(std::uint64_t bytes);
  /// Memory that both the host's code and GPUs may touch; lives as long as this.
  MutableBytes MakeManagedMemory(std::uint64_t bytes);
  const CudaContext& context() { return context_; }
  const CudaTestFunctions& functions() { return functions_; }
  /// Destroys the device before the other members.
  void DestroyDevice();

 private:
  CudaUnderTest(std::shared_ptr<const CudaDriver> driver, const CudaTestFunctions& functions, int gpu);
  Status SetUp();
  /// Pinned, until the next call.
  MutableBytes Scratch(std::uint64_t bytes);
  Status CopyAndSynchronize(CUdeviceptr to, CUdeviceptr from, std::size_t bytes);

  CudaContext context_;
  const CudaTestFunctions functions_;
  std::unique_ptr<Device> device_;
  Stream own_;
  std::vector<Stream> streams_;
  std::vector<CUdeviceptr> tensors_;
  std::vector<MutableBytes> mapped_;
  std::vector<MutableBytes> pinned_;
  MutableBytes scratch_;

  // LaunchOnHost runs its work on a separate thread, which waits for an event while the stream waits for a flag.
  std::vector<std::thread> launches_;
  std::vector<CUevent> events_;
  MutableBytes flags_;
};

}  // namespace cairn
