#pragma once

#include <chrono>
#include <thread>

#include "base/mutex.h"
#include "store/hold.h"

namespace cairn {

/// Ends the lock of a checkpoint that is locked while it is copied (HeldCheckpoint::lock), once nothing has been copied
/// for a while: the target may hang, and the root's retention waits for that lock.
class LockWatch {
 public:
  /// Does nothing if the checkpoint is not locked. `held` outlives this.
  LockWatch(HeldCheckpoint& held, std::chrono::nanoseconds patience);
  ~LockWatch();
  LockWatch(const LockWatch&) = delete;
  LockWatch& operator=(const LockWatch&) = delete;

  /// The copy goes on. False if the lock has ended: then files may be gone.
  [[nodiscard]] bool GoesOn() CAIRN_EXCLUDES(mutex_);

 private:
  void Run() CAIRN_EXCLUDES(mutex_);

  HeldCheckpoint& held_;
  const std::chrono::nanoseconds patience_;
  Mutex mutex_;
  CondVar ended_;
  Deadline deadline_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  bool released_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cairn
