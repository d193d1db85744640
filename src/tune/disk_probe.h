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

/// What a probe may take.
struct ProbeLimits {
  /// Roughly: what is under way when it is over is waited for. A slow disk is measured by fewer and shorter passes.
  std::chrono::nanoseconds time = std::chrono::seconds(6);
  std::uint64_t file_bytes = 256U << 20;  ///< Of the probe's file; a quarter of what is free, where that is less.
  std::function<bool()> stopped;          ///< Asked between operations: true ends the probe, Cancelled. May be empty.
  TimeSource now = Deadline::Clock::now;
};

/// What a disk does for saves. Rates in bytes per second.
struct DiskRates {
  std::vector<IoShape> shapes;      ///< Fresh files, the default shape first.
  double slow_share = 1;            ///< A slow quarter of the passes reached this share of their shape's median.
  double overwrite = 0;             ///< Over blocks that are laid out and written; the default shape.
  double read = 0;                  ///< The same blocks, read.
  double begin_seconds = 0;         ///< Steps 0 and 1 of the commit protocol: space, folder, file, blocks.
  double commit_seconds = 0;        ///< Steps 3 and 5: header, fsyncs, manifest, rename, fsync of the root.
  double cpu_seconds_per_byte = 0;  ///< Of the whole process, while it wrote fresh files.
  bool direct = false;              ///< With O_DIRECT.
  std::uint64_t passes = 0;
};

/// Writes attempts as saves do, by the same queue and code, in a few shapes that take turns, and commits them but for
/// the name: what is renamed is called `.retired-<uuid>`, which no reader lists and the next writer sweeps.
///
/// Nothing of it is left on any return, nor, beyond what that sweep removes, after a kill. NoSpace where the filesystem
/// has no room for a small probe; NotFound or InvalidArgument where `root` is no directory; errors of the operations as
/// they are. The queue's factory is called on this thread.
[[nodiscard]] Result<DiskRates> ProbeDisk(const IoQueueFactory& factory, const std::string& root,
                                          const ProbeLimits& limits);
/// The deepest queue that ProbeDisk uses.
inline constexpr int kProbeDepth = 16;

}  // namespace cairn
