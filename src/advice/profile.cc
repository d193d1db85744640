#include "advice/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

// The default of Options::worker_threads has at most as many.
constexpr int kMostWorkers = 4;
// Memory is divided until a stretch is this share of the whole.
constexpr double kMemoryStep = 1.0 / 16;
// Quotas below so many cores come in quarters of a core.
constexpr double kFewCores = 4;
constexpr double kQuarter = 0.25;

/// A resource, and what is linear in it: throughput in cores, the time of an iteration in memory.
enum class Axis : std::uint8_t { kCores, kMemory };

struct Point {
  double amount = 0;
  double throughput = 0;
};

/// Throughput at `amount`, between two points.
double Between(Axis axis, const Point& low, const Point& high, double amount) {
  const double share = (amount - low.amount) / (high.amount - low.amount);
  if (axis == Axis::kCores) return low.throughput + share * (high.throughput - low.throughput);
  if (low.throughput <= 0) return amount >= high.amount ? high.throughput : 0;
  return 1 / (1 / low.throughput + share * (1 / high.throughput - 1 / low.throughput));
}

/// The least amount of an increasing stretch with this throughput.
double Reaches(Axis axis, const Point& low, const Point& high, double throughput) {
  if (low.throughput >= throughput) return low.amount;
  if (axis == Axis::kMemory && low.throughput <= 0) return high.amount;
  const auto of = [axis](double value) { return axis == Axis::kCores ? value : 1 / value; };
  const double share = (of(throughput) - of(low.throughput)) / (of(high.throughput) - of(low.throughput));
  return low.amount + share * (high.amount - low.amount);
}

double Amount(Axis axis, const Budget& budget) {
  return axis == Axis::kCores ? budget.cores : static_cast<double>(budget.memory_bytes);
}

bool IsOn(Axis axis, const Budget& budget, const Budget& full) {
  return axis == Axis::kCores ? budget.memory_bytes == full.memory_bytes : budget.cores == full.cores;
}

/// The samples of one axis, by rising amount, as measured.
std::vector<Point> MeasuredPoints(const Profile& profile, Axis axis) {
  std::vector<Point> points;
  for (const ProfileSample& sample : profile.samples) {
    if (IsOn(axis, sample.budget, profile.full)) points.push_back({Amount(axis, sample.budget), sample.throughput});
  }
  // More memory than the job ever used changes nothing.
  const auto peak = static_cast<double>(profile.peak_bytes);
  if (axis == Axis::kMemory && peak > 0 && peak < Amount(axis, profile.full) && !profile.samples.empty()) {
    points.push_back({peak, profile.samples.front().throughput});
  }
  // Without cores nothing runs.
  if (axis == Axis::kCores) points.push_back({0, 0});
  std::ranges::sort(points, [](const Point& a, const Point& b) { return a.amount < b.amount; });
  return points;
}

/// The same, never decreasing: neighbours that decrease get their mean (pool adjacent violators).
std::vector<Point> Curve(const Profile& profile, Axis axis) {
  std::vector<Point> points = MeasuredPoints(profile, axis);
  std::vector<std::pair<double, std::size_t>> pools;  // Mean, and how many points.
  for (const Point& point : points) {
    pools.emplace_back(point.throughput, 1);
    while (pools.size() > 1 && pools[pools.size() - 2].first > pools.back().first) {
      const auto [mean, count] = pools.back();
      pools.pop_back();
      auto& [before, all] = pools.back();
      before =
          (before * static_cast<double>(all) + mean * static_cast<double>(count)) / static_cast<double>(all + count);
      all += count;
    }
  }
  std::size_t at = 0;
  for (const auto& [mean, count] : pools) {
    for (std::size_t i = 0; i < count; ++i) points[at++].throughput = mean;
  }
  return points;
}

double OnCurve(Axis axis, const std::vector<Point>& curve, double amount) {
  if (amount >= curve.back().amount) return curve.back().throughput;
  if (amount < curve.front().amount) return 0;
  const auto above = std::upper_bound(curve.begin(), curve.end(), amount,
                                      [](double value, const Point& point) { return value < point.amount; });
  return Between(axis, above[-1], *above, amount);
}

bool Near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * std::max(a, b); }

