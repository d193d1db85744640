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

/// A held save and the tensors that it reads. It may commit only after a check that the tensors' memory is still where
/// it was, made before the caller may change them. If a storage was resized, or a tensor given other data, the old
/// memory may hold anything when it is copied.
///
/// All calls need the GIL.
class WatchedSave {
 public:
  /// With `release` the check lets the save commit; otherwise the caller calls Release. `torch` may be null.
  WatchedSave(SaveHandle save, std::shared_ptr<const TensorTable> table, std::shared_ptr<const TorchReader> torch,
              std::vector<TreeTensors::Source> tensors, bool release);

  [[nodiscard]] const SaveHandle& save() const { return save_; }
  /// Checks the tensors' memory, only the first time it is called: if one has moved, the save fails; otherwise the save
  /// is released. Call it before the caller hears that the tensors may be changed.
  void CheckMemory();
  void CheckMemoryIfCaptured() {
    if (save_.stats().phase >= SavePhase::kCaptured) CheckMemory();
  }
  /// The caller allows the save to commit.
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
  std::shared_ptr<const Read> read_;  // Null after the check.
};

/// Checks each watched save once it is captured, unless a fence has done so before. Runs on a thread that Python has
/// made, so that no C++ thread takes the GIL.
class Watcher {
 public:
  void Add(std::shared_ptr<WatchedSave> save) CAIRN_EXCLUDES(mutex_);
  /// Saves that are not checked yet, oldest first.
  [[nodiscard]] std::vector<std::shared_ptr<WatchedSave>> pending() const CAIRN_EXCLUDES(mutex_);
  /// The thread's function: returns after Stop. Needs the GIL, and waits without it.
  void Run() CAIRN_EXCLUDES(mutex_);
  void Stop() CAIRN_EXCLUDES(mutex_);
  /// Checks and releases all tensors: no save reads them any more.
  void ReleaseTensors() CAIRN_EXCLUDES(mutex_);

 private:
  /// The oldest save, once its tensors are read; null after Stop. Needs no GIL.
  std::shared_ptr<WatchedSave> WaitForNext() CAIRN_EXCLUDES(mutex_);

  const pid_t process_ = ::getpid();  // In a forked child nothing is watched, and the lock may be held for ever.
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<WatchedSave>> pending_ CAIRN_GUARDED_BY(mutex_);
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
};

void BindWatcher(pybind11::module_& module);

}  // namespace cairn
