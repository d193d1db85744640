#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "io/io_queue.h"

namespace cairn {

/// A disk with no more than a few files and blocks free, for the queues made through it. A new file or folder takes one
/// file; a write beyond what a file has takes one block, and so does an allocation. Unlinking gives them back. Safe
/// from any thread.
class FullDisk : public std::enable_shared_from_this<FullDisk> {
 public:
  struct Limits {
    std::int64_t files = 1'000'000;
    std::int64_t blocks = 1'000'000;
    /// Every write takes a block, as on btrfs and ZFS.
    bool copies_on_write = false;
    /// Or EDQUOT.
    int error = ENOSPC;
  };
  [[nodiscard]] static std::shared_ptr<FullDisk> Make() { return std::shared_ptr<FullDisk>(new FullDisk); }

  /// For Wiring::wrap_queue.
  [[nodiscard]] IoQueueFactory Wrap(IoQueueFactory inner);
  /// From now on. Unlimited before.
  void Limit(const Limits& limits) CAIRN_EXCLUDES(mutex_);

 private:
  friend class FullDiskQueue;
  /// What an operation takes; negative: what it gives back once it has succeeded.
  struct Need {
    std::int64_t files = 0;
    std::int64_t blocks = 0;
  };

  FullDisk() = default;
  [[nodiscard]] Need NeedOf(const IoRequest& request) const CAIRN_EXCLUDES(mutex_);
  /// An errno if there is less.
  [[nodiscard]] int Take(const Need& need) CAIRN_EXCLUDES(mutex_);
  void GiveBack(const Need& need) CAIRN_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  Limits free_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
