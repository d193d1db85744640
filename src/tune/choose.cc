#include "tune/choose.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/human.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr double kDiskMargin = 1.1;
// Some saves take this many times the modelled time. A second save in flight bridges them.
constexpr double kOutlierFactor = 4;
// How many checkpoints must fit on the disk: one kept and one in flight; or one kept, two in flight and a retired one
// that is overwritten.
constexpr std::uint64_t kOneInFlightOnDisk = 2;
constexpr std::uint64_t kTwoInFlightOnDisk = 4;
constexpr double kDay = 86400;
constexpr double kMaxIterations = 9007199254740992;  // 2^53: doubles count exactly up to here.

std::uint64_t Iterations(double wanted) {
  return static_cast<std::uint64_t>(std::clamp(std::ceil(wanted * (1 - 1e-12)), 1.0, kMaxIterations));
}

/// 1 - x / (exp(x) - 1), which is x/2 for small x.
double LostShare(double x) { return x < 1e-4 ? x / 2 - x * x / 12 : 1 - x / std::expm1(x); }

/// T/M for the best goodput: the root of exp(x) (1 - x + a) = 1 above a, where the left side decreases.
double BestPeriod(double a) {
  double low = a;
  double high = a + 1;
  for (int i = 0; i < 200; ++i) {
    const double x = (low + high) / 2;
    const double slope = std::expm1(x) + std::exp(x) * (a - x);
    (slope > 0 ? low : high) = x;
  }
  return high;
}

/// From one save to the next, if the disk is to be done with each one in time.
double DiskSeconds(const SaveCost& cost) { return std::max(cost.write * kDiskMargin, cost.write_slow); }

std::uint64_t BestForFailures(const TuneGoal& goal, const SaveCost& cost) {
  // Above this no run ever reaches a save, at any interval.
  const double a = std::min(cost.stall / goal.mtbf_seconds, 500.0);
  const double wanted = (BestPeriod(a) * goal.mtbf_seconds - cost.stall) / goal.iteration_seconds;
  const std::uint64_t above = Iterations(wanted);
  const std::uint64_t below = std::max<std::uint64_t>(above - 1, 1);
  return Predict(goal, cost, below).goodput >= Predict(goal, cost, above).goodput ? below : above;
}

/// "12 GB", "3.1 MB".
std::string DecimalBytes(double bytes) {
  if (bytes >= 1e15) return fmt::format("{:.4g} PB", bytes / 1e15);
  if (bytes >= 1e12) return fmt::format("{:.3g} TB", bytes / 1e12);
  if (bytes >= 1e9) return fmt::format("{:.3g} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.3g} MB", bytes / 1e6);
  return fmt::format("{:.0f} B", bytes);
}

/// The model's figures for the chunks of one shape.
struct StageRates {
  // Bytes.
  double chunk = 0;
  // Seconds to copy a chunk.
  double copy_one = 0;
  // Seconds until the first chunk can be written.
  double front = 0;
  // Bytes per second out of the pool.
  double drain = 0;
};

StageRates StageRatesOf(const TuneInput& input, const Rates& rates, const IoShape& shape, double write_rate) {
  const double chunk = static_cast<double>(std::min(shape.chunk_bytes, input.state_bytes));
  return {.chunk = chunk,
          .copy_one = chunk / rates.copy,
          .front = std::max(rates.begin_seconds, chunk / rates.copy),
          .drain = rates.checksum > 0 ? std::min(rates.checksum, write_rate) : write_rate};
}

double WindowSeconds(const TuneInput& input) { return input.goal.iteration_seconds - input.update_seconds; }

double BeyondPoolSeconds(const TuneInput& input, const Rates& rates, const IoShape& shape, std::uint64_t pool_bytes) {
  if (input.state_bytes <= pool_bytes) return 0;
  return static_cast<double>(input.state_bytes - pool_bytes) /
         StageRatesOf(input, rates, shape, shape.write_rate).drain;
}

double CapturedSeconds(const TuneInput& input, const Rates& rates, const IoShape& shape, std::uint64_t pool_bytes) {
  const auto state = static_cast<double>(input.state_bytes);
  const double copied = state / rates.copy;
  if (input.state_bytes <= pool_bytes) return copied;
  const StageRates stages = StageRatesOf(input, rates, shape, shape.write_rate);
  return std::max(copied, stages.front + BeyondPoolSeconds(input, rates, shape, pool_bytes) + stages.copy_one);
}

