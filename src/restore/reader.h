#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/worker_pool.h"
#include "cairn/checkpointer.h"
#include "device/buffer_pool.h"
#include "device/device.h"
#include "io/io_queue.h"
#include "store/list.h"
#include "store/locks.h"

namespace cairn {

/// What reading needs; everything outlives the call.
struct RestoreParts {
  IoQueueFactory queue;  ///< Called on the caller's thread, once a call.
  BufferPool* pool = nullptr;
  WorkerPool* workers = nullptr;
  /// The device of that id. May be empty where every target is CPU memory.
  std::function<Result<Device*>(DeviceId)> device;
  int queue_depth = 8;  ///< Reads under way at once.
  /// How long to wait for a chunk of the pool while saves hold them all: then DeadlineExceeded.
  std::chrono::nanoseconds memory_deadline = std::chrono::hours(1);
  /// After how long without an answer from the disk that is told, once; the reads are waited for all the same, as the
  /// kernel may yet write into the pool's memory.
  std::chrono::nanoseconds slow_after = std::chrono::seconds(30);
  EventCallback on_event;
  /// Told of each checkpoint that is found damaged as it is read, or known to be, whether or not an older one is read
  /// then.
  std::function<void(const CheckpointInfo&)> on_damaged;
};

/// Reads one checkpoint into the state's tensors, for this rank, verified on the way.
///
/// Runs on the caller's thread with a queue of its own, holds a ReadLock, and blocks until done. Everything that can be
/// checked (lengths, headers, names, shapes, dtypes, layouts) is checked before the first byte of a target is written;
/// after a later error the targets' contents are unspecified. No target is being written any more on return, whatever
/// the status (after a sticky device error: no longer by this process's doing).
/// Corrupt: the checkpoint is damaged; names the file, the place, what was expected and found. InvalidArgument: it is
/// not what the state wants. Values are those of this rank's own shard; none where it has none.
[[nodiscard]] Result<Restored> RestoreCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint,
                                                 int rank, const State& state, const RestoreOptions& options);

/// Reads every byte and checks it against its checksum (length and headers alone where checksums were off). Corrupt as
/// for RestoreCheckpoint.
[[nodiscard]] Status VerifyCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint,
                                      const Progress& progress);

/// Everything that the headers say. Reads with a queue of its own; touches no tensor data.
[[nodiscard]] Result<CheckpointDetails> InspectCheckpoint(const StoredCheckpoint& checkpoint);
/// What the headers say of one part, from as few of them as it takes, as in RestoreCheckpoint.
[[nodiscard]] Result<CheckpointDetails> InspectCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint,
                                                          const InspectPart& part);

/// Before a choice is made for the `times`th time, counted from 0, since what was chosen before was `gone` (removed or
/// replaced) when it was to be read: waits a little after the first few. FailedPrecondition, with the reason of the
/// last, once that has been tried for seconds.
[[nodiscard]] Status PauseBeforeChoice(int times, const Status& gone);

/// Restores the checkpoint under `root` that `which` means, by the rules of Checkpointer::Restore: where `which` may
/// fall back, a Corrupt candidate is passed over (and named in Restored::passed_over) for the next older one. One that
/// is removed or replaced before it is locked is chosen anew: NotFound says that there was none to choose,
/// FailedPrecondition that each choice was gone again, for seconds.
[[nodiscard]] Result<Restored> RestoreWhich(const RestoreParts& parts, const std::string& root, const Which& which,
                                            int rank, const State& state, const RestoreOptions& options);
/// The same choice for Checkpointer::Verify, Inspect and Choose.
[[nodiscard]] Status VerifyWhich(const RestoreParts& parts, const std::string& root, const Which& which,
                                 const Progress& progress);
[[nodiscard]] Result<CheckpointDetails> InspectWhich(const std::string& root, const Which& which);
[[nodiscard]] Result<CheckpointDetails> InspectWhich(const RestoreParts& parts, const std::string& root,
                                                     const Which& which, const InspectPart& part);
[[nodiscard]] Result<Chosen> ChooseWhich(const RestoreParts& parts, const std::string& root, const Which& which);

}  // namespace cairn
