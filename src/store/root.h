#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/checkpointer.h"
#include "format/manifest.h"
#include "io/io_queue.h"
#include "store/attempt.h"

namespace cairn {

struct RootOptions {
  std::string path;
  bool read_only = false;    ///< No making, no lock, no sweep.
  bool coordinator = true;   ///< Of several ranks only the coordinator makes, locks and sweeps.
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
};

/// A root directory held open by a writer: step 0 of the commit protocol. Destroying it gives the lock back.
class Root {
 public:
  /// Makes the root (and parents), fsyncs what it made, takes the lock, sweeps leftovers, fsyncs the root.
  /// FailedPrecondition, naming the holder's process, where another writer has it, in this process or another;
  /// a clear error where the path is a file, cannot be made or written.
  [[nodiscard]] static Result<std::unique_ptr<Root>> Open(IoQueue& queue, const RootOptions& options);
  virtual ~Root() = default;
  /// The path, absolute.
  [[nodiscard]] virtual const std::string& path() const = 0;
  /// In a forked child: forget the lock without releasing the parent's.
  virtual void ForgetAfterFork() = 0;
};

/// A checkpoint found under a root.
struct StoredCheckpoint {
  CheckpointInfo info;  ///< info.status is Corrupt where the manifest does not verify.
  Manifest manifest;    ///< Empty where it does not.
};

/// Lists step-*: verified ones by {generation, step}, oldest first, then the damaged ones by step. Takes no lock, writes
/// nothing. NotFound where the root itself is missing; folders that vanish meanwhile (retention) are left out.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ListCheckpoints(const std::string& root);
/// One folder, wherever it is. Step and file set are checked against the manifest where the folder's name is a step's.
[[nodiscard]] Result<StoredCheckpoint> ReadCheckpointFolder(const std::string& folder);
/// The checkpoint that `which` means, by the rules of Checkpointer::Restore, as far as manifests go: candidates in the
/// order in which to try them (one, unless it may fall back). A damaged manifest counts as the newest: it can't be known.
[[nodiscard]] Result<std::vector<StoredCheckpoint>> ChooseCheckpoints(const std::string& root, const Which& which);

/// Which of the verified, unpinned checkpoints retention removes. Pure. `list` as ListCheckpoints returns it; damaged ones
/// are neither counted nor removed. keep_last 0 removes nothing.
[[nodiscard]] std::vector<std::uint64_t> ChooseRetired(const std::vector<StoredCheckpoint>& list, std::uint64_t keep_last,
                                                       std::uint64_t keep_every);

/// Step 6: removes step-N: renames it to .retired-<uuid>, fsyncs the root, unlinks its files. All on the queue's thread.
/// FailedPrecondition, and nothing changed, while somebody reads it (see ReadLock).
void RemoveCheckpoint(IoQueue& queue, const std::string& root, std::uint64_t step, StatusDone done);

/// Makes (or removes) the pin, fsyncs the folder. Blocking; the queue is the caller's alone.
[[nodiscard]] Status SetPin(IoQueue& queue, const std::string& root, std::uint64_t step, bool pinned, unsigned file_mode);

/// Keeps a checkpoint from removal while it lives: a shared lock on its manifest, across processes.
class ReadLock {
 public:
  /// NotFound where the folder was removed meanwhile.
  [[nodiscard]] static Result<ReadLock> Take(const std::string& folder);

 private:
  explicit ReadLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace cairn
