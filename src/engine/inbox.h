#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "io/io_queue.h"

namespace cairn {

/// How other threads reach the engine's thread: closures it runs, and the wake-up of the queue it sleeps in. Outlives
/// both, held by whoever may still call: what comes after the engine's end is dropped.
class Inbox {
 public:
  using Message = std::function<void()>;

  /// The engine's thread, while it runs.
  void Attach(IoQueue* queue) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    queue_ = queue;
  }
  void Detach() CAIRN_EXCLUDES(mutex_) {
    std::vector<Message> dropped;  // Destroyed without the lock: they may own what posts.
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
