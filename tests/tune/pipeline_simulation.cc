#include "tune/pipeline_simulation.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <vector>

namespace cairn {

SimulatedRun Simulate(const SimulatedJob& job, std::uint64_t saves) {
  // When the pool's buffers become free, soonest first.
  std::priority_queue<double, std::vector<double>, std::greater<>> buffers;
  for (std::uint64_t i = 0; i < job.pool_chunks; ++i) buffers.push(0);
  double copier_free = 0;
  double disk_free = 0;
  std::deque<double> durable_at;  // For each save so far.
  double now = 0;
  double settled = 0;  // When the middle save was called.
  SimulatedRun run;
  for (std::uint64_t save = 0; save < saves; ++save) {
    now += static_cast<double>(job.every - 1) * job.iteration;  // Iterations without a save.
    if (durable_at.size() >= job.places) now = std::max(now, durable_at[durable_at.size() - job.places]);
    const double called = now;
    const double writable = called + job.begin;
    for (std::uint64_t chunk = 0; chunk < job.chunks; ++chunk) {
      const double buffer = buffers.top();
      buffers.pop();
      copier_free = std::max({copier_free, buffer, called}) + job.copy_one;
      disk_free = std::max({disk_free, copier_free, writable}) + job.write_one;
      buffers.push(disk_free);
    }
    disk_free += job.commit;
    durable_at.push_back(disk_free);
    // The save's iteration: forward and backward only read, then the optimizer waits for the last copy.
    now = std::max(called + job.iteration - job.update, copier_free) + job.update;
    if (save == saves / 2) settled = called;
    run = {.period = (called - settled) / static_cast<double>(std::max<std::uint64_t>(save - saves / 2, 1)),
           .write = disk_free - called,
           .captured = copier_free - called};
  }
  return run;
}

}  // namespace cairn
