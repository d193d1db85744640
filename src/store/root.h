#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_queue.h"
#include "io/path_at.h"
#include "store/locks.h"
#include "store/writer.h"

namespace cairn {

struct RootOptions {
  std::string path;
  bool read_only = false;            ///< No making, no lock.
  bool coordinator = true;           ///< Of several ranks only the coordinator makes, locks and fences.
  std::chrono::nanoseconds wait{0};  ///< For the lock of another writer.
  bool take_over = false;            ///< From a writer that holds the lock longer than that.
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
};

/// A root directory held open: step 0 of the commit protocol. What its writer does to it is relative to `at()`.
/// Destroying it gives the lock back; in a forked child it does nothing.
class Root {
 public:
  /// Makes the root (and parents), fsyncs what it made, takes the lock, names this writer in `.writer`, renames the
  /// attempts of writers before away, gives what one of them was replacing its name back, fsyncs the root. From then on
  /// no earlier writer commits anything.
  ///
  /// FailedPrecondition, naming the holder, where another writer has the lock at the end of the wait (at once where
  /// that is this process and may not be taken over from), and where the path cannot be made or written;
  /// InvalidArgument where it leads to a file; NotFound where it is missing and to be read only. A rank that does not
  /// coordinate needs no root yet: the coordinator makes it. Blocking; the queue is the caller's alone.
  [[nodiscard]] static Result<std::unique_ptr<Root>> Open(IoQueue& queue, const RootOptions& options);

  /// The path, absolute.
  [[nodiscard]] const std::string& path() const { return at_.text(); }
  /// The directory itself for who writes; for others the path.
  [[nodiscard]] const PathAt& at() const { return at_; }
  /// FailedPrecondition where another writer has taken over: `.writer` names another, or `.lock` is another file, or
  /// neither is there; NotFound where the directory itself was removed. May block; safe from any thread.
  [[nodiscard]] Status CheckWriter() const;
  /// This Open's, as `.writer` has it.
  [[nodiscard]] const std::string& writer_id() const { return writer_.id; }
  /// On a rank that does not coordinate: FailedPrecondition, naming host and path, where this is not the directory that
  /// the coordinator, whose writer_id() it is, has opened.
  [[nodiscard]] Status CheckSeen(const std::string& writer_id) const;
  /// FailedPrecondition where the path leads to another directory than the one that is written: it was moved.
  [[nodiscard]] Status CheckPath() const;
  /// What the user should hear about how it was opened.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  Root() = default;
  [[nodiscard]] Status OpenDirectory(IoQueue& queue, const std::string& path);
  [[nodiscard]] Status TakeLock(IoQueue& queue, const RootOptions& options);
  IoTask<Status> NameWriter(unsigned file_mode);
  IoTask<Status> Fence();
  IoTask<Status> RenameAway(const PathAt& path, const PathAt& to);
  IoTask<Status> PutBackReplaced();

  PathAt at_;
  UniqueFd directory_;  // Open where this process writes.
  std::optional<WriterLock> lock_;
  WriterRecord writer_;
  UniqueFd writer_fd_;  // Of `.writer`, so that no other file gets its inode.
  std::vector<std::string> notes_;
};

}  // namespace cairn
