#pragma once

#include <atomic>
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
  /// Do not create or lock anything.
  bool read_only = false;
  /// Of several ranks, only the coordinator creates, locks and fences.
  bool coordinator = true;
  /// How long to wait for another writer's lock.
  std::chrono::nanoseconds wait{0};
  /// Take the root over from a writer that still holds the lock after that.
  bool take_over = false;
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
  /// The id that it must have, and gets if it has none: a copy of that root. Empty: any.
  std::string id = {};
  /// It is the memory of that root, whose openings are recorded in it by WriteOpenings. This one is none.
  bool in_memory = false;
};

/// An open root directory: step 0 of the commit protocol. The writer's operations are relative to `at()`. Destroying it
/// releases the lock; in a forked child it does nothing.
class Root {
 public:
  /// Creates the root and its parents, fsyncs them, takes the lock, names this writer in `.writer`, renames earlier
  /// writers' attempts away, restores the name of a step whose replacement was cut off, and fsyncs the root. After that
  /// no earlier writer can commit.
  ///
  /// FailedPrecondition, naming the holder, if another writer still has the lock after the wait (at once if this
  /// process has it and take_over is off), or if the root has another id, or the path cannot be created or written.
  /// InvalidArgument if it is a file. NotFound if it is missing and read_only is set. A rank that is not the
  /// coordinator accepts a missing root: the coordinator creates it. Blocking; needs exclusive use of the queue.
  ///
  /// On a full disk an existing root opens: the record is overwritten in place; if the filesystem needs room for that,
  /// what killed writers left is removed first. NoSpace if there is none.
  [[nodiscard]] static Result<std::unique_ptr<Root>> Open(IoQueue& queue, const RootOptions& options);

  /// The path, absolute.
  [[nodiscard]] const std::string& path() const { return at_.text(); }
  /// The directory itself when writing; otherwise the path.
  [[nodiscard]] const PathAt& at() const { return at_; }
  /// FailedPrecondition if another writer has taken over: `.writer` names another, or `.lock` is another file, or both
  /// are missing. Also, and from then on always, if the lock was found lost. NotFound if the directory was removed. May
  /// block; safe from any thread.
  [[nodiscard]] Status CheckWriter() const;
  /// This Open's, as `.writer` has it.
  [[nodiscard]] const std::string& writer_id() const { return writer_.id; }
  /// The root's id. Only the writer's.
  [[nodiscard]] const std::string& id() const { return writer_.root; }
  /// The line counter, as `.writer` has it: this Open has begun it, and WriteLine. Only the writer's; for the thread
  /// that calls WriteLine.
  [[nodiscard]] std::uint64_t line() const { return writer_.line; }
  /// Makes `line` the line counter, durably, unless it is that or above already. FailedPrecondition if another writer
  /// has taken over. On a full disk the record is overwritten in place. After a failure `.writer` may have either
  /// counter. One call at a time, on one thread.
  IoTask<Status> WriteLine(std::uint64_t line);
  /// Only the writer's. Its line as for line().
  [[nodiscard]] const WriterRecord& record() const { return writer_; }
  /// Before another record has them: this opening keeps its place in them. As WriteLine, but before any other thread
  /// uses it.
  IoTask<Status> KeepOpening();
  /// Records these openings instead: in memory, or of the root that this one is a copy of. As WriteLine.
  IoTask<Status> WriteOpenings(Openings openings);
  /// For ranks other than the coordinator: NotFound, saying what was found instead, if this is not the directory that
  /// the coordinator has opened, or does not show it yet. `writer_id` is the coordinator's.
  [[nodiscard]] Status CheckSeen(const std::string& writer_id) const;
  /// FailedPrecondition, saying where the open directory is now, if the path no longer refers to it: it was moved. May
  /// block; safe from any thread.
  [[nodiscard]] Status CheckPath() const;
  /// Says that its writer has been closed, but has not ended: until ReleaseLock, opening it in this process waits.
  void Leave();
  /// The writer has ended. Nothing but the destructor may be called any more.
  void ReleaseLock() { lock_.reset(); }
  /// Warnings about how it was opened, for the user.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  Root() = default;
  [[nodiscard]] Status OpenDirectory(IoQueue& queue, const std::string& path);
  [[nodiscard]] Status TakeLock(IoQueue& queue, const RootOptions& options);
  /// Takes the lock and fences. If there is no room for that, removes what killed runs left, and tries again.
  [[nodiscard]] Status TakeRoot(IoQueue& queue, const RootOptions& options);
  IoTask<Status> Fence();
  IoTask<Status> NameWriter();
  /// WriteRecord of the writer that this is, and an fsync of the root.
  IoTask<Status> ChangeRecord(WriterRecord record);
  /// Replaces `.writer` by this record; the root is not fsynced. Calls `check` right before.
  IoTask<Status> WriteRecord(WriterRecord record, WriterCheck check);
  IoTask<Status> ReplaceRecord(const PathAt& draft, const std::string& text, const WriterCheck& check);
  IoTask<Status> OverwriteRecord(std::string text);
  IoTask<Status> RenameAllAway();
  IoTask<Status> RenameAway(const PathAt& path, const PathAt& to);
  IoTask<Status> PutBackReplaced();
  IoTask<Status> MakeRoom();
  [[nodiscard]] Status ExplainNoSpace(const Status& why) const;

  PathAt at_;
  unsigned file_mode_ = 0644;
  // Empty: any.
  std::string expected_id_;
  bool in_memory_ = false;
  // Open only in the writer.
  UniqueFd directory_;
  std::optional<WriterLock> lock_;
  // Its line changes in WriteLine; the rest is constant after Open.
  WriterRecord writer_;
  // The lock was found lost: for good, because another may have been the writer meanwhile.
  mutable std::atomic<bool> lost_ = false;
  std::vector<std::string> notes_;
};

}  // namespace cairn
