#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "io/io_task.h"
#include "store/locks.h"
#include "store/spare.h"
#include "store/writer.h"

namespace cairn {

/// What a removal had to leave, one sentence each: files that could not be unlinked, directories that are not ours.
using Leftovers = std::vector<std::string>;

/// Removes a folder and the files in it. Never fails: what cannot be removed stays and is told in `left`. Links are
/// removed, not followed; a directory inside, which nobody here has made, is left alone.
IoTask<Status> RemoveFolder(const PathAt& folder, Leftovers& left);

/// The same for the folder `name` in the root, but keeps the wished files that may be recycled: all else is removed,
/// then the folder takes the first of the wished names of spares that is free, or keeps its own if that is one of them.
IoTask<Status> RemoveRecycling(const PathAt& root, const std::string& name, const SpareWish& wish, Leftovers& left);

/// Removes what replaced checkpoints of step N left under `.replaced-N-*`, durably not to be put back any more. While
/// step-N is there, by the writer alone, who is asked before and behind each rename: before step-N goes, because an
/// opening writer that finds no step-N puts them back. An error where one stays.
IoTask<Status> RemoveReplaced(const PathAt& root, std::uint64_t step, WriterCheck still_writer);
/// The same of the one that has this name, which only its maker has.
IoTask<Status> RemoveAside(const PathAt& root, const PathAt& aside);

/// Keeps readers (see ReadLock) out of a checkpoint's folder for as long as `lock` lives. FailedPrecondition where one
/// is reading. A folder without a manifest can have no readers.
IoTask<Status> LockOutReaders(const PathAt& folder, std::optional<Flock>& lock);

/// A folder that is held open, its readers kept out.
struct HeldFolder {
  UniqueFd fd;
  std::optional<Flock> lock;
};
/// Opens the folder and locks its readers out; errors are LockOutReaders'. A link to a folder is refused.
IoTask<Status> HoldFolder(const PathAt& folder, HeldFolder& held);

enum class Pinned : std::uint8_t { kStays, kGoes };
struct RemovalOptions {
  std::string attempt = {};        ///< What it must be, by its manifest: FailedPrecondition otherwise. Empty: anything.
  WriterCheck still_writer = {};   ///< Asked before the rename, and again behind it.
  Pinned pinned = Pinned::kStays;  ///< kStays: a pinned one is FailedPrecondition as well, whoever pinned it.
  SpareWish spares;
};
struct Removal {
  /// FailedPrecondition, and nothing changed, while somebody reads it (see ReadLock). Unsupported where its folder
  /// cannot be renamed. UnknownOutcome where a power cut may bring it back. IoError where it is gone for good as a
  /// checkpoint, but files of it are left for the next sweep.
  Status status;
  bool gone = false;    ///< There is no step-N any more.
  bool pinned = false;  ///< It stays, pinned, or nobody can say whether it is.
};
/// What is removed: `name` in the directory `parent`, which is on the root's filesystem.
struct RemovalTarget {
  PathAt parent;
  std::string name;
  std::string called;  ///< In messages.
};
/// Step 6 of any folder: renames it to .retired-<uuid> in the root, fsyncs both directories, and only then unlinks its
/// files; what it had to leave of them is told in `left`. `held` is what HoldFolder gave, or nothing yet. Errors are
/// Removal::status's.
IoTask<Status> RetireFolder(const PathAt& root, const RemovalTarget& target, const RemovalOptions& options,
                            HeldFolder held, Leftovers& left);
/// Step 6: removes step-N: renames it to .retired-<uuid>, fsyncs the root, unlinks its files. All on the queue's
/// thread; `done` comes once, never from within the call.
void RemoveCheckpoint(IoQueue& queue, const PathAt& root, std::uint64_t step, RemovalOptions options,
                      std::function<void(const Removal&)> done);
/// The same, running the queue, which is the caller's alone.
[[nodiscard]] Removal RemoveCheckpointBlocking(IoQueue& queue, const PathAt& root, std::uint64_t step,
                                               RemovalOptions options);

/// What the sweep could not remove and why, a sentence each: worth a warning, in nobody's way.
using SweepDone = std::function<void(std::vector<std::string> left)>;
/// Removes what crashed saves and removals left in the root: retired folders, as which Root::Open has renamed attempts,
/// and spares; of their files the wished ones become, or stay, spares. By the writer who holds the root open. On the
/// queue's thread; `done` comes once, never from within the call.
void Sweep(IoQueue& queue, const PathAt& root, const SpareWish& spares, SweepDone done);

/// Unlinks the spares, where this process still is the writer. Blocking; the queue is the caller's alone. Best effort:
/// what is left is the next writer's.
void RemoveSpares(IoQueue& queue, const PathAt& root, const WriterCheck& still_writer = {});

}  // namespace cairn
