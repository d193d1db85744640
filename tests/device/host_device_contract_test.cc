#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/worker_pool.h"
#include "device/device_contract.h"
#include "device/host_device.h"

namespace cairn {
namespace {

class HostUnderTest final : public DeviceUnderTest {
 public:
  explicit HostUnderTest(bool streams)
      : workers_("workers", 3),
        device_(HostDevice::Make(
            {.id = {streams ? DeviceKind::kCuda : DeviceKind::kCpu, 0}, .lanes = 2, .streams = streams}, workers_)) {}

  Device& device() override { return *device_; }
  std::byte* MakeTensor(Bytes contents) override {
    std::byte* const at = Allocate(contents.size());
    std::copy(contents.begin(), contents.end(), at);
    return at;
  }
  std::vector<std::byte> ReadTensor(const std::byte* at, std::uint64_t bytes) override { return {at, at + bytes}; }
  MutableBytes MakeHostMemory(std::uint64_t bytes) override { return {Allocate(bytes), bytes}; }
  Stream MakeStream() override { return device_->MakeStream(); }
  void LaunchOnHost(Stream stream, std::function<void()> work) override { device_->Launch(stream, std::move(work)); }
  void LaunchWrite(Stream stream, std::byte* at, std::vector<std::byte> contents) override {
    device_->Launch(stream, [at, contents = std::move(contents)] { std::copy(contents.begin(), contents.end(), at); });
  }
  void Synchronize(Stream stream) override { device_->Synchronize(stream); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* at) const { ::munmap(at, bytes); }
  };
  std::byte* Allocate(std::size_t bytes) {
    bytes = std::max<std::size_t>(bytes, 1);
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory_.push_back(std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(at), Unmap{bytes}));
    return memory_.back().get();
  }

  // Outlives the device's threads.
  std::vector<std::unique_ptr<std::byte, Unmap>> memory_;
  WorkerPool workers_;
  std::unique_ptr<HostDevice> device_;
};

const auto kHosts =
    testing::Values(DeviceCase{"plain", [](std::string&) { return std::make_unique<HostUnderTest>(false); }},
                    DeviceCase{"streams", [](std::string&) { return std::make_unique<HostUnderTest>(true); }});

INSTANTIATE_TEST_SUITE_P(Host, DeviceContract, kHosts, CaseName);
INSTANTIATE_TEST_SUITE_P(Host, DeviceStridesContract, kHosts, CaseName);

}  // namespace
}  // namespace cairn
