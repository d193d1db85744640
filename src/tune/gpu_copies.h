#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/buffer_pool.h"
#include "device/device.h"

namespace cairn {

/// Bytes per second in both directions.
struct LinkRate {
  double to_host = 0;
  double to_device = 0;
};

/// Measures a GPU's link to host memory, and what Cairn's lanes make of it. Each call takes about twice `time`.
class GpuLink {
 public:
  /// Opens a device of its own, with as many bytes of memory on the GPU and of pinned host memory. Errors as from
  /// MakeCudaDevice; ResourceExhausted if either memory is lacking.
  [[nodiscard]] static Result<std::unique_ptr<GpuLink>> Open(int index, int lanes, std::uint64_t bytes);

  /// One copy of all bytes at a time.
  [[nodiscard]] Result<LinkRate> Single(std::chrono::nanoseconds time);
  /// In chunks over the lanes, 128 MiB of them at once, as saves and restores copy.
  [[nodiscard]] Result<LinkRate> Chunks(std::uint64_t chunk_bytes, std::chrono::nanoseconds time);
  /// Device to device, as snapshots are staged: bytes per second.
  [[nodiscard]] Result<double> Staging(std::chrono::nanoseconds time);

  // What the bytes prove. At least 4 MiB of memory.
  /// Whether bytes that go to the GPU and back are what they were.
  [[nodiscard]] Result<bool> Intact();
  /// Whether a copy in one lane sees what another lane has copied, if a stream of the caller is between them: it waits
  /// for the one, and the other for it, as saves and fences order them. At least 2 lanes.
  [[nodiscard]] Result<bool> Ordered(Stream stream);
  /// Whether tensors of any strides, and many small ones, survive. An error says why the GPU does not take them.
  [[nodiscard]] Result<bool> KeepsStrides();

  /// How long page-locking host memory took, whose pages were touched.
  [[nodiscard]] double pin_seconds_per_byte() const { return pin_seconds_per_byte_; }
  [[nodiscard]] Device& device() { return *device_; }
  /// On the GPU.
  [[nodiscard]] MutableBytes memory() const { return memory_; }

 private:
  [[nodiscard]] Result<bool> OrderedOnce(Stream stream);
  explicit GpuLink(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  Status SetUp(std::uint64_t bytes);
  [[nodiscard]] Result<LinkRate> Measure(BufferPool& pool, std::chrono::nanoseconds time);

  const std::unique_ptr<Device> device_;
  MutableBytes memory_;
  std::unique_ptr<BufferPool> pool_;
  double pin_seconds_per_byte_ = 0;
};

}  // namespace cairn
