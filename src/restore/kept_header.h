#pragma once

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "restore/shard_file.h"

namespace cairn {

/// The header that the last inspection of a rank's part decoded, for the restore that usually follows: decoding takes a
/// fifth of a restore of 100,000 small tensors. One header at most, until a restore takes it or another comes. Safe
/// from any thread.
class KeptHeader {
 public:
  /// `file` is closed and has a header.
  void Put(std::unique_ptr<ShardFile> file) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    file_ = std::move(file);
  }
  /// Null if there is none.
  [[nodiscard]] std::unique_ptr<ShardFile> Take() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::move(file_);
  }

 private:
  Mutex mutex_;
  std::unique_ptr<ShardFile> file_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
