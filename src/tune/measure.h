#pragma once

#include <cstdint>
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
  double cpu_seconds_per_byte = 0;  ///< Of the whole process.
};

/// Copies `tensor` to the pool's chunks, summed where the device does that, over and over for about `time`, as the
/// engine does: all chunks at once, in the lanes by turns. The tensor is contiguous, of at least a chunk, and touched.
[[nodiscard]] Result<CopyRate> ProbeCopy(Device& device, BufferPool& pool, MutableBytes tensor,
                                         std::chrono::nanoseconds time, const TimeSource& now = Deadline::Clock::now);
/// Sums the pool's chunks on the workers, all at once.
[[nodiscard]] Result<CopyRate> ProbeChecksum(WorkerPool& workers, BufferPool& pool, std::chrono::nanoseconds time,
                                             const TimeSource& now = Deadline::Clock::now);

struct MeasureOptions {
  std::string root;
  DeviceId device;         ///< Where the tensors are.
  int worker_threads = 0;  ///< As in Options.
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

  /// What Choose goes by. `recycled`: saves are written over retired ones' blocks, as they are by default once
  /// retention has something to retire; what that gains in the default shape it gains in all.
  [[nodiscard]] Rates rates(bool recycled) const;
};

/// Probes copy, checksum and disk of this machine, in this order, none while another runs. Errors as ProbeDisk and
/// MakeCudaDevice have them.
[[nodiscard]] Result<Measured> Measure(const MeasureOptions& options);

}  // namespace cairn
