#pragma once

#include <array>
#include <cstdint>

#include "bench/harness/csv_row.h"
#include "bench/pipeline/pipeline_flags.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {

/// What a node tells about its run. Sent as it is, between two processes of one program.
struct NodeReport {
  double iterations_per_second = 0;
  double slowdown = 0;
  double stall_total = 0;
  double stall_max = 0;
  double update_late = 0;
  double to_durable_p50 = 0;
  double to_durable_max = 0;
  double age_max = 0;
  double copy_rate = 0;  ///< Of its emulated link, as measured while the other node measured its own.
  double cpu_seconds = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t peak_rss = 0;
  std::uint64_t state_bytes = 0;
  std::uint64_t tensors = 0;
  std::uint64_t saves = 0;
  std::uint64_t durable = 0;
  std::uint64_t restored = 0;
};

/// The run as one line of a CSV. What only one node could tell is the first one's: it ends each iteration. Stalls and
/// times to durable are the larger ones.
[[nodiscard]] CsvRow MakePipelineRow(const PipelineFlags& flags, const StrategyKind& kind, double update_seconds,
                                     const std::array<NodeReport, 2>& nodes);

}  // namespace cairn::bench
