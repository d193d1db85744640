#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "group/group.h"

namespace cairn {

/// One rank's end of a group, whose words can be lost on the way out, and held back on the way in. Safe from any
/// thread.
class HeldGroup final : public Group {
 public:
  explicit HeldGroup(std::shared_ptr<Group> inner) : inner_(std::move(inner)) {}

  /// What this rank gives under keys that begin so never arrives anywhere. It hears nothing back either.
  void Lose(std::string prefix) {
    MutexLock lock(state_->mutex);
    state_->lost = std::move(prefix);
  }
  /// What is gathered under keys that begin so is told to this rank at Release.
  void Hold(std::string prefix) {
    MutexLock lock(state_->mutex);
    state_->held = std::move(prefix);
  }
  void Release() {
    std::vector<std::function<void()>> waiting;
    {
      MutexLock lock(state_->mutex);
      state_->held.clear();
      waiting.swap(state_->waiting);
    }
    for (const auto& tell : waiting) tell();
  }

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void AllGather(const std::string& key, std::string bytes, Deadline deadline, Gathered done) override {
    {
      MutexLock lock(state_->mutex);
      if (!state_->lost.empty() && key.starts_with(state_->lost)) return;
    }
    inner_->AllGather(key, std::move(bytes), deadline,
                      [state = state_, key, done = std::move(done)](Result<std::vector<std::string>> gathered) {
                        Pass(*state, key, done, std::move(gathered));
                      });
  }

 private:
  struct State {
    Mutex mutex;
    std::string lost CAIRN_GUARDED_BY(mutex);
    std::string held CAIRN_GUARDED_BY(mutex);
    std::vector<std::function<void()>> waiting CAIRN_GUARDED_BY(mutex);
  };

  static void Pass(State& state, const std::string& key, const Gathered& done,
                   Result<std::vector<std::string>> gathered) {
    {
      MutexLock lock(state.mutex);
      if (!state.held.empty() && key.starts_with(state.held)) {
        state.waiting.push_back([done, gathered = std::move(gathered)] { done(gathered); });
        return;
      }
    }
    done(std::move(gathered));
  }

  const std::shared_ptr<Group> inner_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();  // Callbacks may outlive this.
};

}  // namespace cairn