/// Whether its neighbours would have told this point.
bool IsPredicted(Axis axis, const std::vector<Point>& points, std::size_t i, double tolerance) {
  if (i == 0 || i + 1 == points.size() || points[i].throughput <= 0) return false;
  return Near(Between(axis, points[i - 1], points[i + 1], points[i].amount), points[i].throughput, tolerance);
}

/// Between two points, as the machine can give it; none if there is nothing between.
std::optional<double> Middle(Axis axis, const Point& low, const Point& high, const Profile& profile,
                             const ProfileLimits& limits) {
  const double middle = (low.amount + high.amount) / 2;
  if (axis == Axis::kMemory) {
    if (high.amount - low.amount <= kMemoryStep * std::max(static_cast<double>(profile.peak_bytes), high.amount)) {
      return std::nullopt;
    }
    return std::floor(middle);
  }
  const double step = limits.fractions && middle < kFewCores ? kQuarter : 1;
  const double rounded = std::round(middle / step) * step;
  if (rounded <= low.amount || rounded >= high.amount || rounded < limits.least_cores) return std::nullopt;
  return rounded;
}

/// Half of the lowest budget so far, until the job has lost half of its speed: less would only confirm it.
std::optional<double> Halve(Axis axis, const std::vector<Point>& points, const ProfileLimits& limits) {
  const auto lowest = std::ranges::find_if(points, [](const Point& point) { return point.amount > 0; });
  if (lowest->throughput <= points.back().throughput / 2) return std::nullopt;
  double half = lowest->amount / 2;
  if (axis == Axis::kMemory || half >= 1 || !limits.fractions) half = std::floor(half);
  const double least = axis == Axis::kCores ? limits.least_cores : static_cast<double>(limits.least_memory_bytes);
  return half > 0 && half >= least ? std::optional(half) : std::nullopt;
}

std::optional<double> NextOn(Axis axis, const Profile& profile, const ProfileLimits& limits) {
  const std::vector<Point> points = MeasuredPoints(profile, axis);
  if (const std::optional<double> half = Halve(axis, points, limits)) return half;
  for (std::size_t i = points.size() - 1; i > 0; --i) {
    const Point& low = points[i - 1];
    const Point& high = points[i];
    // A loader has no knee below its lowest measured cores.
    if (axis == Axis::kCores && low.throughput <= 0) continue;
    if (Near(low.throughput, high.throughput, profile.tolerance) || low.throughput > high.throughput) continue;
    if (IsPredicted(axis, points, i - 1, profile.tolerance) || IsPredicted(axis, points, i, profile.tolerance)) {
      continue;
    }
    if (const std::optional<double> middle = Middle(axis, low, high, profile, limits)) return middle;
  }
  return std::nullopt;
}

/// Two samples of which the smaller budget gave more, beyond the tolerance.
struct Contradiction {
  const ProfileSample* less = nullptr;
  const ProfileSample* more = nullptr;
};

/// With `once`, only where the larger budget was measured once.
std::optional<Contradiction> FindContradiction(const Profile& profile, Axis axis, bool once = false) {
  for (const ProfileSample& more : profile.samples) {
    if (!IsOn(axis, more.budget, profile.full) || (once && more.again)) continue;
    for (const ProfileSample& less : profile.samples) {
      if (!IsOn(axis, less.budget, profile.full) || Amount(axis, less.budget) >= Amount(axis, more.budget)) continue;
      if (less.throughput > more.throughput && !Near(less.throughput, more.throughput, profile.tolerance)) {
        return Contradiction{&less, &more};
      }
    }
  }
  return std::nullopt;
}

std::string Explain(Axis axis, const Contradiction& found) {
  const auto amount = [axis](const ProfileSample& sample) {
    return axis == Axis::kCores ? fmt::format("{:.3g} cores", sample.budget.cores)
                                : HumanBytes(sample.budget.memory_bytes);
  };
  return fmt::format("with {} it was faster ({:.4g} iterations/s) than with {} ({:.4g}, the better of two runs)",
                     amount(*found.less), found.less->throughput, amount(*found.more), found.more->throughput);
}

