#include "device/cuda_completions.h"

#include <utility>

namespace cairn {

struct CudaCompletions::Shared {
  Mutex mutex;
  CondVar idle;
  std::unordered_set<Ticket*> pending CAIRN_GUARDED_BY(mutex);
  int running CAIRN_GUARDED_BY(mutex) = 0;
};

struct CudaCompletions::Ticket {
  std::shared_ptr<Shared> shared;
  // Guarded by shared->mutex once the driver has the ticket.
  CopyDone done;
};

CudaCompletions::CudaCompletions() : shared_(std::make_shared<Shared>()) {}

CudaCompletions::~CudaCompletions() { Close(); }

CudaCompletions::Ticket* CudaCompletions::Add(CopyDone done) {
  auto ticket = std::make_unique<Ticket>(Ticket{.shared = shared_, .done = std::move(done)});
  const MutexLock lock(shared_->mutex);
  shared_->pending.insert(ticket.get());
  return ticket.release();
}

void CudaCompletions::Cancel(Ticket* ticket) {
  const std::unique_ptr<Ticket> owner(ticket);
  const MutexLock lock(shared_->mutex);
  shared_->pending.erase(ticket);
}

void CudaCompletions::HostFunction(void* ticket) {
  const std::unique_ptr<Ticket> owner(static_cast<Ticket*>(ticket));
  Shared& shared = *owner->shared;
  CopyDone done;
  {
    const MutexLock lock(shared.mutex);
    if (shared.pending.erase(owner.get()) == 0) return;
    done = std::move(owner->done);
    ++shared.running;
  }
  done(Status::Ok());
  done = nullptr;  // Destroys what it captured before Close returns.
  const MutexLock lock(shared.mutex);
  if (--shared.running == 0) shared.idle.NotifyAll();
}

void CudaCompletions::Close() {
  std::vector<CopyDone> dropped;
  const MutexLock lock(shared_->mutex);
  for (Ticket* ticket : shared_->pending) dropped.push_back(std::move(ticket->done));
  shared_->pending.clear();
  while (shared_->running != 0) shared_->idle.Wait(shared_->mutex);
}

}  // namespace cairn
