#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/checkpointer.h"
#include "format/manifest.h"
#include "io/io_queue.h"
#include "store/attempt.h"
#include "store/flock.h"
#include "store/spare.h"

namespace cairn {

struct RootOptions {
  std::string path;
  bool read_only = false;   ///< No making, no lock.
  bool coordinator = true;  ///< Of several ranks only the coordinator makes and locks.
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
};

/// A root directory held open by a writer: step 0 of the commit protocol. Destroying it gives the lock back.
class Root {
 public:
  /// Makes the root (and parents), fsyncs what it made, takes the lock, fsyncs the root.
  /// FailedPrecondition, naming the holder's process, where another writer has it, in this process or another, and
  /// where the path cannot be made or written; InvalidArgument where it leads to a file; NotFound where it is missing
  /// and to be read only. A rank that does not coordinate needs no root yet: the coordinator makes it. Blocking; the
  /// queue is the caller's alone.
  [[nodiscard]] static Result<std::unique_ptr<Root>> Open(IoQueue& queue, const RootOptions& options);
  virtual ~Root() = default;
  /// The path, absolute.
  [[nodiscard]] virtual const std::string& path() const = 0;
  /// In a forked child: forget the lock without releasing the parent's.
  virtual void ForgetAfterFork() = 0;
};

/// What the sweep could not remove and why, a sentence each: worth a warning, in nobody's way.
using SweepDone = std::function<void(std::vector<std::string> left)>;
/// Removes what crashed saves and removals left in the root: attempts, retired folders, spares; of their files the
/// wished ones become, or stay, spares. By the writer who holds the root open, before any rank makes an attempt that it
/// may commit. On the queue's thread; `done` comes once, never from within the call.
void Sweep(IoQueue& queue, const std::string& root, const SpareWish& spares, SweepDone done);

/// A checkpoint found under a root.
struct StoredCheckpoint {
  CheckpointInfo info;  ///< info.status is Corrupt where the manifest does not verify.
  Manifest manifest;    ///< Empty where it does not.
};

/// Lists step-*: verified ones by {generation, step}, oldest first, then the damaged ones by step. Takes no lock,
/// writes nothing. NotFound where the root itself is missing; folders that vanish meanwhile (retention) are left out.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ListCheckpoints(const std::string& root);
/// One folder, wherever it is; an error where it does not verify. Every shard must be there with the manifest's length,
/// and the manifest's step be the folder's where its name is a step's.
[[nodiscard]] Result<StoredCheckpoint> ReadCheckpointFolder(const std::string& folder);
/// The checkpoint that `which` means, by the rules of Checkpointer::Restore, as far as manifests go: candidates in the
/// order in which to try them. A damaged manifest counts as the newest: it can't be known.
///
/// One verified candidate, or an error, unless it may fall back: then damaged ones are among the candidates, to be
/// named as passed over, with info.status saying why. From a given step only older ones are fallen back to.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ChooseCheckpoints(const std::string& root, const Which& which);

/// Which of the verified, unpinned checkpoints retention removes. Pure. `list` as ListCheckpoints returns it, less what
/// was never acknowledged; damaged ones are neither counted nor removed, pinned ones are counted. keep_last 0 removes
/// nothing.
[[nodiscard]] std::vector<std::uint64_t> ChooseRetired(const std::vector<StoredCheckpoint>& list,
                                                       std::uint64_t keep_last, std::uint64_t keep_every);

/// Step 6: removes step-N: renames it to .retired-<uuid>, fsyncs the root, unlinks its files. All on the queue's
/// thread. FailedPrecondition, and nothing changed, while somebody reads it (see ReadLock). UnknownOutcome where a
/// power cut may bring it back. IoError where it is gone for good as a checkpoint, but files of it are left for the
/// next sweep.
enum class Pinned : std::uint8_t { kStays, kGoes };
struct RemovalOptions {
  Pinned pinned = Pinned::kStays;  ///< kStays: a pinned one is FailedPrecondition as well, whoever pinned it.
  SpareWish spares;
};
void RemoveCheckpoint(IoQueue& queue, const std::string& root, std::uint64_t step, RemovalOptions options,
                      StatusDone done);
/// Unlinks the spares. Blocking; the queue is the caller's alone. Best effort: what is left is the next writer's.
void RemoveSpares(IoQueue& queue, const std::string& root);

/// Whether there is a step-N, and whether it is pinned, by a look at the disk.
[[nodiscard]] bool HoldsStep(const std::string& root, std::uint64_t step);
[[nodiscard]] bool IsPinned(const std::string& root, std::uint64_t step);

/// Makes (or removes) the pin, fsyncs the folder. Blocking; the queue is the caller's alone.
[[nodiscard]] Status SetPin(IoQueue& queue, const std::string& root, std::uint64_t step, bool pinned,
                            unsigned file_mode);

/// Keeps a checkpoint from removal and replacement while it lives: a shared lock on its manifest, across processes.
class ReadLock {
 public:
  /// NotFound where the folder was removed meanwhile, or is being removed. Never waits.
  [[nodiscard]] static Result<ReadLock> Take(const std::string& folder);

 private:
  explicit ReadLock(Flock lock) : lock_(std::move(lock)) {}
  Flock lock_;
};

}  // namespace cairn
