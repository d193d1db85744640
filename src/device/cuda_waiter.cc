#include "device/cuda_waiter.h"

#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"

namespace cairn {

CudaWaiter::~CudaWaiter() { Close(); }

Status CudaWaiter::Start(std::size_t events) {
  for (std::size_t i = 0; i < events; ++i) {
    CAIRN_ASSIGN_OR_RETURN(const CUevent event, Create());
    GiveBack(event);
  }
  CAIRN_ASSIGN_OR_RETURN(thread_, StartThread("cairn-lane", [this] { Run(); }));
  return Status::Ok();
}

Status CudaWaiter::Record(CUstream stream, CopyDone done) {
  CAIRN_ASSIGN_OR_RETURN(CudaEvent event, Take());
  const MutexLock lock(mutex_);
  CAIRN_RETURN_IF_ERROR(
      context_.Check(context_.driver().event_record(event.get(), stream), "recording the end of a copy"));
  recorded_.push_back({.event = event, .done = std::move(done)});
  last_.swap(event);  // What it was is given back without the lock.
  changed_.NotifyOne();
  return Status::Ok();
}

CudaEvent CudaWaiter::last() const {
  const MutexLock lock(mutex_);
  return last_;
}

void CudaWaiter::Forget() {
  CudaEvent forgotten;
  const MutexLock lock(mutex_);
  last_.swap(forgotten);
}

void CudaWaiter::Close() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
  Forget();
}

void CudaWaiter::DestroyEvents() {
  const MutexLock lock(events_mutex_);
  for (CUevent event : events_) (void)context_.driver().event_destroy(event);
  events_.clear();
}

void CudaWaiter::Run() {
  RequestShortSlices();
  while (std::optional<Recorded> next = Next()) {
    const Status ended = Await(next->event.get());
    next->event = nullptr;  // For whoever `done` wakes.
    next->done(ended);
  }
}

std::optional<CudaWaiter::Recorded> CudaWaiter::Next() {
  const MutexLock lock(mutex_);
  while (recorded_.empty() && !closing_) changed_.Wait(mutex_);
  if (recorded_.empty()) return std::nullopt;
  Recorded next = std::move(recorded_.front());
  recorded_.pop_front();
  return next;
}

// Not through CudaContext::Run: what was recorded before a sticky error of another call may end well.
Status CudaWaiter::Await(CUevent event) const {
  const CudaContext::Scope scope(context_);
  CUresult result = scope.result();
  if (result == CUDA_SUCCESS) result = context_.driver().event_synchronize(event);
  // Any error is the context's: nobody will hear of what was recorded.
  return result == CUDA_SUCCESS ? Status::Ok() : context_.SetSticky(result, "work on the GPU");
}

// An event that is not of this kind makes the thread that waits for it spin.
Result<CUevent> CudaWaiter::Create() const {
  CUevent event = nullptr;
  CAIRN_RETURN_IF_ERROR(context_.Check(
      context_.driver().event_create(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), "creating an event"));
  return event;
}

Result<CudaEvent> CudaWaiter::Take() {
  CUevent event = nullptr;
  {
    const MutexLock lock(events_mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (event == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(event, Create());
  }
  return CudaEvent(event, [this](CUevent unused) { GiveBack(unused); });
}

void CudaWaiter::GiveBack(CUevent event) {
  const MutexLock lock(events_mutex_);
  events_.push_back(event);
}

}  // namespace cairn
