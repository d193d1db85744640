#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"

namespace cairn::bench {

/// One save as the loop saw it. Times are seconds since the loop began.
struct SaveRecord {
  std::uint64_t step = 0;
  double started = 0;             ///< Save was called: the state is this old.
  double returned = 0;            ///< Save returned.
  std::optional<double> durable;  ///< None if a newer one overtook it, or it failed.
};

/// When each save began and ended. Safe from any thread.
class SaveLog {
 public:
  void Started(std::uint64_t step, double at) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    saves_.push_back({.step = step, .started = at, .returned = at, .durable = {}});
  }
  /// Of the save that was started last.
  void Returned(double at) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    saves_.back().returned = at;
  }
  void Durable(std::uint64_t step, double at) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (SaveRecord& save : saves_) {
      if (save.step == step) save.durable = at;
    }
  }
  [[nodiscard]] std::vector<SaveRecord> saves() const CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return saves_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<SaveRecord> saves_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::bench
