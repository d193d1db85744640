#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cairn/group.h"

namespace cairn {

/// One rank's end of a group. A test can lose or change the messages that it sends, hold back those that it receives,
/// expire its waits, and break it. Safe from any thread.
class HeldGroup final : public Group {
 public:
  explicit HeldGroup(std::shared_ptr<Group> inner) : inner_(std::move(inner)) {}

  /// What this rank sends or announces under keys with this prefix never arrives anywhere.
  void Lose(std::string prefix) {
    MutexLock lock(state_->mutex);
    state_->lost = std::move(prefix);
  }
  /// This rank says `message` instead of what it sends or announces under keys with this prefix.
  void Say(std::string prefix, std::string message) {
    MutexLock lock(state_->mutex);
    state_->said = {std::move(prefix), std::move(message)};
  }
  /// What arrives under keys with this prefix is delivered to this rank at Release.
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
  /// Ends this rank's waits under keys with this prefix, now and later, as if their deadline had passed.
  void Expire(const std::string& prefix) { End(prefix, StatusCode::kDeadlineExceeded); }
  /// As if the store that carries this rank's messages were lost: every wait ends, now and later, and nothing that it
  /// says arrives.
  void Break() {
    {
      MutexLock lock(state_->mutex);
      state_->broken = true;
    }
    End("", StatusCode::kIoError);
  }

  /// Waits until this rank has sent or announced something under a key that begins so.
  [[nodiscard]] bool WaitSaid(const std::string& prefix, Deadline deadline) const {
    const auto said = [&]() CAIRN_REQUIRES(state_->mutex) {
      const auto next = state_->keys.lower_bound(prefix);
      return next != state_->keys.end() && next->starts_with(prefix);
    };
    MutexLock lock(state_->mutex);
    while (!said() && !deadline.passed()) state_->changed.WaitUntil(state_->mutex, deadline);
    return said();
  }
  /// Bytes of keys and messages delivered to this rank so far.
  [[nodiscard]] std::uint64_t bytes_heard() const { return state_->bytes_heard; }

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void Send(const std::string& key, std::string message) override {
    if (Passes(key, message)) inner_->Send(key, std::move(message));
  }
  void Announce(const std::string& key, std::string message) override {
    if (Passes(key, message)) inner_->Announce(key, std::move(message));
  }
  void Await(const std::string& key, Deadline deadline, OnAnnounced on_announced) override {
    const std::uint64_t id = Register(key, on_announced);
    if (id == 0) return;
    inner_->Await(key, deadline, [state = state_, id, key, on_announced](Result<std::string> message) {
      if (message.ok()) state->bytes_heard += key.size() + message->size();
      Deliver(*state, id, true, [on_announced, message = std::move(message)] { on_announced(message); });
    });
  }
  void Collect(const std::string& key, Deadline deadline, OnMessage on_message, OnEnd end) override {
    const std::uint64_t id = Register(key, end);
    if (id == 0) return;
    inner_->Collect(
        key, deadline,
        [state = state_, id, key, on_message = std::move(on_message)](int rank, std::string message) {
          state->bytes_heard += key.size() + message.size();
          Deliver(*state, id, false, [on_message, rank, message = std::move(message)] { on_message(rank, message); });
        },
        [state = state_, id, end](Status status) {
          Deliver(*state, id, true, [end, status = std::move(status)] { end(status); });
        });
  }

 private:
  struct Wait {
    std::string key;
    std::function<void(Status)> fail;
  };
  struct State {
    Mutex mutex;
    CondVar changed;
    std::set<std::string> keys CAIRN_GUARDED_BY(mutex);  // That this rank has used.
    std::string lost CAIRN_GUARDED_BY(mutex);
    std::pair<std::string, std::string> said CAIRN_GUARDED_BY(mutex);  // Prefix, message.
    std::string held CAIRN_GUARDED_BY(mutex);
    std::optional<std::string> ended CAIRN_GUARDED_BY(mutex);  // Prefix.
    StatusCode why CAIRN_GUARDED_BY(mutex) = StatusCode::kOk;
    bool broken CAIRN_GUARDED_BY(mutex) = false;
    std::uint64_t next CAIRN_GUARDED_BY(mutex) = 0;
    std::map<std::uint64_t, Wait> waits CAIRN_GUARDED_BY(mutex);  // By number: those that have not ended.
    std::vector<std::function<void()>> waiting CAIRN_GUARDED_BY(mutex);
    std::atomic<std::uint64_t> bytes_heard = 0;
  };

  static Status Why(StatusCode code, const std::string& key) { return {code, "\"" + key + "\": ended by the test"}; }

  bool Passes(const std::string& key, std::string& message) {
    MutexLock lock(state_->mutex);
    state_->keys.insert(key);
    state_->changed.NotifyAll();
    if (!state_->said.first.empty() && key.starts_with(state_->said.first)) message = state_->said.second;
    return !state_->broken && (state_->lost.empty() || !key.starts_with(state_->lost));
  }

  /// 0 where the wait has ended at once.
  std::uint64_t Register(const std::string& key, std::function<void(Status)> fail) {
    StatusCode why = StatusCode::kOk;
    {
      MutexLock lock(state_->mutex);
      if (!state_->ended || !key.starts_with(*state_->ended)) {
        state_->waits.emplace(++state_->next, Wait{key, std::move(fail)});
        return state_->next;
      }
      why = state_->why;
    }
    fail(Why(why, key));
    return 0;
  }

  void End(const std::string& prefix, StatusCode why) {
    std::vector<Wait> ended;
    {
      MutexLock lock(state_->mutex);
      state_->ended = prefix;
      state_->why = why;
      std::erase_if(state_->waits, [&](const auto& one) {
        const bool ends = one.second.key.starts_with(prefix);
        if (ends) ended.push_back(one.second);
        return ends;
      });
    }
    for (const Wait& wait : ended) wait.fail(Why(why, wait.key));
  }

  static void Deliver(State& state, std::uint64_t id, bool last, std::function<void()> tell) {
    {
      MutexLock lock(state.mutex);
      const auto wait = state.waits.find(id);
      if (wait == state.waits.end()) return;
      const bool held = !state.held.empty() && wait->second.key.starts_with(state.held);
      if (last) state.waits.erase(wait);
      if (held) return state.waiting.push_back(std::move(tell));
    }
    tell();
  }

  const std::shared_ptr<Group> inner_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();  // Callbacks may outlive this.
};

}  // namespace cairn
