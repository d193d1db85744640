#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"

namespace cairn {

// How often to save, with how much memory, and why: pure functions of the job and the measurements.
//
// The model. Symbols: S bytes of state; t seconds an iteration, of which the last u rewrite the state and the first
// w = t - u only read it; P bytes of pool; rates C of copying and D of the slower of checksums and writing; k
// iterations and T seconds from one save to the next; M seconds from one failure to the next.
//
// 1. A single save passes through two stages, in chunks of c bytes. The first chunk is copied while the attempt begins,
//    the others pass at the slower stage's rate, and the commit comes last:
//        Tw = max(begin, c/C) + (S - c)/min(C, D) + c/D + commit.
// 2. It is captured when every byte has had a buffer. The pool takes P bytes at once; each further chunk waits until
//    one is written: Tc = max(S/C, max(begin, c/C) + (S - P)/D + c/C). Meanwhile training reads the state, and only its
//    optimizer waits: a save costs stall = max(0, Tc - w), plus the CPU time of its threads, cpu S / cores.
// 3. All saves of a root go through one disk, one after the other (a younger one writes next to nothing before the
//    older one has committed): N saves in flight share its bandwidth. So, for any N,
//        T = max(k t + stall, Tw).
//    If Tw is greater, training waits for the disk. PCcheck's f >= Tw / (N q t) (ASPLOS 2025), whose writers each have
//    their own bandwidth, therefore becomes k >= Tw / t: more saves in flight only bridge slow ones.
// 4. Failures come at rate 1/M (of running time) and cost R seconds of restart. A save that begins at j T holds j k t
//    of work and is durable at j T + Tw. The sum over j of the probability to survive until then gives
//        goodput = k t / (M + R) * exp(-Tw/M) / (exp(T/M) - 1),
//    which for long M is 1 - (T/2 + Tw + R)/M of the speed without failures, k t / T: each failure loses half an
//    interval, a write and a restart. (Daly 2006 derives the same without Tw, as a save stopped his machine.)
// 5. The best T: the derivative in T is zero where exp(x) (1 - x + a) = 1, with x = T/M and a = stall/M. This is Daly's
//    optimum, and for a short stall Young's (1974) sqrt(2 stall M). Without stall, the usual case here, both say: as
//    often as the disk permits.

/// A training job and its goals. Times in seconds.
struct TuneGoal {
  double iteration_seconds = 0;
  /// Allowed: 0.01 permits one per cent.
  double slowdown = 0;
  double mtbf_seconds = 0;
  /// From a failure until training continues, including the restore.
  double restart_seconds = 0;
};

/// The cost of a save, in seconds.
struct SaveCost {
  /// Taken from training: waits, and the CPU time of the save's threads.
  double stall = 0;
  /// From the call of Save to durable, with no other save in flight.
  double write = 0;
  /// The same while the disk is slow: at least `write`.
  double write_slow = 0;
};

/// What prevents a shorter interval.
enum class Bound : std::uint8_t {
  kNothing,   ///< Every iteration is saved.
  kDisk,      ///< A save must be durable before the next one begins.
  kSlowdown,  ///< The stall must stay within the allowed slowdown.
  kFailures,  ///< Young and Daly: a shorter interval would stall more than it saves at failures.
  kMemory,    ///< As the previous two, but a larger pool would shorten the stall.
};
[[nodiscard]] std::string_view BoundName(Bound bound);

struct IntervalChoice {
  std::uint64_t iterations = 1;
  Bound bound = Bound::kNothing;
  double period_seconds = 0;
  /// Expected, relative to training without saves.
  double slowdown = 0;
  /// Expected for each failure: work, and the restart.
  double lost_seconds = 0;
  /// Useful iterations per second, relative to a run without saves and failures.
  double goodput = 0;
};

/// The model's figures for an interval. `bound` is kNothing.
[[nodiscard]] IntervalChoice Predict(const TuneGoal& goal, const SaveCost& cost, std::uint64_t iterations);
/// The interval of the best goodput that the disk and the allowed slowdown permit. A tenth of the disk's rate stays in
/// reserve, because otherwise training waits whenever the disk is slower than average. Inputs must be checked.
[[nodiscard]] IntervalChoice ChooseInterval(const TuneGoal& goal, const SaveCost& cost);
/// Explains, for people, which bound binds, with figures.
[[nodiscard]] std::string Explain(const TuneGoal& goal, const SaveCost& cost, const IntervalChoice& choice);

struct IoShape {
  std::uint64_t chunk_bytes = 4U << 20;
  int queue_depth = 8;
  /// Measured, in bytes per second.
  double write_rate = 0;
};

/// What a machine can do. Rates in bytes per second, of all threads together; times in seconds.
struct Rates {
  /// From tensors to the pool.
  double copy = 0;
  /// 0 if `copy` includes it.
  double checksum = 0;
  std::vector<IoShape> shapes;
  /// The share of `write_rate` that the disk reaches in its slowest quarter of the time.
  double slow_share = 1;
  /// Until an attempt can be written to, and from its last byte to durable.
  double begin_seconds = 0;
  double commit_seconds = 0;
  /// Of all of Cairn's threads.
  double cpu_seconds_per_byte = 0;
};

/// The stage that limits a save's rate, and that rate: "the copy", "the checksums" or "the disk".
struct SlowestStage {
  const char* name = "";
  double bytes_per_second = 0;
};
[[nodiscard]] SlowestStage FindSlowestStage(const Rates& rates, double write_rate);
/// From this iteration time on, each save of so many bytes is durable before the next one, also when the disk is slow.
[[nodiscard]] double EveryIterationSeconds(std::uint64_t state_bytes, const Rates& rates, const IoShape& shape);

struct TuneInput {
  TuneGoal goal;
  std::uint64_t state_bytes = 0;
  /// The end of an iteration, which rewrites the state.
  double update_seconds = 0;
  /// The pool's limit.
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  /// Cores that saves share with training. 0: saves use idle ones.
  double training_cores = 0;
};

struct TuneChoice {
  IntervalChoice interval;
  SaveCost cost;
  /// From the call of Save until the tensors may be overwritten.
  double captured_seconds = 0;
  /// As EveryIterationSeconds has it: Tw, with a tenth in reserve.
  double every_iteration_seconds = 0;
  /// How long the disk takes what the pool does not hold, (S - P)/D. The fence waits for it, as far as w is shorter.
  double beyond_pool_seconds = 0;
  /// Written at the chosen interval.
  double bytes_per_day = 0;
  int max_in_flight = 1;
  std::uint64_t pool_bytes = 0;
  IoShape shape;
  std::string why;
};

/// The cost of saving the input's state through a pool of this size. Inputs must be checked.
[[nodiscard]] SaveCost ModelCost(const TuneInput& input, const Rates& rates, const IoShape& shape,
                                 std::uint64_t pool_bytes);
/// InvalidArgument for an invalid input: names the command's flag, the expected and the found value. NoSpace if the
/// filesystem cannot hold two checkpoints.
[[nodiscard]] Result<TuneChoice> Choose(const TuneInput& input, const Rates& rates);

}  // namespace cairn
