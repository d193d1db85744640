#pragma once

#include <cstddef>
#include <vector>

#include "advice/instructions.h"
#include "advice/slack.h"
#include "cairn/status.h"

namespace cairn {

// What a pipeline's energy would be if its instructions used their slack: Perseus' question (SOSP 2024). Pure
// functions; nothing sets a clock.

/// An instruction at one clock of its GPU.
struct Speed {
  double mhz = 0;
  double seconds = 0;
  double joules = 0;
};

/// Of a stage's micro-batch, the fastest first: only those that no other one, and no mixture of two, beats in both time
/// and energy. So each saves less for a second than the one before it.
struct StageSpeeds {
  std::vector<Speed> forward;
  std::vector<Speed> backward;
};

/// A CSV file with the columns stage, instruction (forward or backward), frequency_mhz, time_s and energy_j, in any
/// order. InvalidArgument names the file and the line, the expected and the found value.
[[nodiscard]] Result<std::vector<StageSpeeds>> ReadSpeeds(const InstructionFile& file);

/// The energy of one rank while it recorded: (time, energy_j) before and after each step.
struct RankEnergy {
  double seconds = 0;
  double joules = 0;
};
/// A CSV file with the columns time, energy_j and source, as --export-timing-csv writes it. InvalidArgument as above,
/// and with the source's words if it has no energy.
[[nodiscard]] Result<RankEnergy> ReadEnergy(const InstructionFile& file);

struct SlowedPipeline {
  /// Which of its stage's speeds each instruction has: [stage][micro-batch].
  std::vector<std::vector<std::size_t>> forward;
  std::vector<std::vector<std::size_t>> backward;
  PipelineTimes times;
  /// Of all instructions, and of waiting. The iteration takes as long as before.
  double joules = 0;
  /// With every instruction at its fastest.
  double fastest_joules = 0;
};

/// Gives each instruction a slower speed, step by step and the one first that saves most for each second, as long as
/// the iteration takes no longer. `times` are those of the fastest speeds; others take as much longer as their stage's
/// speeds say. A stage that waits draws `waiting_watts`.
///
/// InvalidArgument as Schedule1F1B, or if the speeds are of another number of stages.
[[nodiscard]] Result<SlowedPipeline> SlowWithinSlack(const PipelineTimes& times, const std::vector<StageSpeeds>& speeds,
                                                     double waiting_watts);

}  // namespace cairn
