#include "api/steered_saves.h"

#include <chrono>

namespace cairn {

std::unique_ptr<SteeredSaves> SteeredSaves::Make(const SteeringOptions& options, TimeSource now) {
  const auto seconds = [](std::chrono::nanoseconds span) { return std::chrono::duration<double>(span).count(); };
  const TuneGoal goal{.slowdown = options.slowdown,
                      .mtbf_seconds = seconds(options.mtbf),
                      .restart_seconds = seconds(options.restart_time)};
  return std::unique_ptr<SteeredSaves>(new SteeredSaves(goal, std::move(now)));
}

void SteeredSaves::Begun(const std::shared_ptr<SaveTask>& task) {
  MutexLock lock(mutex_);
  ReportEnded(now_());  // Here too: a job may save without ever calling ShouldSave.
  steering_.SaveBegun(task->plan().step);
  in_flight_.push_back(task);
}

bool SteeredSaves::ShouldSave(std::uint64_t step) {
  const auto now = now_();
  MutexLock lock(mutex_);
  ReportEnded(now);
  return steering_.ShouldSave(step, now);
}

void SteeredSaves::ReportEnded(Steering::Time now) {
  std::erase_if(in_flight_, [&](const std::shared_ptr<SaveTask>& task) CAIRN_REQUIRES(mutex_) {
    const SaveStats stats = task->stats();
    if (stats.phase < SavePhase::kKept) return false;
    const bool good = stats.phase != SavePhase::kFailed;
    const auto took = stats.kept.count() != 0 ? stats.kept : stats.durable;
    steering_.SaveEnded(task->begun(), good ? task->begun() + took : now, good);
    return true;
  });
}

void SteeredSaves::AddStats(CheckpointerStats& stats) const {
  MutexLock lock(mutex_);
  stats.save_interval = steering_.choice() ? steering_.choice()->iterations : 0;
  stats.save_interval_reason = steering_.why();
}

}  // namespace cairn
