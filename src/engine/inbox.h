#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "io/io_queue.h"

namespace cairn {

/// Closures from other threads for the engine's thread, and the wake-up of its queue. Shared by all who may post, and
/// outlives the engine; closures posted after the engine's end are dropped.
class Inbox {
 public:
  using Message = std::function<void()>;

  /// For the engine's thread.
  void Attach(IoQueue* queue) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    queue_ = queue;
  }
  void Detach() CAIRN_EXCLUDES(mutex_) {
    std::vector<Message> dropped;  // Destroyed without the lock: they may own an object that posts.
    MutexLock lock(mutex_);
    queue_ = nullptr;
    dropped.swap(messages_);
  }
  [[nodiscard]] std::vector<Message> Take() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::exchange(messages_, {});
  }

  /// Any thread.
  void Post(Message message) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (queue_ == nullptr) return;
    messages_.push_back(std::move(message));
    if (messages_.size() == 1) queue_->Wake();
  }
  void Wake() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (queue_ != nullptr) queue_->Wake();
  }

 private:
  Mutex mutex_;
  IoQueue* queue_ CAIRN_GUARDED_BY(mutex_) = nullptr;
  std::vector<Message> messages_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