/// The least amount that keeps the throughput within the tolerance.
double KneeOn(const Profile& profile, Axis axis) {
  if (FindContradiction(profile, axis)) return Amount(axis, profile.full);
  const std::vector<Point> curve = Curve(profile, axis);
  const double enough = curve.back().throughput * (1 - profile.tolerance);
  // Below the lowest measured point nothing is known.
  std::size_t lowest = 0;
  while (lowest + 1 < curve.size() && curve[lowest].throughput <= 0) ++lowest;
  if (curve[lowest].throughput >= enough) return curve[lowest].amount;
  for (std::size_t i = lowest + 1; i < curve.size(); ++i) {
    if (curve[i].throughput >= enough) return Reaches(axis, curve[i - 1], curve[i], enough);
  }
  return curve.back().amount;
}

// Beyond these, sums and quotients of measured numbers could overflow.
constexpr double kLeastNumber = 1e-9;
constexpr double kMostCores = 1e6;
constexpr double kMostThroughput = 1e12;
constexpr std::uint64_t kMostMemory = std::uint64_t{1} << 60;
constexpr std::size_t kMostSamples = 1000;

Status CheckNumber(const std::string& field, double found, double most) {
  if (found >= kLeastNumber && found <= most) return Status::Ok();
  return Error(StatusCode::kInvalidArgument, "{}: expected a number above 0, from {:g} to {:g}, found {}", field,
               kLeastNumber, most, found);
}

Status CheckMemory(const std::string& field, std::uint64_t found) {
  if (found <= kMostMemory) return Status::Ok();
  return Error(StatusCode::kInvalidArgument, "{}: expected at most {}, found {}", field, HumanBytes(kMostMemory),
               HumanBytes(found));
}

}  // namespace

std::optional<Budget> NextBudget(const Profile& profile, const ProfileLimits& limits) {
  if (profile.samples.empty()) return profile.full;
  for (const Axis axis : {Axis::kCores, Axis::kMemory}) {
    if (const auto found = FindContradiction(profile, axis, /*once=*/true)) return found->more->budget;
  }
  if (profile.samples.size() >= limits.most_samples) return std::nullopt;
  if (const auto cores = NextOn(Axis::kCores, profile, limits)) return Budget{*cores, profile.full.memory_bytes};
  if (profile.full.memory_bytes == 0) return std::nullopt;
  if (const auto memory = NextOn(Axis::kMemory, profile, limits)) {
    return Budget{profile.full.cores, static_cast<std::uint64_t>(*memory)};
  }
  return std::nullopt;
}

void AddSample(Profile& profile, ProfileSample sample) {
  const auto before = std::ranges::find_if(profile.samples,
                                           [&sample](const ProfileSample& one) { return one.budget == sample.budget; });
  if (before == profile.samples.end()) {
    profile.samples.push_back(std::move(sample));
    return;
  }
  if (sample.throughput > before->throughput) *before = std::move(sample);
  before->again = true;
}

double PredictThroughput(const Profile& profile, const Budget& budget) {
  double throughput = OnCurve(Axis::kCores, Curve(profile, Axis::kCores), budget.cores);
  if (profile.full.memory_bytes > 0 && budget.memory_bytes > 0) {
    const double memory = OnCurve(Axis::kMemory, Curve(profile, Axis::kMemory), Amount(Axis::kMemory, budget));
    throughput = std::min(throughput, memory);
  }
  return throughput;
}

Budget FindKnee(const Profile& profile) {
  Budget knee{.cores = KneeOn(profile, Axis::kCores)};
  if (profile.full.memory_bytes > 0) {
    knee.memory_bytes = static_cast<std::uint64_t>(std::ceil(KneeOn(profile, Axis::kMemory)));
  }
  return knee;
}