double WriteSeconds(const TuneInput& input, const Rates& rates, const IoShape& shape, double write_rate) {
  const StageRates stages = StageRatesOf(input, rates, shape, write_rate);
  const double rest = static_cast<double>(input.state_bytes) - stages.chunk;
  return stages.front + rest / std::min(rates.copy, stages.drain) + stages.chunk / stages.drain + rates.commit_seconds;
}

/// The smallest pool with which a save, on a slow disk, stalls no longer than its copies take; at most what the memory
/// allows, and enough to copy chunks while others are written.
std::uint64_t PoolBytes(const TuneInput& input, const Rates& rates, const IoShape& shape) {
  const auto state = static_cast<double>(input.state_bytes);
  const StageRates stages = StageRatesOf(input, rates, shape, shape.write_rate * rates.slow_share);
  const double time = std::max(WindowSeconds(input), state / rates.copy) - stages.front - stages.copy_one;
  const double wanted = state - stages.drain * std::max(time, 0.0) + stages.chunk;

  const std::uint64_t least = shape.chunk_bytes * static_cast<std::uint64_t>(shape.queue_depth);
  const std::uint64_t whole = AlignUp(input.state_bytes, shape.chunk_bytes);
  std::uint64_t pool = 2 * least;
  if (wanted > static_cast<double>(pool)) pool = AlignUp(static_cast<std::uint64_t>(wanted), shape.chunk_bytes);
  return std::clamp(std::min(pool, whole), least, AlignDown(input.memory_bytes, shape.chunk_bytes));
}

/// Of the shapes that fit the memory and write within 5 % of the fastest, the one with the fewest bytes in flight.
Result<IoShape> ChooseShape(const TuneInput& input, const Rates& rates) {
  const auto bytes = [](const IoShape& shape) {
    return shape.chunk_bytes * static_cast<std::uint64_t>(shape.queue_depth);
  };
  double fastest = 0;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const IoShape& shape : rates.shapes) {
    least = std::min(least, bytes(shape));
    if (bytes(shape) <= input.memory_bytes) fastest = std::max(fastest, shape.write_rate);
  }
  if (fastest <= 0) {
    return Error(StatusCode::kInvalidArgument, "--memory: expected at least {} for the pool, found {}",
                 HumanBytes(least), HumanBytes(input.memory_bytes));
  }
  IoShape best;
  std::uint64_t fewest = std::numeric_limits<std::uint64_t>::max();
  for (const IoShape& shape : rates.shapes) {
    if (bytes(shape) > input.memory_bytes || shape.write_rate < fastest * 0.95 || bytes(shape) >= fewest) continue;
    best = shape;
    fewest = bytes(shape);
  }
  return best;
}

/// `text` writes a number as a person does.
Status CheckRange(const char* flag, double found, double least, double most, const auto& text) {
  if (found >= least && found <= most) return Status::Ok();  // False for NaN.
  return Error(StatusCode::kInvalidArgument, "{}: expected {} to {}, found {}", flag, text(least), text(most),
               text(found));
}

