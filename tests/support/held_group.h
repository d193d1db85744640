#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "group/group.h"

namespace cairn {

/// One rank's end of a group, whose words can be lost on the way out, and held back on the way in, and whose deadlines
/// pass when a test says so. Safe from any thread.
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

  /// This rank waits no longer for what is gathered under keys that begin so, now and later, as if its deadline had
  /// passed. What it gives still arrives.
  void Expire(std::string prefix) {
    std::vector<std::pair<std::string, Gathered>> late;
    {
      MutexLock lock(state_->mutex);
      state_->expired = prefix;
      std::erase_if(state_->waits, [&](const auto& one) {
        const bool expires = one.second.first.starts_with(prefix);
        if (expires) late.push_back(one.second);
        return expires;
      });
    }
    for (const auto& [key, done] : late) done(Expired(key));
  }

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void AllGather(const std::string& key, std::string bytes, Deadline deadline, Gathered done) override {
    std::uint64_t id = 0;
    bool expired = false;
    {
      MutexLock lock(state_->mutex);
      if (!state_->lost.empty() && key.starts_with(state_->lost)) return;
      expired = !state_->expired.empty() && key.starts_with(state_->expired);
      id = ++state_->next;
      if (!expired) state_->waits.emplace(id, std::pair(key, done));
    }
    inner_->AllGather(key, std::move(bytes), deadline, [state = state_, id](Result<std::vector<std::string>> gathered) {
      Pass(*state, id, std::move(gathered));
    });
    if (expired) done(Expired(key));
  }

 private:
  struct State {
    Mutex mutex;
    std::string lost CAIRN_GUARDED_BY(mutex);
    std::string held CAIRN_GUARDED_BY(mutex);
    std::string expired CAIRN_GUARDED_BY(mutex);
    std::uint64_t next CAIRN_GUARDED_BY(mutex) = 0;
    // By number: those that are neither told nor expired.
    std::map<std::uint64_t, std::pair<std::string, Gathered>> waits CAIRN_GUARDED_BY(mutex);
    std::vector<std::function<void()>> waiting CAIRN_GUARDED_BY(mutex);
  };

  static Status Expired(const std::string& key) {
    return {StatusCode::kDeadlineExceeded, "gathering \"" + key + "\": the test's deadline passed"};
  }
  static void Pass(State& state, std::uint64_t id, Result<std::vector<std::string>> gathered) {
    Gathered done;
    {
      MutexLock lock(state.mutex);
      const auto wait = state.waits.find(id);
      if (wait == state.waits.end()) return;
      const auto [key, told] = std::move(wait->second);
      state.waits.erase(wait);
      done = told;
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
