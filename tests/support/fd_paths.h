#pragma once

#include <map>
#include <string>

#include "base/mutex.h"

namespace cairn {

/// The paths that this process's descriptors were opened with, as far as queues with one plan have opened them.
class FdPaths {
 public:
  /// When the open is complete.
  void Opened(int fd, const std::string& path) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    paths_[fd] = path;
  }
  /// When the close is about to run: once it has, another thread may be given the same number.
  void Closing(int fd) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    paths_.erase(fd);
  }
  [[nodiscard]] std::string Find(int fd) const CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto it = paths_.find(fd);
    return it == paths_.end() ? std::string() : it->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<int, std::string> paths_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
