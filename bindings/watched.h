#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cairn/cairn.h"
#include "tree_tensors.h"

namespace cairn {

/// A held save and the tensors that it reads: before anybody may change those it is seen whether their memory is still
/// where it was, and only then may the save commit. What a storage that was resized, or a tensor that was given other
/// data, has left behind may hold anything by the time it is copied.
///
/// All calls need the GIL.
class Watched {
 public:
  /// `release`: it is for Look to let the save commit; else the caller does that himself. `torch` may be null.
  Watched(SaveHandle save, std::shared_ptr<const TensorTable> table, std::shared_ptr<const TorchReader> torch,
          std::vector<TreeTensors::Source> tensors, bool release);

  [[nodiscard]] const SaveHandle& save() const { return save_; }
  /// Looks at the tensors, once: the save fails where one's memory is elsewhere, and else is released. It must not have
  /// been said before that the tensors may be changed.
  void Look();
  void LookIfCaptured() {
    if (save_.stats().phase >= SavePhase::kCaptured) Look();
  }
  /// The save may commit as far as the caller is concerned.
  void Release();

 private:
  struct Read {
    std::shared_ptr<const TensorTable> table;
    std::vector<TreeTensors::Source> tensors;
  };

  [[nodiscard]] Status Compare(const Read& read) const;

  const SaveHandle save_;
  const std::shared_ptr<const TorchReader> torch_;
  bool release_;
  std::shared_ptr<const Read> read_;  // Null once it was looked.
};

/// Looks at each watched save once it is captured, for callers who have not come to fence it by then, on a thread that
/// Python has made: no thread of C++ takes the GIL.
class Watcher {
 public:
  void Add(std::shared_ptr<Watched> save) CAIRN_EXCLUDES(mutex_);
  /// Those that nobody has looked at yet, oldest first.
  [[nodiscard]] std::vector<std::shared_ptr<Watched>> pending() const CAIRN_EXCLUDES(mutex_);
  /// The thread's: returns after Stop. Needs the GIL, and waits without it.
  void Run() CAIRN_EXCLUDES(mutex_);
  void Stop() CAIRN_EXCLUDES(mutex_);
  /// Lets go of all tensors: no save reads them any more.
  void Forget() CAIRN_EXCLUDES(mutex_);

 private:
  /// The oldest, once its tensors are read; null after Stop. Without the GIL.
  std::shared_ptr<Watched> WaitForNext() CAIRN_EXCLUDES(mutex_);

  const pid_t process_ = ::getpid();  // In a forked child nothing is watched, and the lock may be held for ever.
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Watched>> pending_ CAIRN_GUARDED_BY(mutex_);
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
};

void BindWatcher(pybind11::module_& module);

}  // namespace cairn
