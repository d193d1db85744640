#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/worker_pool.h"
#include "bench/strategies/device_state.h"
#include "cairn/status.h"
#include "cairn/tensor.h"
#include "device/host_device.h"

namespace cairn::bench {

/// A GPU whose memory is the host's, with two copy streams that share one link of a given speed.
///
/// Every strategy's every byte goes to the host over this link and by these two streams, Cairn's too (which is given
/// the device itself): a copy costs each of them the same time and the same CPU. Safe from any thread.
class EmulatedGpu {
 public:
  /// `bytes_per_second` 0: as fast as the CPU copies.
  explicit EmulatedGpu(double bytes_per_second);

  /// Copies as many bytes of a state as there is room for, from `begin` on (device_state.h says how they are counted),
  /// tensor by tensor, small ones in one batch, and waits for it. The host's side may be any memory, a mapped file's
  /// too.
  Status CopyToHost(const DeviceState& from, std::uint64_t begin, MutableBytes to);
  /// The way back, of a whole state.
  Status CopyToDevice(Bytes from, const DeviceState& to);

  /// For who brings copies of his own.
  [[nodiscard]] const std::shared_ptr<HostDevice>& device() const { return device_; }
  /// The training's own stream, and a wait until it is idle.
  [[nodiscard]] Stream stream() const { return stream_; }
  void Synchronize() { device_->Synchronize(stream_); }

 private:
  Status Copy(CopyDirection direction, const DeviceState& state, std::uint64_t begin, MutableBytes memory);

  WorkerPool workers_;
  const std::shared_ptr<HostDevice> device_;
  const Stream stream_;
};

}  // namespace cairn::bench
