#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/worker_pool.h"
#include "device/device.h"

namespace cairn {

struct HostDeviceOptions {
  /// kCpu for the real thing; kCuda{n} to stand in for a GPU whose memory is ordinary memory.
  DeviceId id;
  /// Batches of one lane are copied one after the other. Without streams, a batch is split among the workers that the
  /// lanes leave (workers / lanes): as many lanes as workers costs least, where batches are spread over the lanes.
  int lanes = 1;
  /// Model streams: lanes and the caller's streams (HostDevice::MakeStream) queue copies, work and fences in order,
  /// each on a thread of its own, as a GPU would; batches are not summed. Off: batches go to the workers and are
  /// summed, and RecordOnStream, StreamWait, RecordOnLane and LaneWait are for no one.
  bool streams = false;
  /// Copies of kToHost and kToDevice together run no faster than this, in bytes per second. 0: as fast as they can.
  /// Without streams a worker that copies sleeps meanwhile.
  double bytes_per_second = 0;
};

/// Tensors in CPU memory, copied (and summed in the same pass, a cache-sized piece at a time) by worker threads.
///
/// The destructor finishes what is queued.
class HostDevice : public Device {
 public:
  /// Events in stock.
  static constexpr EventId kEvents = 4096;

  /// `workers` outlives the device.
  [[nodiscard]] static std::unique_ptr<HostDevice> Make(const HostDeviceOptions& options, WorkerPool& workers);

  /// A modelled stream of the caller's: its handle goes into cairn::Stream. Lives as long as the device. Handle 0 is
  /// the default stream, which is always there.
  [[nodiscard]] virtual Stream MakeStream() = 0;
  /// Enqueues work in a modelled stream of this device, as a kernel launch would be; it runs on the stream's own
  /// thread.
  virtual void Launch(Stream stream, std::function<void()> work) = 0;
  /// Waits until the stream is idle, as cudaStreamSynchronize does.
  virtual void Synchronize(Stream stream) = 0;
};

}  // namespace cairn
