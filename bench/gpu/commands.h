#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cairn/status.h"

namespace cairn::bench {

// The commands. Each prints a line of JSON for each thing that it measures, on GPU 0. Rates are bytes per second.

struct LinkOptions {
  std::uint64_t bytes = 512U << 20;
  std::chrono::milliseconds time{150};
  int pairs = 5;
};
/// Cairn's lanes, 1 to 4, with chunks of 1 to 16 MiB, each beside one copy of all bytes, in adjacent pairs; what
/// pinning takes; device to device, as snapshots are staged.
[[nodiscard]] Status MeasureLink(const LinkOptions& options);

/// Checksums that the GPU computes, compared with the host's; then copies to the host with them, and without, in
/// adjacent pairs. `bytes` is not used.
[[nodiscard]] Status MeasureSums(const LinkOptions& options);

struct PiecesOptions {
  /// Of all pieces together; what has more is left out.
  std::uint64_t bytes = 1U << 30;
  int repetitions = 3;
};
/// 100 to 50,000 pieces of 512 B to 1 MiB, in both directions: seconds by Cairn's device, and by one copy for each.
[[nodiscard]] Status MeasurePieces(const PiecesOptions& options);

struct LaunchesOptions {
  std::string root;
  std::size_t tensors = 400;
  std::uint64_t tensor_bytes = 8U << 20;
  /// As large as the state: nothing but the lanes' room holds copies up.
  std::uint64_t pool_bytes = 400 * (8ULL << 20);
  std::chrono::milliseconds time{3000};
  /// False: copies without kernels, an operation for each tensor.
  bool kernels = true;
};
/// How long the launches of another thread take, in its own stream, alone and beside saves; and how long fences take.
/// The saves' caller holds its stream for 100 ms, so that their copies wait in the lanes; how often a lane was full is
/// printed.
[[nodiscard]] Status MeasureLaunches(const LaunchesOptions& options);

void PrintLine(const nlohmann::json& line);

}  // namespace cairn::bench
