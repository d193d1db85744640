#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "cairn/status.h"
#include "format/manifest.h"
#include "io/io_queue.h"
#include "store/spare.h"

namespace cairn {

struct AttemptSpec {
  std::string root;
  std::uint64_t step = 0;
  std::string uuid;
  std::uint64_t shard = 0;       ///< This rank's shard number.
  std::uint64_t file_bytes = 0;  ///< What the shard will be long, header included.
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
  std::uint64_t spare_folders = 0;  ///< Write over a spare of this rank, where one of so many folders holds one.
  NotRecycled not_recycled;
};

/// One rank's part of one attempt at a checkpoint: steps 1 to 3 and 5 of the commit protocol (which heads attempt.cc).
///
/// A lifecycle in this order: Begin, Write (many at once), Seal, and on the coordinator Commit, or both as
/// SealAndCommit; Abandon at any point where no call is under way. All calls, and all callbacks, on the queue's thread;
/// each callback comes once, never from within the call. The first error is final: later calls return it without
/// touching the disk. Destroying an attempt with a call under way is a bug; destroying one that is not committed leaves
/// its folder for Abandon or the next sweep.
class Attempt {
 public:
  [[nodiscard]] static std::unique_ptr<Attempt> Make(IoQueue& queue, AttemptSpec spec);
  virtual ~Attempt() = default;

  /// Step 1: checks the space (NoSpace names needed and free; RLIMIT_FSIZE too), makes the folder (another rank may
  /// have), makes the shard file, O_DIRECT where the filesystem takes it, or takes the spare over, whose space counts
  /// as free; and lays out its blocks.
  virtual void Begin(StatusDone done) = 0;
  /// Step 2: writes memory at a 4096-aligned offset of the file; address and length 4096-aligned too, so the tail is
  /// padded by the caller. A short write's aligned remainder is resubmitted; any other error is final.
  virtual void Write(std::uint64_t offset, Bytes memory, StatusDone done) = 0;
  /// Step 3: writes the header (4096-aligned memory and length), cuts the file to file_bytes, fsyncs and closes it,
  /// fsyncs the folder, and the one that a spare came from.
  virtual void Seal(Bytes header, StatusDone done) = 0;
  /// Step 5: manifest, fsync, fsync of the folder, rename to step-N, fsync of the root. With `replace` the old step-N
  /// is exchanged atomically and afterwards removed. AlreadyExists where step-N is there and `replace` is not set.
  ///
  /// UnknownOutcome where the rename was done and the root's fsync failed: the step is never acknowledged.
  virtual void Commit(const Manifest& manifest, bool replace, StatusDone done) = 0;
  /// Seal and Commit in one, for a rank that has nobody to agree with: their fsyncs run side by side, and all of them
  /// have returned before the rename.
  virtual void SealAndCommit(Bytes header, const Manifest& manifest, bool replace, StatusDone done) = 0;
  /// Closes and removes what there is of the attempt. Best effort: a leftover is the next sweep's.
  virtual void Abandon(StatusDone done) = 0;

  [[nodiscard]] virtual bool direct() const = 0;
  [[nodiscard]] virtual bool recycled() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_written() const = 0;
};

/// Step 5 of a rank that heard nothing: whether step-N holds the attempt `uuid`. If so the root is fsynced and done
/// gets Ok; NotFound where step-N is not there or is another attempt's; UnknownOutcome where the disk can't be asked.
void FindCommitted(IoQueue& queue, const std::string& root, std::uint64_t step, const std::string& uuid,
                   StatusDone done);

}  // namespace cairn
