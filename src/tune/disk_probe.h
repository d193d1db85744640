#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/modelled_time.h"
#include "io/io_queue.h"
#include "tune/choose.h"

namespace cairn {

/// What a probe may use.
struct ProbeLimits {
  /// Approximate: operations in flight at the end are awaited. A slow disk gets fewer and shorter passes.
  std::chrono::nanoseconds time = std::chrono::seconds(6);
  /// The size of the probe's file, but at most a quarter of the free space.
  std::uint64_t file_bytes = 256U << 20;
  /// If set, called between operations: true ends the probe with Cancelled.
  std::function<bool()> stopped;
  TimeSource now = Deadline::Clock::now;
};

/// A disk's performance for saves. Rates in bytes per second.
struct DiskRates {
  /// Measured on new files; the default shape comes first.
  std::vector<IoShape> shapes;
  /// The share of its shape's median that the slowest quarter of the passes reached.
  double slow_share = 1;
  /// Overwriting written blocks, and reading them, in the default shape.
  double overwrite = 0;
  double read = 0;
  /// Steps 0 and 1 of the commit protocol: space, folder, file, blocks.
  double begin_seconds = 0;
  /// Steps 3 and 5: header, fsyncs, manifest, rename, fsync of the root.
  double commit_seconds = 0;
  /// Of the whole process, while it wrote new files.
  double cpu_seconds_per_byte = 0;
  /// Whether O_DIRECT was used.
  bool direct = false;
  std::uint64_t passes = 0;
};

/// Writes attempts as saves do, with the same queue and code, in a few alternating shapes. Commits them under the name
/// `.retired-<uuid>`, which no reader lists and the next writer sweeps.
///
/// Leaves nothing behind; after a kill, only what that sweep removes. NoSpace if a small probe does not fit; NotFound
/// or InvalidArgument if `root` is not a directory; otherwise the errors of the operations. Calls the factory on this
/// thread.
[[nodiscard]] Result<DiskRates> ProbeDisk(const IoQueueFactory& factory, const std::string& root,
                                          const ProbeLimits& limits);
/// The deepest queue that ProbeDisk uses.
inline constexpr int kProbeDepth = 16;

}  // namespace cairn
