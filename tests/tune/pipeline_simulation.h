#pragma once

#include <cstdint>

namespace cairn {

/// Simulates a run of saves event by event, without the tuner's formulas. Times in seconds.
struct SimulatedJob {
  std::uint64_t chunks = 1;
  std::uint64_t pool_chunks = 1;
  /// Copies, and writes, of a chunk run one at a time.
  double copy_one = 0;
  double write_one = 0;
  /// Until an attempt can be written to; and from its last byte to durable, while no other save writes.
  double begin = 0;
  double commit = 0;
  double iteration = 0;
  /// The end of an iteration, which rewrites the state.
  double update = 0;
  std::uint64_t every = 1;
  std::uint64_t places = 2;
};

struct SimulatedRun {
  /// From one save to the next, averaged over the second half.
  double period = 0;
  /// Of the last save: from the call of Save to durable, and to captured.
  double write = 0;
  double captured = 0;
};

/// Simulates `saves` saves, at least four. They are captured and written oldest first; writing a chunk frees its
/// buffer; the optimizer waits for the capture, and a save for a free place in flight.
[[nodiscard]] SimulatedRun Simulate(const SimulatedJob& job, std::uint64_t saves);

}  // namespace cairn
