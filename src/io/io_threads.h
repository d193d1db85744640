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

/// Threads that run operations as system calls, and the list of completions.
class IoThreads {
 public:
  /// A worker calls `notify` when the list of completions becomes non-empty.
  [[nodiscard]] static Result<std::unique_ptr<IoThreads>> Start(int threads, std::function<void()> notify);
  /// Drops operations that have not started, waits for the others, and drops all callbacks.
  ~IoThreads() CAIRN_EXCLUDES(mutex_);
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  void Post(IoRequest request, IoDone done) CAIRN_EXCLUDES(mutex_);
  /// Appends the completions and clears the list.
  void Take(std::vector<IoCompletion>& into) CAIRN_EXCLUDES(mutex_);

 private:
  struct Job {
    IoRequest request;
    IoDone done;
  };

  explicit IoThreads(std::function<void()> notify) : notify_(std::move(notify)) {}
  void Run() CAIRN_EXCLUDES(mutex_);

  const std::function<void()> notify_;
  // Constant after Start.
  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ CAIRN_GUARDED_BY(mutex_);
  std::vector<IoCompletion> completions_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