Status Check(const TuneInput& input, const Rates& rates) {
  const TuneGoal& goal = input.goal;
  CAIRN_RETURN_IF_ERROR(CheckRange("--state-bytes", static_cast<double>(input.state_bytes), 1, 1e18, DecimalBytes));
  CAIRN_RETURN_IF_ERROR(CheckRange("--iteration-time", goal.iteration_seconds, 1e-6, 10 * kDay, HumanSeconds));
  if (!(goal.slowdown >= 1e-9 && goal.slowdown <= 1)) {
    return Error(StatusCode::kInvalidArgument,
                 "--slowdown: expected above 0% and at most 100% (1% is 0.01), found {:g}%", 100 * goal.slowdown);
  }
  CAIRN_RETURN_IF_ERROR(CheckRange("--mtbf", goal.mtbf_seconds, 1e-3, 20000 * kDay, HumanSeconds));
  if (goal.mtbf_seconds <= goal.iteration_seconds) {
    return Error(StatusCode::kInvalidArgument, "--mtbf: expected more than an iteration's {}, found {}",
                 HumanSeconds(goal.iteration_seconds), HumanSeconds(goal.mtbf_seconds));
  }
  CAIRN_RETURN_IF_ERROR(CheckRange("--restart-time", goal.restart_seconds, 0, 20000 * kDay, HumanSeconds));
  if (!(input.update_seconds >= 0 && input.update_seconds < goal.iteration_seconds)) {
    return Error(StatusCode::kInvalidArgument, "--update-time: expected 0 to less than an iteration's {}, found {}",
                 HumanSeconds(goal.iteration_seconds), HumanSeconds(input.update_seconds));
  }
  CAIRN_RETURN_IF_ERROR(CheckRange("--training-cores", input.training_cores, 0, 1e5,
                                   [](double cores) { return fmt::format("{:g}", cores); }));
  if (const std::uint64_t most = input.free_bytes / kOneInFlightOnDisk; input.state_bytes > most) {
    return Error(StatusCode::kNoSpace,
                 "--state-bytes: expected at most {}, found {}: {} is free, and a checkpoint stays until the next one "
                 "is durable",
                 DecimalBytes(static_cast<double>(most)), DecimalBytes(static_cast<double>(input.state_bytes)),
                 DecimalBytes(static_cast<double>(input.free_bytes)));
  }
  bool measured = rates.copy > 0 && rates.checksum >= 0 && rates.slow_share > 0 && rates.slow_share <= 1 &&
                  rates.begin_seconds >= 0 && rates.commit_seconds >= 0 && rates.cpu_seconds_per_byte >= 0 &&
                  !rates.shapes.empty();
  for (const IoShape& shape : rates.shapes) {
    measured = measured && shape.write_rate > 0 && shape.chunk_bytes > 0 && shape.queue_depth > 0;
  }
  return measured ? Status::Ok() : Error(StatusCode::kInternal, "expected measured rates, found unset ones");
}

std::string MemoryAdvice(const TuneInput& input, const TuneChoice& choice) {
  return fmt::format("; with a pool of {}, capturing {} takes {}: --memory above {} would shorten it",
                     DecimalBytes(static_cast<double>(choice.pool_bytes)),
                     DecimalBytes(static_cast<double>(input.state_bytes)), HumanSeconds(choice.captured_seconds),
                     DecimalBytes(static_cast<double>(input.memory_bytes)));
}

}  // namespace

std::string_view BoundName(Bound bound) {
  constexpr std::array<std::string_view, 5> kNames = {"nothing", "disk", "slowdown", "failures", "memory"};
  return kNames.at(static_cast<std::size_t>(bound));
}

IntervalChoice Predict(const TuneGoal& goal, const SaveCost& cost, std::uint64_t iterations) {
  const double work = static_cast<double>(iterations) * goal.iteration_seconds;
  const double period = std::max(work + cost.stall, cost.write);
  const double mtbf = goal.mtbf_seconds;
  const double lost = LostShare(period / mtbf);
  const double survives = std::exp(-cost.write / mtbf);
  return {.iterations = iterations,
          .period_seconds = period,
          .slowdown = period / work - 1,
          .lost_seconds = mtbf * (lost - (1 - lost) * std::expm1(-cost.write / mtbf)) + goal.restart_seconds,
          .goodput = work / period * (1 - lost) * survives * (mtbf / (mtbf + goal.restart_seconds))};
}

IntervalChoice ChooseInterval(const TuneGoal& goal, const SaveCost& cost) {
  std::uint64_t chosen = 1;
  Bound bound = Bound::kNothing;
  const auto at_least = [&](std::uint64_t iterations, Bound by) {
    if (iterations <= chosen) return;
    chosen = iterations;
    bound = by;
  };
  at_least(Iterations(DiskSeconds(cost) / goal.iteration_seconds), Bound::kDisk);
  at_least(Iterations(cost.stall / (goal.slowdown * goal.iteration_seconds)), Bound::kSlowdown);
  at_least(BestForFailures(goal, cost), Bound::kFailures);
  IntervalChoice choice = Predict(goal, cost, chosen);
  choice.bound = bound;
  return choice;
}

