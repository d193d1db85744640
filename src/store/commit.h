#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "format/index.h"
#include "format/manifest.h"
#include "io/io_task.h"
#include "store/attempt_folder.h"
#include "store/locks.h"
#include "store/writer.h"

namespace cairn {

struct CommitSpec {
  PathAt root;
  PathAt folder;  ///< The attempt's, in the root.
  Manifest manifest;
  /// By the manifest's shards, what each adds to the index (see BuildIndex); none where there is to be none.
  std::vector<std::string> index_runs = {};
  bool replace = false;
  unsigned file_mode = 0644;
  WriterCheck still_writer = {};  ///< Asked before the rename.
  Room* room = nullptr;           ///< Unlinked where the disk is full.
};

/// Step 5 of the commit protocol (which heads attempt.cc), in its parts, in this order. Outlives the tasks.
class FolderCommit {
 public:
  /// `folder` is the attempt's folder, open. `in_place` becomes true once the folder may no longer be the attempt's, or
  /// certainly is not: nothing under its name may be removed.
  FolderCommit(CommitSpec spec, const UniqueFd& folder, bool& in_place);

  /// Opens the root, so that nothing but its fsync can fail once the rename is done. Where a step is replaced, keeps
  /// readers out of the old one and takes its pin over.
  IoTask<Status> Begin();
  /// And the index before it, which it names.
  IoTask<Status> WriteManifest();
  /// And closes it; nothing where there is no index.
  IoTask<Status> FsyncIndex();
  IoTask<Status> FsyncManifest();
  /// Renames the folder to step-N and fsyncs the root; an old step-N is exchanged for it, or, where the filesystem
  /// exchanges no names, waits as `.replaced-N-<attempt>`. FailedPrecondition where another writer has taken over, or
  /// somebody has taken the attempt away; UnknownOutcome where only the fsync failed, or where nobody knows.
  IoTask<Status> RenameIntoPlace();
  /// Removes the old checkpoint, which has the attempt's name, or waits. Never fails: what stays is the next writer's.
  IoTask<Status> RemoveOld();

 private:
  IoTask<Status> WriteIndex();
  IoTask<Status> LockOld();
  IoTask<Status> MoveOldAside();
  IoTask<Status> PutOldBack(Status why);
  IoTask<Status> LookForIt(IoResult renamed);

  CommitSpec spec_;
  const UniqueFd& folder_fd_;
  bool& in_place_;
  const PathAt target_;  // <root>/step-N
  const PathAt aside_;   // <root>/.replaced-N-<attempt>
  const PathAt path_;    // The manifest's, in the attempt.
  const PathAt index_path_;
  BuiltIndex index_;
  std::string text_;
  enum class Old : std::uint8_t { kNone, kThere, kExchanged, kAside } old_ = Old::kNone;
  UniqueFd root_fd_;
  UniqueFd index_fd_;
  UniqueFd manifest_fd_;
  std::optional<Flock> old_lock_;
};

/// Step 5 of a rank that heard nothing: whether step-N holds the attempt `uuid`. If so the root is fsynced and done
/// gets Ok; NotFound where step-N is not there or is another attempt's; UnknownOutcome where the disk can't be asked.
void FindCommitted(IoQueue& queue, const PathAt& root, std::uint64_t step, const std::string& uuid, StatusDone done);

/// Step 5 of a rank that has heard nothing for too long: takes the attempt's name away, so that it can no longer be
/// committed, and removes what is in it. Cancelled where it is given up by this or by another rank, durably; Ok where
/// it was committed before, durably; UnknownOutcome where the disk can't be asked, or where the attempt is in neither
/// place and nothing tells that it was given up: it may have been committed, and have made way since.
void AbortAttempt(IoQueue& queue, std::shared_ptr<AttemptFolder> folder, std::uint64_t step, StatusDone done);

}  // namespace cairn
