#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/path_at.h"

namespace cairn {

/// The lock of a root's writer, on `.lock`.
///
/// It belongs to the open file, so that no close elsewhere in the process drops it, and to this process alone: forked
/// children close their copies as they begin, so that no data-loader worker keeps it beyond the trainer's end.
class WriterLock {
 public:
  /// None where somebody else has it.
  [[nodiscard]] static Result<std::optional<WriterLock>> TryTake(const PathAt& root, unsigned file_mode);
  /// Puts a lock of its own in the place of one that somebody else has, and who still has it can see that.
  [[nodiscard]] static Result<WriterLock> Replace(const PathAt& root, unsigned file_mode);
  /// Whether it is this process that has it.
  [[nodiscard]] static bool HeldHere(const PathAt& root);
  ~WriterLock();
  WriterLock(WriterLock&& other) noexcept = default;
  WriterLock& operator=(WriterLock&&) = delete;
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  /// False where the filesystem knows no locks: then `.writer` alone tells writers apart.
  [[nodiscard]] bool locks() const { return locks_; }
  /// `.lock` is the file that is locked, or is not there.
  [[nodiscard]] bool InPlace(const PathAt& root) const;
  /// The same, and it is there.
  [[nodiscard]] bool Named(const PathAt& root) const;

 private:
  explicit WriterLock(UniqueFd fd) : fd_(std::move(fd)), owner_(::getpid()) {}
  [[nodiscard]] static Result<WriterLock> Open(const PathAt& path, int more_flags, unsigned file_mode);

  UniqueFd fd_;
  bool locks_ = false;
  pid_t owner_;
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
  [[nodiscard]] static Result<ReadLock> Take(const PathAt& folder);

 private:
  explicit ReadLock(Flock lock) : lock_(std::move(lock)) {}
  Flock lock_;
};

/// Who has a lock on the file, by the kernel's list: "process 12", or that none can be seen from here.
[[nodiscard]] std::string DescribeHolders(const PathAt& file);

// A write lease on a regular file: the kernel's word that nobody else has it open or mapped. It ends with the
// descriptor. Who opens the file meanwhile waits until then, or for as long as the kernel lets a lease hold others up.

/// FailedPrecondition where somebody has the file open or mapped. Unsupported where the filesystem gives no leases,
/// cannot know who has the file open elsewhere, or would not write it in place.
[[nodiscard]] Status TakeLease(const UniqueFd& fd, const std::string& name);
/// Whether it is held still and nobody is waiting for it.
[[nodiscard]] bool HoldsLease(const UniqueFd& fd);
void GiveBackLease(const UniqueFd& fd);

}  // namespace cairn
