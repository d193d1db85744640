#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "io/io_task.h"
#include "store/locks.h"
#include "store/spare.h"
#include "store/unnamed.h"
#include "store/writer.h"

namespace cairn {

/// What a removal had to leave, one sentence each: files that could not be unlinked, unknown directories.
using Leftovers = std::vector<std::string>;

/// Removes a folder and its files. Never fails: `left` lists what could not be removed. Links are removed, not
/// followed. A directory inside is left alone: no checkpoint has one.
IoTask<Status> RemoveFolder(const PathAt& folder, Leftovers& left);

/// The same for a folder in the root, but keeps the shard files that the policy selects and that may be
/// recycled. The folder then takes the first free spare name, or keeps its name if that is a spare's.
IoTask<Status> RemoveRecycling(const PathAt& root, const PathAt& folder, const SparePolicy& policy, Leftovers& left);

/// Durably removes all `.replaced-N-*` of step N. Call it while step-N exists, before step-N is removed: an opening
/// writer that finds no step-N would put them back. `check_writer` is called before and after each rename. An error if
/// one remains.
IoTask<Status> RemoveReplaced(const PathAt& root, std::uint64_t step, WriterCheck check_writer);
/// The same for this one folder, which only its maker can have.
IoTask<Status> RemoveReplacedFolder(const PathAt& root, const PathAt& replaced);

/// Locks readers (see ReadLock) out of a checkpoint's folder while `lock` lives. FailedPrecondition if it is being
/// read. A folder without a manifest has no readers.
IoTask<Status> LockOutReaders(const PathAt& folder, std::optional<Flock>& lock);
/// The error of a wait for readers that do not end: names them.
[[nodiscard]] Status StillRead(const PathAt& folder, std::chrono::nanoseconds waited);

/// How long to wait for the readers of what is to be replaced.
struct ReaderPatience {
  std::chrono::nanoseconds timeout{};
  /// Ends the wait once it is true. Of the queue's thread.
  const bool* hurry = nullptr;

  [[nodiscard]] bool ended() const { return hurry != nullptr && *hurry; }
};

/// An open folder with its readers locked out.
struct HeldFolder {
  UniqueFd fd;
  std::optional<Flock> lock;
};
/// Opens the folder and locks readers out; errors as for LockOutReaders. Rejects a link to a folder.
IoTask<Status> HoldFolder(const PathAt& folder, HeldFolder& held);

enum class Pinned : std::uint8_t { kStays, kGoes };
struct RemovalOptions {
  /// The expected attempt of the manifest; FailedPrecondition if it is another. Empty: any.
  std::string attempt = {};
  /// Called before and after the rename.
  WriterCheck check_writer = {};
  /// kStays: FailedPrecondition if it is pinned, by anyone.
  Pinned pinned = Pinned::kStays;
  SparePolicy spares;
};
struct Removal {
  /// FailedPrecondition, with nothing changed, while it is being read (see ReadLock). Unsupported if its folder cannot
  /// be renamed. UnknownOutcome if a power cut may bring it back. IoError if the checkpoint is gone but some of its
  /// files are left for the next sweep.
  Status status;
  /// There is no step-N any more.
  bool gone = false;
  /// It stays and is pinned, or may be.
  bool pinned = false;
};
/// The folder to remove: `name` in the directory `parent`, on the root's filesystem.
struct RemovalTarget {
  PathAt parent;
  std::string name;
  /// Its name in messages.
  std::string called;
};
/// Step 6 for any folder: renames it to .retired-<uuid> in the root, fsyncs both directories, and only then unlinks its
/// files; `left` lists what it had to leave. `held` comes from HoldFolder or is empty. Errors as in Removal::status.
IoTask<Status> RetireFolder(const PathAt& root, const RemovalTarget& target, const RemovalOptions& options,
                            HeldFolder held, Leftovers& left);
/// Step 6: renames step-N to .retired-<uuid>, fsyncs the root, unlinks its files. Runs on the queue's thread; `done`
/// comes once, never from within the call.
void RemoveCheckpoint(IoQueue& queue, const PathAt& root, std::uint64_t step, RemovalOptions options,
                      std::function<void(const Removal&)> done);
/// The same, but runs the queue. Needs exclusive use of it.
[[nodiscard]] Removal RemoveCheckpointBlocking(IoQueue& queue, const PathAt& root, std::uint64_t step,
                                               RemovalOptions options);

struct Swept {
  /// What the sweep did not remove and why, one sentence each. Worth a warning; harmless.
  std::vector<std::string> left;
  /// The complete attempt among that, in the root. Remove it once a checkpoint of this writer is durable.
  std::optional<UnnamedAttempt> unnamed;
};
/// Removes what crashed saves and removals left in the root: retired folders, including attempts that Root::Open has
/// renamed, spares, and what mirrors held that were killed. Files that the policy selects become or stay spares. A
/// complete attempt (see FindUnnamedAttempt) stays, on a disk, if that has room for it and a new one. Only for the
/// writer that holds the root's lock, after an fsync of the root. `memory`: where its checkpoints may be as well.
IoTask<Status> SweepTask(PathAt root, SparePolicy spares, MemoryPlace memory, Swept& swept);
using SweepDone = std::function<void(Swept swept)>;
/// The same. On the queue's thread; `done` comes once, never from within the call.
void Sweep(IoQueue& queue, const PathAt& root, const SparePolicy& spares, const MemoryPlace& memory, SweepDone done);

/// Removes the complete attempt that a sweep has left. Best effort.
IoTask<Status> RemoveUnnamed(PathAt folder);

/// Unlinks the spares if this process is still the writer. Best effort: the next writer removes the rest.
IoTask<Status> RemoveSparesTask(PathAt root, WriterCheck check_writer = {});

}  // namespace cairn