namespace {

void AdviseCores(const Profile& profile, const Budget& knee, ProfileAdvice& advice) {
  if (const auto found = FindContradiction(profile, Axis::kCores)) {
    advice.training_cores = profile.full.cores;
    advice.why.push_back(Explain(Axis::kCores, *found) + ": all cores count as needed");
    return;
  }
  advice.spare_cores = std::max(0.0, profile.full.cores - knee.cores);
  advice.worker_threads = static_cast<int>(std::clamp<double>(std::floor(advice.spare_cores), 1, kMostWorkers));
  const double full = PredictThroughput(profile, profile.full);
  // Of a single core a save's thread gets half.
  const double taken = std::min<double>(advice.worker_threads, profile.full.cores / 2);
  const double left = profile.full.cores - taken;
  const double lost = 1 - PredictThroughput(profile, {left, profile.full.memory_bytes}) / full;
  if (lost > 0) advice.training_cores = taken / lost;
  advice.why.push_back(
      left >= knee.cores
          ? fmt::format("the job keeps its speed with {:.2g} of {:.2g} cores: Cairn's threads may have the rest",
                        knee.cores, profile.full.cores)
          : fmt::format(
                "the job needs {:.2g} of {:.2g} cores: each core that a save uses for a second costs it {:.2g} s",
                knee.cores, profile.full.cores, lost / taken));
}

void AdviseMemory(const Profile& profile, const Budget& knee, ProfileAdvice& advice) {
  if (profile.full.memory_bytes == 0) {
    advice.why.emplace_back("memory was not profiled: host_memory stays \"auto\"");
    return;
  }
  if (const auto found = FindContradiction(profile, Axis::kMemory)) {
    advice.why.push_back(Explain(Axis::kMemory, *found) + ": host_memory stays \"auto\"");
    return;
  }
  advice.host_memory_bytes = profile.full.memory_bytes - std::min(profile.full.memory_bytes, knee.memory_bytes);
  advice.why.push_back(
      fmt::format("of {} it needs {}", HumanBytes(profile.full.memory_bytes), HumanBytes(knee.memory_bytes)));
}

}  // namespace

ProfileAdvice Advise(const Profile& profile) {
  const Budget knee = FindKnee(profile);
  ProfileAdvice advice;
  AdviseCores(profile, knee, advice);
  AdviseMemory(profile, knee, advice);
  advice.why.emplace_back("checksums run on the host: gpu_checksums, proven on an H200 alone, would take them off it");
  return advice;
}

Status CheckProfile(const Profile& profile) {
  CAIRN_RETURN_IF_ERROR(CheckNumber("full.cores", profile.full.cores, kMostCores));
  CAIRN_RETURN_IF_ERROR(CheckMemory("full.memory_bytes", profile.full.memory_bytes));
  CAIRN_RETURN_IF_ERROR(CheckMemory("full.peak_bytes", profile.peak_bytes));
  if (!(profile.tolerance > 0 && profile.tolerance < 1)) {
    return Error(StatusCode::kInvalidArgument, "tolerance: expected a share above 0 and below 1, found {}",
                 profile.tolerance);
  }
  if (profile.samples.empty()) {
    return Error(StatusCode::kInvalidArgument, "samples: expected at least the whole budget, found none");
  }
  if (profile.samples.size() > kMostSamples) {
    return Error(StatusCode::kInvalidArgument, "samples: expected at most {}, found {}", kMostSamples,
                 profile.samples.size());
  }
  for (std::size_t i = 0; i < profile.samples.size(); ++i) {
    const ProfileSample& sample = profile.samples[i];
    const std::string at = fmt::format("samples[{}]", i);
    CAIRN_RETURN_IF_ERROR(CheckNumber(at + ".cores", sample.budget.cores, kMostCores));
    CAIRN_RETURN_IF_ERROR(CheckMemory(at + ".memory_bytes", sample.budget.memory_bytes));
    if (i == 0 && !(sample.budget == profile.full)) {
      return Error(StatusCode::kInvalidArgument,
                   "samples[0]: expected the whole budget ({} cores, {} bytes), found {} cores, {} bytes",
                   profile.full.cores, profile.full.memory_bytes, sample.budget.cores, sample.budget.memory_bytes);
    }
    if (sample.throughput < 0) {
      return Error(StatusCode::kInvalidArgument, "{}.throughput: expected a number of at least 0, found {}", at,
                   sample.throughput);
    }
    if (sample.throughput != 0 || i == 0) {
      CAIRN_RETURN_IF_ERROR(CheckNumber(at + ".throughput", sample.throughput, kMostThroughput));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (sample.budget == profile.samples[j].budget) {
        return Error(StatusCode::kInvalidArgument, "{}: expected another budget than samples[{}] has, found the same",
                     at, j);
      }
    }
  }
  return Status::Ok();
}

}  // namespace cairn
