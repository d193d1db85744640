#include "api/blocking_calls.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"
#include "io/watched_queue.h"

namespace cairn {

BlockingCalls::BlockingCalls(IoQueueFactory make_queue, std::chrono::nanoseconds stall_timeout)
    : make_queue_(std::move(make_queue)), stall_timeout_(stall_timeout) {}

BlockingCalls::~BlockingCalls() {
  for (Running& one : running_) one.thread.join();
}

Status BlockingCalls::Run(Call call) {
  MutexLock lock(mutex_);
  for (auto one = running_.begin(); one != running_.end();) {
    if (!one->ended || !one->left) {
      ++one;
      continue;
    }
    one->thread.join();
    one = running_.erase(one);
  }
  if (!hangs_.ok()) return hangs_;
  const auto mine = running_.emplace(running_.end());
  Result<std::thread> thread =
      StartThread("cairn-call", [this, &one = *mine, call = std::move(call)] { Work(one, call); });
  if (!thread.ok()) {
    running_.erase(mine);
    return thread.status();
  }
  mine->thread = *std::move(thread);
  while (!mine->ended && hangs_.ok()) changed_.Wait(mutex_);
  mine->left = !mine->ended;
  if (mine->left) return hangs_;
  Status outcome = std::move(mine->outcome);
  mine->thread.join();  // It holds no lock any more.
  running_.erase(mine);
  return outcome;
}

void BlockingCalls::Work(Running& one, const Call& call) {
  const auto on_stall = [this](const Status& why) {
    MutexLock lock(mutex_);
    hangs_ = why;
    changed_.NotifyAll();
  };
  Status outcome;
  {
    Result<std::unique_ptr<IoQueue>> queue = make_queue_();
    if (queue.ok()) {
      LimitedQueue limited(*std::move(queue), stall_timeout_, on_stall);
      outcome = call(limited);
      if (limited.stalled()) on_stall(Status::Ok());
    } else {
      outcome = queue.status();
    }
  }
  std::function<void()> at_end;
  {
    MutexLock lock(mutex_);
    one.outcome = std::move(outcome);
    one.ended = true;
    if (AllEnded()) at_end = std::move(at_end_);
    changed_.NotifyAll();
  }
  if (at_end) at_end();
}

bool BlockingCalls::idle() const {
  MutexLock lock(mutex_);
  return AllEnded();
}

void BlockingCalls::AtEnd(std::function<void()> then) {
  {
    MutexLock lock(mutex_);
    if (!AllEnded()) {
      at_end_ = std::move(then);
      return;
    }
  }
  then();
}

bool BlockingCalls::AllEnded() const {
  return std::all_of(running_.begin(), running_.end(), [](const Running& one) { return one.ended; });
}

}  // namespace cairn
