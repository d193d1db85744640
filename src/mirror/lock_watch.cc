#include "mirror/lock_watch.h"

#include <utility>

#include "base/thread.h"

namespace cairn {

LockWatch::LockWatch(HeldCheckpoint& held, std::chrono::nanoseconds patience)
    : held_(held), patience_(patience), deadline_(Deadline::In(patience)) {
  if (!held.lock) return;
  Result<std::thread> thread = StartThread("cairn-lock", [this] { Run(); });
  if (thread.ok()) thread_ = *std::move(thread);
}

LockWatch::~LockWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  ended_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

bool LockWatch::GoesOn() {
  MutexLock lock(mutex_);
  deadline_ = Deadline::In(patience_);
  return !released_;
}

void LockWatch::Run() {
  MutexLock lock(mutex_);
  while (!stopping_ && !deadline_.passed()) ended_.WaitUntil(mutex_, deadline_);
  if (stopping_) return;
  held_.lock.reset();
  released_ = true;
}

}  // namespace cairn
