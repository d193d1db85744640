#pragma once

#include <string>

#include "base/modelled_time.h"
#include "base/worker_pool.h"
#include "cairn/options.h"
#include "device/buffer_pool.h"
#include "device/device.h"
#include "tune/disk_probe.h"

namespace cairn {

struct CopyRate {
  double bytes_per_second = 0;
  double cpu_seconds_per_byte = 0;
};

/// Copies `tensor` to the pool's chunks, or with kToDevice the chunks to it, repeatedly for about `time`, as the engine
/// does: all chunks at once, alternating lanes, with checksums if the device computes them. The tensor is contiguous,
/// touched, and at least one chunk long.
[[nodiscard]] Result<CopyRate> ProbeCopy(Device& device, BufferPool& pool, MutableBytes tensor,
                                         std::chrono::nanoseconds time, const TimeSource& now = Deadline::Clock::now,
                                         CopyDirection direction = CopyDirection::kToHost);
/// Sums the pool's chunks on the workers, all chunks at once.
[[nodiscard]] Result<CopyRate> ProbeChecksum(WorkerPool& workers, BufferPool& pool, std::chrono::nanoseconds time,
                                             const TimeSource& now = Deadline::Clock::now);

struct MeasureOptions {
  std::string root;
  DeviceId device;
  int worker_threads = 0;
  IoQueueKind io_queue = IoQueueKind::kAuto;
  ProbeLimits disk;
};

struct Measured {
  DiskRates disk;
  CopyRate copy;
  CopyRate checksum;
  bool sums_while_copying = false;
  std::string io_queue;
  std::string io_queue_reason;
  int worker_threads = 0;

  /// The input for Choose. `recycled`: saves overwrite the blocks of retired ones, as by default once retention retires
  /// some. The gain in the default shape is assumed for all shapes.
  [[nodiscard]] Rates rates(bool recycled) const;
};

/// Probes copying, checksums and disk of this machine, one after the other. Errors as from ProbeDisk and
/// MakeCudaDevice.
[[nodiscard]] Result<Measured> Measure(const MeasureOptions& options);

}  // namespace cairn
