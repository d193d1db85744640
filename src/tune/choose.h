#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"

namespace cairn {

// How often to save, through how much memory, and why: pure functions of what a job is like and what was measured.
//
// The model. Symbols: S bytes of state, t seconds an iteration, of which the last u rewrite the state (w = t - u only
// read it), P bytes of pool, rates of copying C, of checksums and of writing (D is the lesser of these two), k
// iterations from one save to the next, T seconds from one save to the next, M seconds from one failure to the next.
//
// 1. A save alone passes through two stages, chunk by chunk of c bytes. The first chunk is copied while the attempt is
//    begun, the others pass at the slower stage's rate, and the commit comes last:
//        Tw = max(begin, c/C) + (S - c)/min(C, D) + c/D + commit.
// 2. It is captured once every byte has had a buffer. The pool takes P bytes at once; each further chunk waits until
//    one is written: Tc = max(S/C, max(begin, c/C) + (S - P)/D + c/C). Training reads the state meanwhile, and only its
//    optimizer waits: a save costs stall = max(0, Tc - w), and what its threads take from training's, cpu S / cores.
// 3. All saves of a root pass through one disk, one after the other (a younger one writes nothing before the older one
//    has committed): N in flight share its bandwidth and do not multiply it. So
//        T = max(k t + stall, Tw),
//    whatever N is; where Tw is the greater, training waits for the disk, by the pool or by the places in flight. This
//    is why PCcheck's f >= Tw / (N q t) (ASPLOS 2025), whose writers each have bandwidth of their own,
//    becomes k >= Tw / t here: more places only bridge saves that are slower than others.
// 4. Failures come at rate 1/M (of running time) and cost R seconds of restart. A save begun at j T holds j k t of work
//    and is durable at j T + Tw; by the sum over j of the chance to live until then,
//        goodput = k t / (M + R) * exp(-Tw/M) / (exp(T/M) - 1),
//    which is 1 - (T/2 + Tw + R)/M of the unfailing speed k t / T where M is long: half an interval, a write and a
//    restart are lost by each failure. (Daly 2006 derives the same without Tw, as a save stopped his machine.)
// 5. The best T: the derivative in T is zero where exp(x) (1 - x + a) = 1, with x = T/M and a = stall/M. It is Daly's
//    optimum, and Young's (1974) sqrt(2 stall M) where stall is short. Where a save costs next to no stall both say: as
//    often as the disk can hold, which is the usual case here.

/// What a training job is like, and what it can bear. Times in seconds.
struct TuneGoal {
  double iteration_seconds = 0;
  double slowdown = 0;  ///< Allowed: 0.01 lets training take one per cent longer.
  double mtbf_seconds = 0;
  double restart_seconds = 0;  ///< From a failure until training goes on, the restore included.
};

/// What a save costs. Seconds.
struct SaveCost {
  double stall = 0;       ///< Taken from training, by waits and by what its threads use up.
  double write = 0;       ///< From the call of Save to durable, with nothing else in flight.
  double write_slow = 0;  ///< The same when the disk is slow for a while; at least `write`.
};

/// What keeps the interval from being shorter.
enum class Bound : std::uint8_t {
  kNothing,   ///< Every iteration is saved.
  kDisk,      ///< A save must be durable before the next one begins.
  kSlowdown,  ///< Stall within what is allowed.
  kFailures,  ///< Young and Daly: more stall than failures are worth.
  kMemory,    ///< The same two, and a larger pool would shorten the stall.
};
[[nodiscard]] std::string_view BoundName(Bound bound);

struct IntervalChoice {
  std::uint64_t iterations = 1;
  Bound bound = Bound::kNothing;
  double period_seconds = 0;  ///< T.
  double slowdown = 0;        ///< Expected, of training without a save.
  double lost_seconds = 0;    ///< Expected, for each failure: work, and the restart.
  double goodput = 0;         ///< Useful iterations per second, over those of a run without saves and failures.
};

/// What an interval comes to, by the model above. `bound` is kNothing.
[[nodiscard]] IntervalChoice Predict(const TuneGoal& goal, const SaveCost& cost, std::uint64_t iterations);
/// The interval of the best goodput that keeps within the disk's reach (with a tenth of it to spare, as a disk without
/// a margin makes training wait whenever it is slower than on average) and the slowdown allowed. Checked inputs.
[[nodiscard]] IntervalChoice ChooseInterval(const TuneGoal& goal, const SaveCost& cost);
/// Which bound binds and by what figures, for a person.
[[nodiscard]] std::string Explain(const TuneGoal& goal, const SaveCost& cost, const IntervalChoice& choice);

struct IoShape {
  std::uint64_t chunk_bytes = 4U << 20;
  int queue_depth = 8;
  double write_rate = 0;  ///< Measured, bytes per second.
};

/// What a place can do. Rates in bytes per second, all threads together; times in seconds.
struct Rates {
  double copy = 0;                  ///< Tensors to pool.
  double checksum = 0;              ///< 0: in `copy` already.
  std::vector<IoShape> shapes;      ///< At least one.
  double slow_share = 1;            ///< What of `write_rate` the disk gives in a slow quarter of the time.
  double begin_seconds = 0;         ///< Until an attempt can be written into.
  double commit_seconds = 0;        ///< From its last byte to durable.
  double cpu_seconds_per_byte = 0;  ///< Of all of Cairn's threads.
};

struct TuneInput {
  TuneGoal goal;
  std::uint64_t state_bytes = 0;
  double update_seconds = 0;       ///< Of an iteration: its end, which rewrites the state.
  std::uint64_t memory_bytes = 0;  ///< The pool may take that much.
  std::uint64_t free_bytes = 0;    ///< Of the filesystem.
  double training_cores = 0;       ///< Cores whose time a save takes from training. 0: it leaves them idle.
};

struct TuneChoice {
  IntervalChoice interval;
  SaveCost cost;
  double captured_seconds = 0;  ///< From the call of Save until the tensors may be overwritten.
  int max_in_flight = 1;
  std::uint64_t pool_bytes = 0;
  IoShape shape;
  std::string why;  ///< Which bound binds, with its figures.
};

/// What a save of the input's state costs through a pool of so many bytes. Checked inputs.
[[nodiscard]] SaveCost ModelCost(const TuneInput& input, const Rates& rates, const IoShape& shape,
                                 std::uint64_t pool_bytes);
/// InvalidArgument for what is absurd, named as the command's flag, with what was expected and found; NoSpace for a
/// state of which the filesystem cannot hold two.
[[nodiscard]] Result<TuneChoice> Choose(const TuneInput& input, const Rates& rates);

}  // namespace cairn
