#pragma once

#include <condition_variable>
#include <mutex>

#include "cairn/options.h"

#if defined(__clang__)
#define CAIRN_ATTRIBUTE(x) __attribute__((x))
#else
#define CAIRN_ATTRIBUTE(x)
#endif
#define CAIRN_CAPABILITY(x) CAIRN_ATTRIBUTE(capability(x))
#define CAIRN_SCOPED_CAPABILITY CAIRN_ATTRIBUTE(scoped_lockable)
#define CAIRN_GUARDED_BY(x) CAIRN_ATTRIBUTE(guarded_by(x))
#define CAIRN_REQUIRES(...) CAIRN_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define CAIRN_EXCLUDES(...) CAIRN_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define CAIRN_ACQUIRE(...) CAIRN_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define CAIRN_RELEASE(...) CAIRN_ATTRIBUTE(release_capability(__VA_ARGS__))
#define CAIRN_NO_ANALYSIS CAIRN_ATTRIBUTE(no_thread_safety_analysis)

namespace cairn {

/// std::mutex that clang's thread-safety analysis knows.
class CAIRN_CAPABILITY("mutex") Mutex {
 public:
  void Lock() CAIRN_ACQUIRE() { mutex_.lock(); }
  void Unlock() CAIRN_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class CAIRN_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CAIRN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() CAIRN_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// A condition variable for Mutex. Callers loop over their predicate themselves, so that the analysis can check it.
class CondVar {
 public:
  void Wait(Mutex& mutex) CAIRN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  /// False on timeout.
  bool WaitUntil(Mutex& mutex, Deadline deadline) CAIRN_REQUIRES(mutex) {
    if (deadline.infinite()) {
      Wait(mutex);
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const auto outcome = condition_.wait_until(lock, deadline.when());
    lock.release();
    return outcome == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace cairn
