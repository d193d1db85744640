#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "io/io_queue.h"

namespace cairn {

struct IoCompletion {
  IoDone done;
  std::int64_t result = 0;
};

/// Threads that run operations by their system calls, and the list of what they have done.
class IoThreads {
 public:
  /// `notify` is called on a worker whenever the list of completions stops being empty.
  [[nodiscard]] static Result<std::unique_ptr<IoThreads>> Start(int threads, std::function<void()> notify);
  /// Drops what no thread has begun, waits for the rest, drops the callbacks.
  ~IoThreads() CAIRN_EXCLUDES(mutex_);
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  void Post(IoRequest request, IoDone done) CAIRN_EXCLUDES(mutex_);
  /// Appends what is complete.
  void Take(std::vector<IoCompletion>& into) CAIRN_EXCLUDES(mutex_);

 private:
  struct Job {
    IoRequest request;
    IoDone done;
  };

  explicit IoThreads(std::function<void()> notify) : notify_(std::move(notify)) {}
  void Run() CAIRN_EXCLUDES(mutex_);

  const std::function<void()> notify_;
  std::vector<std::thread> threads_;  // Constant once started.
  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ CAIRN_GUARDED_BY(mutex_);
  std::vector<IoCompletion> completions_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
