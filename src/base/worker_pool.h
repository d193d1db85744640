#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cairn/status.h"

namespace cairn {

/// A fixed number of threads that run jobs in the order given. For checksums, CPU copies and headers.
class WorkerPool {
 public:
  /// `name` is the threads' name; `threads` at least 1. Check status() before the first Post.
  WorkerPool(const std::string& name, int threads);
  /// Runs all posted jobs, then joins the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// ResourceExhausted if a thread could not be started: the pool then has no threads and runs no jobs.
  [[nodiscard]] const Status& status() const { return status_; }
  /// Safe from any thread, also from a job. Jobs must not throw.
  void Post(std::function<void()> job) CAIRN_EXCLUDES(mutex_);
  /// Keeps the threads to those of these CPUs that they may use. Does nothing if these are fewer than the threads.
  void KeepTo(const std::vector<int>& cpus);
  [[nodiscard]] int threads() const { return static_cast<int>(threads_.size()); }

 private:
  void Run() CAIRN_EXCLUDES(mutex_);
  void Stop() CAIRN_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> jobs_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  // Constant after construction.
  std::vector<std::thread> threads_;
  Status status_;
};

}  // namespace cairn
