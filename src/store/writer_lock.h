#pragma once

#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// The one writer of a root: an fcntl lock on `.lock`, and an entry in this process's list of roots.
///
/// An fcntl lock belongs to the process. That is what makes it right here: a forked data-loader worker that outlives
/// the trainer does not keep it, as it would keep a flock. It is also why the list is needed: a second lock by the same
/// process would be granted, and closing any descriptor of `.lock` would drop the first.
class WriterLock {
 public:
  /// FailedPrecondition, naming the process, where there is a writer already.
  [[nodiscard]] static Result<WriterLock> Take(const std::string& root, unsigned file_mode);
  ~WriterLock();
  WriterLock(WriterLock&& other) noexcept;
  WriterLock& operator=(WriterLock&&) = delete;
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  /// In a forked child: there is nothing to give back. The parent's lock stays.
  void ForgetAfterFork();

 private:
  explicit WriterLock(dev_t device, ino_t inode);

  dev_t device_;
  ino_t inode_;
  pid_t owner_;  // 0: there is nothing to give back.
  UniqueFd fd_;
};

}  // namespace cairn
