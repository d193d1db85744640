#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/path_at.h"

namespace cairn {

/// How often a lock that another holds is tried again: nothing signals that it was released.
inline constexpr std::chrono::milliseconds kLockInterval{20};

/// The lock of a root's writer, on `.lock`.
///
/// It belongs to the open file, so closing another descriptor does not drop it. It belongs to this process only: forked
/// children close their copies at once, so that no data-loader worker holds it after the trainer has ended.
class WriterLock {
 public:
  /// None if another process has it.
  [[nodiscard]] static Result<std::optional<WriterLock>> TryTake(const PathAt& root, unsigned file_mode);
  /// Replaces the lock that another writer holds. That writer can detect this.
  [[nodiscard]] static Result<WriterLock> Replace(const PathAt& root, unsigned file_mode);
  /// Whether any process has it, as far as this machine can tell.
  [[nodiscard]] static bool IsTaken(const PathAt& root);
  /// How this process holds it.
  enum class Here : std::uint8_t { kNo, kOpen, kLeaving };
  [[nodiscard]] static Here HeldHere(const PathAt& root);
  /// From now on HeldHere is kLeaving: its owner releases it without a further call.
  void Leave();
  ~WriterLock();
  WriterLock(WriterLock&& other) noexcept = default;
  WriterLock& operator=(WriterLock&&) = delete;
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  /// False if the filesystem does not support locks: then only `.writer` tells writers apart.
  [[nodiscard]] bool locks() const { return locks_; }
  /// False if this process has not released the lock, and yet does not have it any more: an NFS server that restarts
  /// may forget locks, or give them to another client. True if that cannot be told. Never takes it again. May block.
  [[nodiscard]] bool Held() const;
  /// `.lock` is the locked file, or does not exist.
  [[nodiscard]] bool InPlace(const PathAt& root) const;
  /// `.lock` is the locked file.
  [[nodiscard]] bool Named(const PathAt& root) const;

 private:
  explicit WriterLock(UniqueFd fd) : fd_(std::move(fd)), owner_(::getpid()) {}
  [[nodiscard]] static Result<WriterLock> Open(const PathAt& path, int more_flags, unsigned file_mode);
  /// Prepares Held. Call it when the lock was taken.
  void Watch(const PathAt& path);
  [[nodiscard]] bool LooksHeld() const;

  UniqueFd fd_;
  // Another open file of `.lock`: only such a one sees whether this lock is there.
  UniqueFd watch_;
  bool locks_ = false;
  // LooksHeld was true when the lock was taken. Otherwise it cannot tell on this filesystem.
  bool tells_ = false;
  pid_t owner_;
};

/// A flock on a whole file: shared by readers, exclusive for the one that removes it.
///
/// Released explicitly: a forked child shares the open file, and the lock would otherwise last until the child closes
/// it too. For the same reason the child's copy never releases it.
class Flock {
 public:
  enum class Kind : bool { kShared, kExclusive };
  /// Never waits. FailedPrecondition if a conflicting lock is held.
  [[nodiscard]] static Result<Flock> TryTake(UniqueFd fd, Kind kind, const std::string& name);
  ~Flock();
  Flock(Flock&&) noexcept = default;
  Flock& operator=(Flock&& other) noexcept;
  Flock(const Flock&) = delete;
  Flock& operator=(const Flock&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  explicit Flock(UniqueFd fd);
  void Release();

  UniqueFd fd_;
  pid_t owner_;
};

/// Protects a checkpoint from removal and replacement while it lives: a shared lock on its manifest, across processes.
class ReadLock {
 public:
  /// NotFound if the folder was removed or is being removed. Never waits.
  [[nodiscard]] static Result<ReadLock> Take(const PathAt& folder);

 private:
  explicit ReadLock(Flock lock) : lock_(std::move(lock)) {}
  Flock lock_;
};

/// An open descriptor that forked children close at once: a data-loader worker would otherwise keep the blocks of a
/// removed file for as long as it lives.
[[nodiscard]] std::shared_ptr<const UniqueFd> HideFromChildren(UniqueFd fd);
/// The same of a descriptor that stays another's, who ends this before closing it.
class HiddenFromChildren {
 public:
  explicit HiddenFromChildren(const UniqueFd& fd);
  ~HiddenFromChildren();
  HiddenFromChildren(const HiddenFromChildren&) = delete;
  HiddenFromChildren& operator=(const HiddenFromChildren&) = delete;

 private:
  const int fd_;
};

/// The processes that lock the file, from /proc/locks: "process 12", or a note that none is visible.
[[nodiscard]] std::string DescribeHolders(const PathAt& file);

// A write lease on a regular file: the kernel guarantees that nobody else has it open or mapped. It ends with the
// descriptor. Whoever opens the file meanwhile waits until then, or until the kernel breaks the lease.

/// FailedPrecondition if the file is open or mapped elsewhere. Unsupported if the filesystem has no leases, cannot see
/// openers on other nodes, or does not write in place.
[[nodiscard]] Status TakeLease(const UniqueFd& fd, const std::string& name);
/// Whether it is still held and nobody is waiting for it.
[[nodiscard]] bool HoldsLease(const UniqueFd& fd);
void ReleaseLease(const UniqueFd& fd);

}  // namespace cairn
