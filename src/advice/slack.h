#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cairn/status.h"

namespace cairn {

// The slack of a pipeline: when its instructions run, which of them decide how long an iteration takes, and when each
// stage waits. Pure functions of the instructions' times.
//
// 1F1B. Stage s of S, with M micro-batches, runs min(S-1-s, M) forwards, then one forward and one backward in turn
// while forwards are left, then the other backwards. It runs one of them at a time, in this order. Forward i waits for
// forward i of the stage before, backward i for backward i of the stage behind, and for the send between the two. Each
// runs as early as it can. An iteration takes as long as the longest path through this graph.

/// Seconds of each instruction: of stage s and micro-batch m at [s][m].
struct PipelineTimes {
  std::vector<std::vector<double>> forward;
  std::vector<std::vector<double>> backward;
  /// Of a send between stage s and the one behind, in either direction, at [s]. Empty: sends take no time. A send
  /// occupies neither stage.
  std::vector<double> send;
};

enum class Pass : std::uint8_t { kForward, kBackward };

struct Instruction {
  std::size_t stage = 0;
  std::size_t micro_batch = 0;
  Pass pass = Pass::kForward;
  double begin = 0;
  double end = 0;
  /// How much later it may end without making the iteration longer.
  double slack = 0;
};

struct IdleWindow {
  double begin = 0;
  double end = 0;
};

struct PipelineSchedule {
  /// Of one iteration.
  double seconds = 0;
  /// Of each stage, in the order in which it runs them.
  std::vector<std::vector<Instruction>> stages;
  /// From the first instruction of the iteration to its last: each begins when its predecessor has ended, and its send.
  std::vector<Instruction> critical_path;
  /// When each stage waits, in order; before its first instruction and after its last, too. A wait of less than a
  /// billionth of the iteration is none: sums of the same times in another order differ that much at most.
  std::vector<std::vector<IdleWindow>> idle;
};

/// The schedule of one iteration.
///
/// InvalidArgument if there is no stage or no micro-batch, if stages differ in the number of micro-batches, or if a
/// time, or the longest path, is negative or not finite: names the instruction or the edge, the expected and the found
/// value.
[[nodiscard]] Result<PipelineSchedule> Schedule1F1B(const PipelineTimes& times);

}  // namespace cairn
