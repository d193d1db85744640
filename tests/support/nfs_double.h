#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "io/io_queue.h"

namespace cairn {

/// Where an NFS client differs from a local disk, for the queues made through it:
///   renames with flags are refused (EINVAL);
///   a file that this process has open is not unlinked, or replaced by a rename, but renamed to `.nfs...` in its folder
///   (a silly rename), so that the folder is not empty; that name disappears with the file's last close, and cannot be
///   removed before (EBUSY);
///   names that another client has made are seen late: what HideLate names is not opened before Show.
/// A close is noticed at the next operation of any queue, or by Settle. Safe from any thread.
class NfsDouble : public std::enable_shared_from_this<NfsDouble> {
 public:
  [[nodiscard]] static std::shared_ptr<NfsDouble> Make() { return std::shared_ptr<NfsDouble>(new NfsDouble); }

  /// For Wiring::wrap_queue.
  [[nodiscard]] IoQueueFactory Wrap(IoQueueFactory inner);

  /// From now on this client does not see names whose paths contain `part`, unless it makes them.
  void HideLate(std::string part) CAIRN_EXCLUDES(mutex_);
  /// It sees all names again.
  void Show() CAIRN_EXCLUDES(mutex_);
  /// How often it has looked in vain for what it does not see. Waits until that is at least `looks`; fewer: in vain.
  [[nodiscard]] std::size_t WaitLooks(std::size_t looks, Deadline deadline) const CAIRN_EXCLUDES(mutex_);

  /// Removes the silly names of files that are closed by now.
  void Settle() CAIRN_EXCLUDES(mutex_);
  /// Renames that were refused so far.
  [[nodiscard]] std::size_t refused() const CAIRN_EXCLUDES(mutex_);

 private:
  friend class NfsQueue;
  struct File {
    dev_t device = 0;
    ino_t inode = 0;
    [[nodiscard]] bool Open() const;
  };
  struct Silly {
    File file;
    UniqueFd folder;
    std::string name;
  };
  enum class Answer : std::uint8_t { kRun, kDone, kBusy, kInvalid, kMissing };

  NfsDouble() = default;
  /// What to do with an operation that is about to run.
  [[nodiscard]] Answer Judge(const IoRequest& request) CAIRN_EXCLUDES(mutex_);
  /// Gives the file at that path a silly name if it is open. False where nothing needs that.
  bool Hide(const PathAt& path) CAIRN_EXCLUDES(mutex_);

  bool SeenLate(const IoRequest& request) CAIRN_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  mutable CondVar looked_;
  std::string late_ CAIRN_GUARDED_BY(mutex_);
  std::size_t looks_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<Silly> hidden_ CAIRN_GUARDED_BY(mutex_);
  std::size_t refused_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::size_t silly_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
