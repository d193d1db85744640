#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

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

/// A flock on a whole file, shared by its readers or held by the one that removes it.
///
/// It is given back explicitly: a forked child has the same open file, and the lock would otherwise last until the
/// child has closed it too. For the same reason a child's copy never gives it back.
class Flock {
 public:
  enum class Kind : bool { kShared, kExclusive };
  /// Never waits. FailedPrecondition where somebody holds it the other way.
  [[nodiscard]] static Result<Flock> TryTake(UniqueFd fd, Kind kind, const std::string& name);
  ~Flock();
  Flock(Flock&&) noexcept = default;
  Flock& operator=(Flock&& other) noexcept;
  Flock(const Flock&) = delete;
  Flock& operator=(const Flock&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  explicit Flock(UniqueFd fd);
  void GiveBack();

  UniqueFd fd_;
  pid_t owner_;
};

/// Keeps a checkpoint from removal and replacement while it lives: a shared lock on its manifest, across processes.
class ReadLock {
 public:
  /// NotFound where the folder was removed meanwhile, or is being removed. Never waits.
  [[nodiscard]] static Result<ReadLock> Take(const std::string& folder);

 private:
  explicit ReadLock(Flock lock) : lock_(std::move(lock)) {}
  Flock lock_;
};

// A write lease on a regular file: the kernel's word that nobody else has it open or mapped. It ends with the
// descriptor. Who opens the file meanwhile waits until then, or for as long as the kernel lets a lease hold others up.

/// FailedPrecondition where somebody has the file open or mapped. Unsupported where the filesystem gives no leases,
/// cannot know who has the file open elsewhere, or would not write it in place.
[[nodiscard]] Status TakeLease(const UniqueFd& fd, const std::string& name);
/// Whether it is held still and nobody is waiting for it.
[[nodiscard]] bool HoldsLease(const UniqueFd& fd);
void GiveBackLease(const UniqueFd& fd);

}  // namespace cairn
