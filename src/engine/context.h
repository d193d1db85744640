#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/trace.h"
#include "base/worker_pool.h"
#include "cairn/group.h"
#include "cairn/options.h"
#include "device/buffer_pool.h"
#include "device/device.h"
#include "engine/inbox.h"
#include "engine/ledger.h"
#include "engine/staging.h"
#include "io/io_queue.h"
#include "store/spare.h"
#include "store/writer.h"

namespace cairn {

/// What the engine is made of. The pointed-to parts outlive it.
struct EngineParts {
  Options options;           ///< Checked, worker_threads and the like resolved.
  PathAt root;               ///< The directory that is written.
  WriterCheck still_writer;  ///< Whether it is still this process that writes it.
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<StagingArea> staging;
  BufferPool* pool = nullptr;
  WorkerPool* workers = nullptr;
  Ledger* ledger = nullptr;  ///< The coordinator's; null on other ranks.
  Trace* trace = nullptr;
  IoQueueFactory queue;
  std::shared_ptr<Group> group;
  bool touch_pool = false;  ///< The engine's thread touches the pool while it is idle.
};

/// What the engine's thread and its saves share; all of it for that thread alone, but for `parts` (constant), `inbox`
/// and what tells events.
struct EngineContext {
  EngineParts parts;
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
  std::unique_ptr<IoQueue> queue;
  int writes_under_way = 0;
  /// What a crash left is being removed, or what the root holds after an unknown outcome listed: until then no attempt
  /// begins and no checkpoint is retired.
  bool settling = false;
  NotRecycled not_recycled;

  /// One for each save that may be in flight, and one for what is retired while all are.
  [[nodiscard]] std::uint64_t spare_folders() const {
    return parts.options.recycle ? static_cast<std::uint64_t>(parts.options.max_in_flight) + 1 : 0;
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
  void Tell(const Event& event) const CAIRN_EXCLUDES(event_mutex) {
    // Called with the lock, so that nothing is called any more once Silence has returned.
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
