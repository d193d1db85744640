#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "base/worker_pool.h"
#include "cairn/group.h"
#include "cairn/options.h"
#include "device/buffer_pool.h"
#include "device/device.h"
#include "engine/copy_pauses.h"
#include "engine/inbox.h"
#include "engine/kept_file.h"
#include "engine/ledger.h"
#include "engine/line_record.h"
#include "engine/staging.h"
#include "io/watched_queue.h"
#include "store/list.h"
#include "store/spare.h"
#include "store/suspect.h"
#include "store/writer.h"

namespace cairn {

class SaveLine;
class SaveTask;
class ShardWriter;

/// The parts of the engine. Pointers outlive it.
struct EngineParts {
  /// Checked; defaults such as worker_threads resolved.
  Options options;
  PathAt root;
  /// The root's id, and Root::WriteLine. Empty except on the coordinator.
  std::string root_id;
  std::function<IoTask<Status>(std::uint64_t line)> write_line;
  /// Where the root's checkpoints may be as well.
  MemoryPlace memory;
  /// The root is in memory (Options::memory_root). Shards are mapped, and copies land in the file; what is committed is
  /// kept. Lines are recorded on the disk, by `begin_line`, instead of `write_line`: Engine::BeginLine of its engine.
  bool in_memory = false;
  std::function<void(std::uint64_t line, StatusDone done)> begin_line;
  /// The disk's ledger, then, on the coordinator. Saves that are not kept are withdrawn there.
  Ledger* admitted_by = nullptr;
  WriterCheck check_writer;
  std::vector<std::shared_ptr<Device>> devices;
  /// Staged chunks refer to them while a device that is set up late adds one.
  std::deque<StagingArea> staging;
  BufferPool* pool = nullptr;
  WorkerPool* workers = nullptr;
  /// Null except on the coordinator.
  Ledger* ledger = nullptr;
  Trace* trace = nullptr;
  Metrics* metrics = nullptr;
  /// Called after each save's end, on the engine's thread.
  std::function<void()> on_ended;
  /// The same, once nothing of it is in flight any more, before anything is retired for it. `attempt` is empty if it
  /// had none. May be empty.
  std::function<void(const std::shared_ptr<SaveTask>& task, const Status& outcome, const std::string& attempt)> on_gone;
  /// The disk, which had hung, answers. May be empty.
  std::function<void()> on_answers;
  /// In memory, on other ranks than the coordinator: the save has not begun, and is the disk's engine's now; if it is
  /// `off`, so are all that follow.
  std::function<void(const std::shared_ptr<SaveTask>& task, bool off)> on_moved;
  /// The same: the coordinator gives the step to the disk alone, and this rank has no save of it there, because of
  /// `why`.
  std::function<void(std::uint64_t step, const Status& why)> on_not_moved;
  IoQueueFactory queue;
  std::shared_ptr<Group> group;
  std::uint64_t frozen_every = kFrozenEvery;
  /// The engine's thread touches the pool's pages while idle.
  bool touch_pool = false;
};

/// State shared by the engine's thread and its saves. Only for that thread, except `parts` (constant), `inbox`,
/// `pauses`, Notify and Silence.
struct EngineContext {
  EngineParts parts;
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
  std::shared_ptr<CopyPauses> pauses = std::make_shared<CopyPauses>(inbox);
  std::unique_ptr<WatchedQueue> queue;
  std::shared_ptr<SaveLine> line;
  LineRecord line_record;
  /// What the next save may link; null if nothing. A restore into its tensors drops it, also what a save before the
  /// restore will have kept.
  std::shared_ptr<KeptFile> kept;
  /// What the next save marks before it is committed.
  std::vector<SuspectSteps> suspects;
  /// An event has said that kept files are copied.
  bool told_copied = false;
  /// Saves of what is kept that have failed since one was durable, with the same code: it, and how many.
  StatusCode drains_fail_with = StatusCode::kOk;
  std::uint64_t drains_failed = 0;
  int writes_in_flight = 0;
  /// A sweep, or a listing after an unknown outcome, is in progress: until it ends no attempt begins and no checkpoint
  /// is retired.
  bool scanning = false;
  /// What is removed may become a spare; no more after Engine::EndSpares.
  bool recycles = true;
  OnNotRecycled not_recycled;
  /// How what is removed becomes spares now.
  std::function<SparePolicy()> spares;
  /// Whether files are being removed, or may be once an older save than this writer's has ended.
  std::function<bool(const ShardWriter& writer)> makes_room;
  /// Restores fill lanes too, and their ends do not wake the engine.
  const std::shared_ptr<const std::function<void()>> on_room =
      std::make_shared<const std::function<void()>>([inbox = inbox] { inbox->Wake(); });

  MappedFiles mapped;

  /// The shards of a root in memory; null for one on a disk.
  [[nodiscard]] MappedFiles* mapped_files() { return parts.in_memory ? &mapped : nullptr; }
  /// One for each save that may be in flight, and one for a checkpoint retired meanwhile. In memory all that there are,
  /// since none may be lost: each rank takes its own, so that at the worst each lies in a folder of its own.
  [[nodiscard]] std::uint64_t spare_folders() const {
    const auto in_flight = static_cast<std::uint64_t>(parts.options.max_in_flight);
    if (!parts.options.recycle || !recycles) return 0;
    return parts.in_memory ? (in_flight + 2) * static_cast<std::uint64_t>(parts.group->size()) : in_flight + 1;
  }
  [[nodiscard]] Device* FindDevice(DeviceId id) const {
    for (const auto& device : parts.devices) {
      if (device->id() == id) return device.get();
    }
    return nullptr;
  }
  [[nodiscard]] StagingArea* FindStaging(DeviceId id) {
    for (StagingArea& area : parts.staging) {
      if (area.device()->id() == id) return &area;
    }
    return nullptr;
  }
  void Notify(const Event& event) const CAIRN_EXCLUDES(event_mutex) {
    // Called under the lock, so that no callback runs after Silence has returned.
    MutexLock lock(event_mutex);
    if (!silent && parts.options.on_event) parts.options.on_event(event);
  }
  void Silence() CAIRN_EXCLUDES(event_mutex) {
    MutexLock lock(event_mutex);
    silent = true;
  }

  mutable Mutex event_mutex;
  bool silent CAIRN_GUARDED_BY(event_mutex) = false;
};

}  // namespace cairn
