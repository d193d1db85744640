#include "device/rate_limit.h"

#include <algorithm>
#include <chrono>

namespace cairn {
namespace {

// Timers wake sleepers late. So much lost time may be made up for, but no idle time beyond it.
constexpr std::chrono::milliseconds kBurst{1};

}  // namespace

void RateLimit::Pass(std::uint64_t bytes) {
  const std::chrono::duration<double> span(static_cast<double>(bytes) / bytes_per_second_);
  MutexLock lock(mutex_);
  const auto from = modelled_ != nullptr ? modelled_->Now() : Deadline::Clock::now() - kBurst;
  passed_at_ = std::max(passed_at_, from) + std::chrono::duration_cast<Deadline::Clock::duration>(span);
  if (modelled_ != nullptr) return modelled_->AdvanceTo(passed_at_);
  const Deadline mine = Deadline::At(passed_at_);
  while (!mine.passed()) time_.WaitUntil(mutex_, mine);
}

}  // namespace cairn
