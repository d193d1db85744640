#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "cairn/group.h"

namespace cairn {

/// A key-value store in this process, which can be lost, or hang.
class MemoryStore : public std::enable_shared_from_this<MemoryStore> {
 public:
  ~MemoryStore() = default;

  KeyValueStore Connect() {
    const auto store = shared_from_this();
    return {
        .set = [store](const std::string& key, const std::string& value) { return store->Set(key, value).status(); },
        .set_if_absent = [store](const std::string& key,
                                 const std::string& value) { return store->SetIfAbsent(key, value); },
        .get = [store](const std::string& key) { return store->Get(key); },
        .check = [store](const std::string& key) { return store->Check(key); },
        .wait = [store](const std::string& key,
                        std::chrono::milliseconds timeout) { return store->Wait(key, Deadline::In(timeout)); },
        .add = [store](const std::string& key, std::int64_t amount) { return store->Add(key, amount); },
        .erase = [store](const std::string& key) { return store->Erase(key).status(); },
    };
  }

  /// From now on every call fails, also those that wait.
  void Lose(Status why) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    lost_ = std::move(why);
    changed_.NotifyAll();
  }
  /// While it hangs no call returns.
  void Hang(bool hangs) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    hangs_ = hangs;
    changed_.NotifyAll();
  }
  /// Returns once a call has waited for a key that has this part.
  void AwaitWaiting(const std::string& part) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto has_part = [&part](const std::string& key) { return key.find(part) != std::string::npos; };
    while (std::ranges::none_of(waited_for_, has_part)) changed_.Wait(mutex_);
  }
  [[nodiscard]] std::map<std::string, std::string> contents() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return contents_;
  }

  Result<bool> Set(const std::string& key, const std::string& value) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!Answers()) return lost_;
    contents_[key] = value;
    changed_.NotifyAll();
    return true;
  }
  Result<bool> SetIfAbsent(const std::string& key, const std::string& value) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!Answers()) return lost_;
    changed_.NotifyAll();
    return contents_.emplace(key, value).second;
  }
  Result<std::string> Get(const std::string& key) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!Answers()) return lost_;
    const auto found = contents_.find(key);
    if (found == contents_.end()) return Status(StatusCode::kNotFound, "no " + key);
    return found->second;
  }
  Result<bool> Check(const std::string& key) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!Answers()) return lost_;
    return contents_.contains(key);
  }
  Result<bool> Wait(const std::string& key, Deadline deadline) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    waited_for_.insert(key);
    changed_.NotifyAll();
    while (Answers() && !contents_.contains(key) && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
    if (!lost_.ok()) return lost_;
    return contents_.contains(key);
  }
  Result<std::int64_t> Add(const std::string& key, std::int64_t amount) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!Answers()) return lost_;
    const auto found = contents_.find(key);
    const std::int64_t sum = (found == contents_.end() ? 0 : std::stoll(found->second)) + amount;
    contents_[key] = std::to_string(sum);
    changed_.NotifyAll();
    return sum;
  }
  Result<bool> Erase(const std::string& key) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!Answers()) return lost_;
    return contents_.erase(key) != 0;
  }

 private:
  /// Waits while it hangs. False once it is lost.
  bool Answers() CAIRN_REQUIRES(mutex_) {
    while (hangs_ && lost_.ok()) changed_.Wait(mutex_);
    return lost_.ok();
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> contents_ CAIRN_GUARDED_BY(mutex_);
  std::set<std::string> waited_for_ CAIRN_GUARDED_BY(mutex_);
  Status lost_ CAIRN_GUARDED_BY(mutex_);
  bool hangs_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
