#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/worker_pool.h"
#include "cairn/checkpointer.h"
#include "device/buffer_pool.h"
#include "device/device.h"
#include "io/io_queue.h"
#include "restore/kept_header.h"
#include "restore/selection.h"
#include "store/list.h"

namespace cairn {

/// What reading needs; everything outlives the call.
struct RestoreParts {
  /// Called on the caller's thread, once for each call.
  IoQueueFactory queue;
  BufferPool* pool = nullptr;
  WorkerPool* workers = nullptr;
  /// Returns the device with that id. May be empty if every target is CPU memory.
  std::function<Result<Device*>(DeviceId)> device;
  /// Reads in flight at once.
  int queue_depth = 8;
  /// How long to wait for a chunk while saves hold the whole pool; then DeadlineExceeded.
  std::chrono::nanoseconds memory_timeout = std::chrono::hours(1);
  EventCallback on_event;
  /// Called for each checkpoint that is found or known to be damaged, whether or not an older one is then read.
  std::function<void(const CheckpointInfo&)> on_damaged;
  /// Of the group.
  int world = 1;
  /// How many ranks of this node may read the same bytes.
  std::uint64_t ranks_of_node = 1;
  /// The root's other place: see ChooseCheckpoints.
  MemoryPlace memory = {};
  /// What inspections leave for restores. May be null.
  KeptHeader* kept = nullptr;
  /// The shard with this rank's number is this rank's: it is read first, and its values are returned. False if another
  /// number of ranks saved the checkpoint.
  bool own_shard = true;
  /// Its values are returned. False for whoever has them from an inspection: they may be long.
  bool values = true;
};

/// Reads one checkpoint into the state's tensors for this rank, and verifies it.
///
/// Runs on the caller's thread with its own queue, holds a ReadLock, and blocks until done. Checks everything it can
/// (lengths, headers, names, shapes, dtypes, layouts) before it writes the first byte of a target; after a later error
/// the targets' contents are unspecified. On return no target is being written, whatever the status (after a sticky
/// device error: not by this process).
/// Corrupt: the checkpoint is damaged; names the file, the place, what was expected and found. InvalidArgument: it does
/// not match the state. Values are those of this rank's own shard; none if it has none.
[[nodiscard]] Result<Restored> RestoreCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint,
                                                 int rank, const State& state, const RestoreOptions& options);

/// Reads every byte and compares its checksum (only lengths and headers if checksums were off). Corrupt as for
/// RestoreCheckpoint.
[[nodiscard]] Status VerifyCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint,
                                      const Progress& progress);

/// Everything in the headers. Uses its own queue and reads no tensor data.
[[nodiscard]] Result<CheckpointDetails> InspectCheckpoint(const StoredCheckpoint& checkpoint);
/// One part, from as few headers as possible, as in RestoreCheckpoint. Keeps the rank's header in parts.kept.
[[nodiscard]] Result<CheckpointDetails> InspectCheckpoint(const RestoreParts& parts, const StoredCheckpoint& checkpoint,
                                                          const InspectPart& part);

/// Call it before choosing a checkpoint for the `times`th time, counted from 0, because the previous choice was `gone`
/// (removed or replaced) before it could be read. Waits a little after the first few. FailedPrecondition, with the last
/// reason, after a minute.
[[nodiscard]] Status PauseBeforeChoice(int times, const Status& gone);

/// For Checkpointer::Verify, Inspect and Choose: the checkpoint that `selector` selects, by the rules of
/// Checkpointer::Restore. If it is removed or replaced before it is locked, chooses again. NotFound: there was none to
/// choose.
[[nodiscard]] Status VerifySelected(const RestoreParts& parts, const std::string& root, const Selector& selector,
                                    const Progress& progress);
[[nodiscard]] Result<CheckpointDetails> InspectSelected(const std::string& root, const Selector& selector,
                                                        const MemoryPlace& memory = {});
[[nodiscard]] Result<CheckpointDetails> InspectSelected(const RestoreParts& parts, const std::string& root,
                                                        const Selector& selector, const InspectPart& part);
[[nodiscard]] Result<Chosen> ChooseSelected(const RestoreParts& parts, const std::string& root,
                                            const Selector& selector, bool inspect);

}  // namespace cairn
