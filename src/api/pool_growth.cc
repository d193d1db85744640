#include "api/pool_growth.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "api/resolve_options.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace cairn {

Result<std::unique_ptr<PoolGrowth>> PoolGrowth::Start(BufferPool& pool, WorkerPool& workers,
                                                      std::uint64_t ranks_of_node, EventCallback on_event) {
  std::unique_ptr<PoolGrowth> growth(new PoolGrowth(pool, workers, ranks_of_node, std::move(on_event)));
  CAIRN_ASSIGN_OR_RETURN(growth->thread_, StartThread("cairn-pool", [growth = growth.get()] { growth->Run(); }));
  return growth;
}

PoolGrowth::PoolGrowth(BufferPool& pool, WorkerPool& workers, std::uint64_t ranks_of_node, EventCallback on_event)
    : pool_(pool), workers_(workers), ranks_of_node_(ranks_of_node), on_event_(std::move(on_event)) {}

PoolGrowth::~PoolGrowth() {
  if (!thread_.joinable()) return;
  static_cast<void>(End(Deadline::Infinite()));
  thread_.join();
}

void PoolGrowth::FitTo(std::uint64_t state_bytes, Severity severity) {
  MutexLock lock(mutex_);
  if (state_bytes <= wanted_) return;
  wanted_ = state_bytes;
  severity_ = severity;
  changed_.NotifyAll();
}

bool PoolGrowth::growing() const {
  MutexLock lock(mutex_);
  return fitted_ < wanted_;
}

bool PoolGrowth::End(Deadline deadline) {
  {
    MutexLock lock(event_mutex_);
    on_event_ = nullptr;
  }
  pool_.StopGrowing();
  MutexLock lock(mutex_);
  ending_ = true;
  changed_.NotifyAll();
  while (!ended_ && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
  return ended_;
}

void PoolGrowth::Run() {
  while (true) {
    std::uint64_t state_bytes = 0;
    Severity severity{};
    {
      MutexLock lock(mutex_);
      while (!ending_ && fitted_ == wanted_) changed_.Wait(mutex_);
      if (ending_) {
        ended_ = true;
        changed_.NotifyAll();
        return;
      }
      state_bytes = wanted_;
      severity = severity_;
    }
    Grow(state_bytes, severity);
    MutexLock lock(mutex_);
    fitted_ = state_bytes;
  }
}

void PoolGrowth::Grow(std::uint64_t state_bytes, Severity severity) {
  const std::uint64_t before = pool_.total_bytes();
  // Since Open the trainer may have taken much of the memory that was available then.
  const std::uint64_t most = before + ChooseHostMemory(ranks_of_node_);
  const auto begun = std::chrono::steady_clock::now();
  const Status status = pool_.GrowTo(std::min(state_bytes, most), workers_);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  const std::uint64_t now = pool_.total_bytes();
  if (!status.ok()) {
    Notify({.severity = Severity::kWarning,
            .status = status,
            .message = fmt::format("the pool stays at {}, for a state of {}: {}", HumanBytes(now),
                                   HumanBytes(state_bytes), status.message()),
            .phase = "memory"});
  } else if (pool_.pinned() && now > before) {
    Notify({.severity = severity,
            .message = fmt::format("pinned {} more of host memory in {}, for a state of {}: "
                                   "host_memory_bytes={} does so at Open",
                                   HumanBytes(now - before), HumanDuration(took), HumanBytes(state_bytes), now),
            .phase = "memory",
            .duration = std::chrono::duration_cast<std::chrono::nanoseconds>(took)});
  }
}

void PoolGrowth::Notify(const Event& event) {
  MutexLock lock(event_mutex_);
  if (on_event_) on_event_(event);
}

}  // namespace cairn
