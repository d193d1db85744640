#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/device.h"

namespace cairn {

/// A device with what the contract suite needs: memory for tensors, and the caller's streams.
class DeviceUnderTest {
 public:
  virtual ~DeviceUnderTest() = default;

  virtual Device& device() = 0;
  /// Device memory that holds `contents`; lives as long as this.
  virtual std::byte* MakeTensor(Bytes contents) = 0;
  /// The contents of device memory once the caller's streams and the lanes are idle.
  virtual std::vector<std::byte> ReadTensor(const std::byte* at, std::uint64_t bytes) = 0;
  /// Host memory like the pool's: 4096-aligned, pinned and zeroed; lives as long as this.
  virtual MutableBytes MakeHostMemory(std::uint64_t bytes) = 0;

  // The rest is called only if device().has_streams().
  virtual Stream MakeStream() = 0;
  /// Enqueues host work in the caller's stream. It makes no device calls; if it waits, the stream waits.
  virtual void LaunchOnHost(Stream stream, std::function<void()> work) = 0;
  /// Enqueues, in the caller's stream, a write of `contents` to device memory.
  virtual void LaunchWrite(Stream stream, std::byte* at, std::vector<std::byte> contents) = 0;
  virtual void Synchronize(Stream stream) = 0;
};

struct DeviceCase {
  std::string name;
  /// Null, with the reason in `why_not`, if this machine has no such device. At least two lanes.
  std::function<std::unique_ptr<DeviceUnderTest>(std::string& why_not)> make;
  /// If not empty: called after each test, when the device is gone.
  std::function<void()> check = {};

  friend std::ostream& operator<<(std::ostream& out, const DeviceCase& device_case) { return out << device_case.name; }
};

/// The contract of every Device. Each implementation's test instantiates the suite with its DeviceCase:
/// INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(DeviceCase{"one_gpu", MakeCudaUnderTest}), CaseName);
class DeviceContract : public testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override;
  void TearDown() override;
  [[nodiscard]] Device& device() { return under_test_->device(); }

  std::unique_ptr<DeviceUnderTest> under_test_;
};

/// The part of that contract for several strided dimensions. Skips, after checking the advice, if the device refuses
/// them.
class DeviceStridesContract : public DeviceContract {
 protected:
  void SetUp() override;
};

/// Bytes that differ by position and by seed.
[[nodiscard]] std::vector<std::byte> Pattern(std::uint64_t bytes, std::uint32_t seed);
[[nodiscard]] StridedLayout Contiguous(std::byte* at, std::uint64_t bytes);
[[nodiscard]] StridedLayout Rows(std::byte* at, std::uint64_t row_bytes, std::int64_t rows, std::int64_t stride);
[[nodiscard]] std::vector<std::byte> Copied(Bytes bytes);
/// Enqueues a batch and waits until it is done.
Status CopyAndWait(Device& device, CopyBatch batch);
/// An event of the device; 0, and a failure of the test, if it has none.
[[nodiscard]] EventId Acquire(Device& device);

[[nodiscard]] inline std::string CaseName(const testing::TestParamInfo<DeviceCase>& info) { return info.param.name; }

}  // namespace cairn
