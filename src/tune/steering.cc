#include "tune/steering.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace cairn {
namespace {

constexpr std::size_t kIterationsFirst = 5;  // Timed before the first save.
constexpr std::size_t kIterationsKept = 32;
constexpr std::size_t kSavesKept = 16;

void Keep(std::deque<double>& values, double value, std::size_t most) {
  values.push_back(value);
  if (values.size() > most) values.pop_front();
}

double Quantile(const std::deque<double>& values, double share) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

/// Without the highest and the lowest tenth, so that an occasional evaluation does not count.
double TrimmedMean(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const auto cut = static_cast<std::ptrdiff_t>((sorted.size() + 9) / 10);
  if (2 * cut >= static_cast<std::ptrdiff_t>(sorted.size())) return sorted[sorted.size() / 2];
  const auto count = static_cast<double>(sorted.size()) - 2 * static_cast<double>(cut);
  return std::accumulate(sorted.begin() + cut, sorted.end() - cut, 0.0) / count;
}

}  // namespace

bool Steering::ShouldSave(std::uint64_t step, Time now) {
  RecordStep(step, now);
  if (!saved_step_) return clean_iterations_.size() >= kIterationsFirst;
  if (!choice_) return in_flight_ == 0;
  return step >= *saved_step_ && step - *saved_step_ >= choice_->iterations;
}

void Steering::RecordStep(std::uint64_t step, Time now) {
  if (step_ && step == *step_) return;
  const bool forward = step_ && step > *step_;
  // The very first iteration includes one-time work.
  const bool first = !step_ || (clean_iterations_.empty() && !saved_step_ && disturbed_);
  if (forward && !first) {
    const double seconds = std::chrono::duration<double>(now - time_).count();
    const auto iterations = static_cast<double>(step - *step_);
    if (!disturbed_) {
      Keep(clean_iterations_, std::max(seconds / iterations, 1e-9), kIterationsKept);
      goal_.iteration_seconds = TrimmedMean(clean_iterations_);
    } else if (excess_) {
      *excess_ += seconds - iterations * goal_.iteration_seconds;
    }
  }
  if (step_ && !forward) {
    // The time since then was a restore.
    saved_step_ = saved_step_ ? std::optional(step) : std::nullopt;
    excess_.reset();
  }
  disturbed_ = in_flight_ > 0 || !step_ || !forward;
  step_ = step;
  time_ = now;
  if (in_flight_ == 0) RecordStall();
}

void Steering::SaveBegun(std::uint64_t step) {
  RecordStall();
  saved_step_ = step;
  excess_ = 0;
  disturbed_ = true;
  ++in_flight_;
}

void Steering::SaveEnded(Time begun, Time ended, bool durable) {
  --in_flight_;
  disturbed_ = true;
  if (!durable) {
    if (in_flight_ == 0) excess_.reset();
    return;
  }
  Keep(writes_, std::chrono::duration<double>(ended - std::max(begun, disk_free_)).count(), kSavesKept);
  disk_free_ = ended;
}

void Steering::RecordStall() {
  if (!excess_ || goal_.iteration_seconds <= 0) return;
  Keep(stalls_, std::max(*excess_, 0.0), kSavesKept);
  excess_.reset();
  Choose();
}

void Steering::Choose() {
  if (writes_.empty() || stalls_.empty()) return;
  cost_ = {.stall = Quantile(stalls_, 0.5), .write = Quantile(writes_, 0.5), .write_slow = Quantile(writes_, 0.75)};
  choice_ = ChooseInterval(goal_, cost_);
}

std::string Steering::why() const {
  if (choice_) return Explain(goal_, cost_, *choice_);
  if (!saved_step_) return "timing iterations before the first save";
  return in_flight_ > 0 ? "measuring the first save" : "no save has become durable yet";
}

}  // namespace cairn
