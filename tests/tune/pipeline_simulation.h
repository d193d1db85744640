#pragma once

#include <cstdint>

namespace cairn {

/// What happens in a run of saves, event by event, without a formula of the tuner's. Times in seconds.
struct SimulatedJob {
  std::uint64_t chunks = 1;       ///< Of the state.
  std::uint64_t pool_chunks = 1;  ///< Of the pool.
  double copy_one = 0;            ///< To copy a chunk; one at a time.
  double write_one = 0;           ///< To write a chunk; one at a time.
  double begin = 0;               ///< Until an attempt can be written into.
  double commit = 0;              ///< From its last byte to durable; no other save writes meanwhile.
  double iteration = 0;
  double update = 0;  ///< Its end, which rewrites the state.
  std::uint64_t every = 1;
  std::uint64_t places = 2;
};

struct SimulatedRun {
  double period = 0;    ///< From one save to the next, on average over the second half.
  double write = 0;     ///< From a call of Save to durable, of the last save.
  double captured = 0;  ///< From a call of Save until captured, of the last save.
};

/// Plays `saves` of them, at least four: captured oldest first, written oldest first, each chunk's buffer free once it
/// is written; the optimizer waits for the capture, a save for a place.
[[nodiscard]] SimulatedRun Simulate(const SimulatedJob& job, std::uint64_t saves);

}  // namespace cairn