std::string Explain(const TuneGoal& goal, const SaveCost& cost, const IntervalChoice& choice) {
  switch (choice.bound) {
    case Bound::kNothing:
      return fmt::format("every iteration: a save is durable after {} and costs training {}, within an iteration's {}",
                         HumanSeconds(cost.write), HumanSeconds(cost.stall), HumanSeconds(goal.iteration_seconds));
    case Bound::kDisk:
      return fmt::format(
          "the time until it is on the disk: a save is durable after {} ({} when the disk is slow), an iteration takes "
          "{}; the stall would allow more saves",
          HumanSeconds(cost.write), HumanSeconds(cost.write_slow), HumanSeconds(goal.iteration_seconds));
    case Bound::kSlowdown:
      return fmt::format("the allowed slowdown: a save costs training {}, and saves may cost {:.3g} of its time",
                         HumanSeconds(cost.stall), goal.slowdown);
    case Bound::kFailures:
      return fmt::format(
          "failures (Young, Daly): a save costs training {}; with failures every {}, more saves cost more "
          "than they gain",
          HumanSeconds(cost.stall), HumanSeconds(goal.mtbf_seconds));
    case Bound::kMemory:
      return fmt::format("memory: a save costs training {}", HumanSeconds(cost.stall));
  }
  return {};
}

SlowestStage FindSlowestStage(const Rates& rates, double write_rate) {
  SlowestStage slowest{.name = "the disk", .bytes_per_second = write_rate};
  if (rates.checksum > 0 && rates.checksum < slowest.bytes_per_second) slowest = {"the checksums", rates.checksum};
  if (rates.copy < slowest.bytes_per_second) slowest = {"the copy", rates.copy};
  return slowest;
}

double EveryIterationSeconds(std::uint64_t state_bytes, const Rates& rates, const IoShape& shape) {
  const TuneInput input{.state_bytes = state_bytes};
  return DiskSeconds({.write = WriteSeconds(input, rates, shape, shape.write_rate),
                      .write_slow = WriteSeconds(input, rates, shape, shape.write_rate * rates.slow_share)});
}

SaveCost ModelCost(const TuneInput& input, const Rates& rates, const IoShape& shape, std::uint64_t pool_bytes) {
  const double captured = CapturedSeconds(input, rates, shape, pool_bytes);
  const double cpu = rates.cpu_seconds_per_byte * static_cast<double>(input.state_bytes);
  const double stolen = input.training_cores > 0 ? cpu / input.training_cores : 0.0;
  return {.stall = std::max(0.0, captured - WindowSeconds(input)) + stolen,
          .write = WriteSeconds(input, rates, shape, shape.write_rate),
          .write_slow = WriteSeconds(input, rates, shape, shape.write_rate * rates.slow_share)};
}

Result<TuneChoice> Choose(const TuneInput& input, const Rates& rates) {
  CAIRN_RETURN_IF_ERROR(Check(input, rates));
  TuneChoice choice;
  CAIRN_ASSIGN_OR_RETURN(choice.shape, ChooseShape(input, rates));
  choice.pool_bytes = PoolBytes(input, rates, choice.shape);
  choice.cost = ModelCost(input, rates, choice.shape, choice.pool_bytes);
  choice.captured_seconds = CapturedSeconds(input, rates, choice.shape, choice.pool_bytes);
  choice.every_iteration_seconds = DiskSeconds(choice.cost);
  choice.beyond_pool_seconds = BeyondPoolSeconds(input, rates, choice.shape, choice.pool_bytes);
  choice.interval = ChooseInterval(input.goal, choice.cost);
  choice.bytes_per_day = static_cast<double>(input.state_bytes) / choice.interval.period_seconds * kDay;
  const std::uint64_t whole = AlignUp(input.state_bytes, choice.shape.chunk_bytes);
  if (choice.interval.bound == Bound::kSlowdown || choice.interval.bound == Bound::kFailures) {
    const SaveCost unbounded = ModelCost(input, rates, choice.shape, whole);
    if (ChooseInterval(input.goal, unbounded).iterations < choice.interval.iterations) {
      choice.interval.bound = Bound::kMemory;
    }
  }
  const bool room = input.free_bytes / kTwoInFlightOnDisk >= input.state_bytes;
  choice.max_in_flight = room && kOutlierFactor * choice.cost.write_slow > choice.interval.period_seconds ? 2 : 1;
  choice.why = Explain(input.goal, choice.cost, choice.interval);
  if (choice.interval.bound == Bound::kMemory) choice.why += MemoryAdvice(input, choice);
  return choice;
}

}  // namespace cairn
