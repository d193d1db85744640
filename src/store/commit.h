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
#include "store/remove.h"
#include "store/spare.h"
#include "store/writer.h"

namespace cairn {

/// Whether a commit may still be given up: only until its rename is submitted. For the queue's thread.
struct CommitGate {
  /// Set before that, it ends the commit, which renames nothing.
  Status given_up;
  /// From now on the outcome is unknown until the disk answers.
  bool passed = false;
  /// Committed; what it replaced is being removed.
  bool durable = false;
};

struct CommitSpec {
  PathAt root;
  /// The attempt's folder, in the root.
  PathAt folder;
  Manifest manifest;
  /// Of a copy: the manifest's text, with the index that it names in the folder already. Empty: it is encoded.
  std::string text = {};
  /// One for each shard of the manifest, for the index (see BuildIndex). Empty: no index.
  std::vector<std::string> index_runs = {};
  bool replace = false;
  /// What becomes of the shards of the replaced one.
  SparePolicy spares = {};
  /// A user's pin, also where the replaced step has none or another.
  bool pin = false;
  ReaderPatience readers = {};
  unsigned file_mode = 0644;
  /// Called before the rename.
  WriterCheck check_writer = {};
  /// Looked at right before the rename. Null: the commit is not given up.
  CommitGate* gate = nullptr;
  /// Files to unlink if the disk is full.
  Room* room = nullptr;
};

/// The parts of step 5 of the commit protocol (see attempt.cc), in call order. Outlives the tasks.
class FolderCommit {
 public:
  /// `folder` is the open folder of the attempt. `in_place` becomes true once the folder is, or may be, renamed:
  /// nothing under its old name may be removed then.
  FolderCommit(CommitSpec spec, const UniqueFd& folder, bool& in_place);

  /// Opens the root now, so that after the rename only its fsync can fail. When replacing a step, waits for the readers
  /// of the old one, and locks further ones out. DeadlineExceeded, naming them, if they do not end. Then writes the
  /// pin: the spec's, or that of the old one.
  IoTask<Status> Begin();
  /// Writes the index first, because the manifest names it.
  IoTask<Status> WriteManifest();
  /// These fsync and close the file, if there is one.
  IoTask<Status> FsyncPin();
  IoTask<Status> FsyncIndex();
  IoTask<Status> FsyncManifest();
  /// Renames the folder to step-N and fsyncs the root. An old step-N is exchanged for it; if the filesystem cannot
  /// exchange names, the old one is kept as `.replaced-N-<attempt>`. FailedPrecondition if another writer has taken
  /// over or the attempt was given up; what the gate says, if it is closed; UnknownOutcome if only the fsync failed, or
  /// the rename's outcome is unknown.
  IoTask<Status> RenameIntoPlace();
  /// Removes the old checkpoint. UnknownOutcome, with nothing removed, if the new one is not under its name. Never
  /// fails otherwise: the next writer removes what is left.
  IoTask<Status> RemoveOld();

 private:
  IoTask<Status> WriteIndex();
  IoTask<Status> LockOld();
  IoTask<Status> WritePin();
  IoTask<Status> MoveOldAside();
  IoTask<Status> PutOldBack(Status why);
  IoTask<Status> ResolveFailedRename(IoResult renamed);
  /// Passes the gate, or says why the commit was given up.
  Status PassGate();

  CommitSpec spec_;
  const UniqueFd& folder_fd_;
  bool& in_place_;
  // <root>/step-N
  const PathAt target_;
  // <root>/.replaced-N-<attempt>
  const PathAt replaced_path_;
  // The manifest's path in the attempt.
  const PathAt path_;
  const PathAt index_path_;
  const PathAt pin_path_;
  BuiltIndex index_;
  std::string text_;
  enum class Old : std::uint8_t { kNone, kThere, kExchanged, kAside } old_ = Old::kNone;
  UniqueFd root_fd_;
  UniqueFd pin_fd_;
  UniqueFd index_fd_;
  UniqueFd manifest_fd_;
  std::optional<Flock> old_lock_;
};

/// Looks by its name, opened anew, whether step-N is the attempt `uuid`. NotFound if there is no step-N or it is
/// another attempt's. UnknownOutcome if the disk cannot be read.
IoTask<Status> LookForStep(PathAt root, std::uint64_t step, std::string uuid);

/// Step 5 on a rank that received no outcome: does step-N hold the attempt `uuid`? If so, fsyncs the root and returns
/// Ok. NotFound if there is no step-N or it is another attempt's. UnknownOutcome if the disk cannot be read.
void FindCommitted(IoQueue& queue, const PathAt& root, std::uint64_t step, const std::string& uuid, StatusDone done);

/// Step 5 on a rank that received no outcome by its deadline: renames the attempt away, so that it can no longer be
/// committed, and removes its files. Cancelled if this or another rank has given it up, durably; Ok if it was already
/// committed, durably. UnknownOutcome if the disk cannot be read, or if the attempt is in neither place and is not
/// marked as given up: it may have been committed and later removed or published.
void AbortAttempt(IoQueue& queue, std::shared_ptr<AttemptFolder> folder, std::uint64_t step, StatusDone done);

}  // namespace cairn
