#pragma once

#include <cstdint>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/worker_pool.h"
#include "cairn/options.h"
#include "cairn/stats.h"
#include "cairn/status.h"
#include "device/buffer_pool.h"

namespace cairn {

/// Grows a pool to the states that are saved, on a thread of its own: the calls that bring them do not wait. For a GPU
/// the memory is pinned, and also without one the kernel may let the caller wait for a lock. Safe from any thread.
class PoolGrowth {
 public:
  /// So many ranks share the memory of this node. ResourceExhausted if the thread could not be started.
  [[nodiscard]] static Result<std::unique_ptr<PoolGrowth>> Start(BufferPool& pool, WorkerPool& workers,
                                                                 std::uint64_t ranks_of_node, EventCallback on_event);
  ~PoolGrowth();
  PoolGrowth(const PoolGrowth&) = delete;
  PoolGrowth& operator=(const PoolGrowth&) = delete;

  /// Grows the pool to a state of this size, as far as it may. If it cannot grow, it stays as it is, with a warning. If
  /// memory is pinned for it, an event of this severity says so.
  void FitTo(std::uint64_t state_bytes, Severity severity) CAIRN_EXCLUDES(mutex_);
  /// Whether the pool is about to become larger.
  [[nodiscard]] bool growing() const CAIRN_EXCLUDES(mutex_);
  /// Ends after the part that is being added. False if that takes longer: then this must not be destroyed yet. There is
  /// no event afterwards.
  bool End(Deadline deadline) CAIRN_EXCLUDES(mutex_, event_mutex_);

 private:
  PoolGrowth(BufferPool& pool, WorkerPool& workers, std::uint64_t ranks_of_node, EventCallback on_event);
  void Run() CAIRN_EXCLUDES(mutex_);
  void Grow(std::uint64_t state_bytes, Severity severity) CAIRN_EXCLUDES(mutex_, event_mutex_);
  void Notify(const Event& event) CAIRN_EXCLUDES(mutex_, event_mutex_);

  BufferPool& pool_;
  WorkerPool& workers_;
  const std::uint64_t ranks_of_node_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t wanted_ CAIRN_GUARDED_BY(mutex_) = 0;  // The largest state of all.
  std::uint64_t fitted_ CAIRN_GUARDED_BY(mutex_) = 0;  // The state that the pool was fitted to.
  Severity severity_ CAIRN_GUARDED_BY(mutex_) = Severity::kInfo;
  bool ending_ CAIRN_GUARDED_BY(mutex_) = false;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;

  // Held through a callback, so that none runs after End.
  Mutex event_mutex_;
  EventCallback on_event_ CAIRN_GUARDED_BY(event_mutex_);

  std::thread thread_;
};

}  // namespace cairn
