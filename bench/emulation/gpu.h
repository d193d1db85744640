#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "bench/emulation/device_state.h"
#include "cairn/status.h"
#include "cairn/tensor.h"
#include "device/device.h"

namespace cairn::bench {

/// The GPU of a run: one of CUDA, or an emulated one. [interface]
///
/// All bytes of all strategies go to the host by its two copy streams (Cairn is given the device itself), so a copy
/// costs each strategy the same time and the same CPU. Safe from any thread.
class Gpu {
 public:
  virtual ~Gpu() = default;

  /// Memory for a state, for as long as this lives. ResourceExhausted.
  virtual Result<MutableBytes> Allocate(std::uint64_t bytes) = 0;
  /// Whether its memory is the host's: the CPU reads and writes it in place.
  [[nodiscard]] virtual bool emulated() const = 0;
  /// In the training's stream: writes host memory to the tensor, and waits for it.
  virtual Status Write(Bytes from, const StridedLayout& to) = 0;
  /// The training's own stream, and a wait until it is idle.
  [[nodiscard]] virtual Stream stream() const = 0;
  virtual Status Synchronize() = 0;
  /// For strategies that make their own copies.
  [[nodiscard]] virtual const std::shared_ptr<Device>& device() const = 0;

  /// The host's side of a copy: from MakePinnedMemory, or any other, such as a mapped file's.
  enum class HostMemory : std::uint8_t { kPinned, kAny };

  /// Copies as many bytes of a state as `to` has room for, from `begin` on (device_state.h says how they are counted),
  /// tensor by tensor, small ones in one batch if the memory is pinned, and waits for it.
  Status CopyToHost(const DeviceState& from, std::uint64_t begin, MutableBytes to,
                    HostMemory kind = HostMemory::kPinned);
  /// The way back.
  Status CopyToDevice(Bytes from, const DeviceState& to, std::uint64_t begin = 0,
                      HostMemory kind = HostMemory::kPinned);

 private:
  Status Copy(CopyDirection direction, const DeviceState& state, std::uint64_t begin, MutableBytes memory,
              HostMemory kind);
};

/// A GPU in host memory, with two copy streams that share one link of `bytes_per_second`; 0: as fast as the CPU
/// copies.
[[nodiscard]] std::unique_ptr<Gpu> EmulateGpu(double bytes_per_second);
/// CUDA's GPU 0. Unsupported where there is none, or no driver.
[[nodiscard]] Result<std::unique_ptr<Gpu>> OpenCudaGpu();

}  // namespace cairn::bench
