#include "support/faulty_device.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "device/host_device.h"
#include "device/stream_point.h"

namespace cairn {

struct FaultyDevice::State {
  struct Held {
    CopyBatch batch;
    CopyDone done;
  };

  mutable Mutex mutex;
  CondVar copied;
  int copies CAIRN_GUARDED_BY(mutex) = 0;
  std::map<int, Status> fail_now CAIRN_GUARDED_BY(mutex);
  std::map<int, Status> fail_later CAIRN_GUARDED_BY(mutex);
  std::optional<int> sticky_at CAIRN_GUARDED_BY(mutex);
  bool lost CAIRN_GUARDED_BY(mutex) = false;            // Every batch fails,
  bool sticky CAIRN_GUARDED_BY(mutex) = false;          // and every call, once no copy runs any more. Only then
  std::vector<CopyDone> fails CAIRN_GUARDED_BY(mutex);  // these are called.
  int under_way CAIRN_GUARDED_BY(mutex) = 0;            // Batches that the inner device has.
  CondVar none_under_way;

  // Without streams: what is held. With streams: the point that the lanes wait for.
  bool holding CAIRN_GUARDED_BY(mutex) = false;
  std::vector<Held> held CAIRN_GUARDED_BY(mutex);
  std::shared_ptr<StreamPoint> gate CAIRN_GUARDED_BY(mutex);

  static Status StickyError() {
    return {StatusCode::kDeviceError, "injected sticky device error: an illegal memory access was encountered"};
  }
  void Lose() CAIRN_EXCLUDES(mutex) {
    std::vector<CopyDone> ended;
    {
      MutexLock lock(mutex);
      lost = true;
      for (Held& one : std::exchange(held, {})) fails.push_back(std::move(one.done));
      if (gate != nullptr) std::exchange(gate, nullptr)->Reach();
      while (under_way > 0) none_under_way.Wait(mutex);
      sticky = true;
      ended = std::exchange(fails, {});
    }
    for (const CopyDone& done : ended) done(StickyError());
  }
  // A batch of the inner device has ended.
  void End(const CopyDone& done, Status status) CAIRN_EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      --under_way;
      if (lost) {
        fails.push_back(done);
        return none_under_way.NotifyAll();
      }
    }
    done(std::move(status));
  }
};

FaultyDevice::FaultyDevice(std::shared_ptr<Device> inner)
    : ForwardingDevice(std::move(inner)), state_(std::make_shared<State>()) {}

FaultyDevice::~FaultyDevice() { ReleaseCopies(); }

void FaultyDevice::FailCopy(int nth, Status status) {
  MutexLock lock(state_->mutex);
  state_->fail_now.insert_or_assign(nth, std::move(status));
}

void FaultyDevice::FailCopyLater(int nth, Status status) {
  MutexLock lock(state_->mutex);
  state_->fail_later.insert_or_assign(nth, std::move(status));
}

void FaultyDevice::BecomeStickyAt(int nth) {
  MutexLock lock(state_->mutex);
  state_->sticky_at = nth;
}

void FaultyDevice::BecomeSticky() { state_->Lose(); }

Status FaultyDevice::HoldCopies() {
  if (!inner_->has_streams()) {
    MutexLock lock(state_->mutex);
    state_->holding = true;
    return Status::Ok();
  }
  auto* const host = dynamic_cast<HostDevice*>(inner_.get());
  if (host == nullptr) return {StatusCode::kUnsupported, "only a HostDevice's lanes can be held"};
  auto gate = std::make_shared<StreamPoint>();
  const Stream stream = host->MakeStream();
  CAIRN_ASSIGN_OR_RETURN(const EventId event, inner_->AcquireEvent());
  {
    MutexLock lock(state_->mutex);
    if (state_->gate != nullptr) state_->gate->Reach();
    state_->gate = gate;
  }
  host->Launch(stream, [gate] { gate->Await(); });
  CAIRN_RETURN_IF_ERROR(inner_->RecordOnStream(stream, event));
  for (int lane = 0; lane < inner_->lanes(); ++lane) CAIRN_RETURN_IF_ERROR(inner_->LaneWait(lane, event));
  inner_->ReleaseEvent(event);
  return Status::Ok();
}

void FaultyDevice::ReleaseCopies() {
  std::vector<State::Held> held;
  while (true) {
    {
      MutexLock lock(state_->mutex);
      if (state_->gate != nullptr) std::exchange(state_->gate, nullptr)->Reach();
      held = std::exchange(state_->held, {});
      // Copies pass straight through again only once no earlier one is held.
      if (held.empty()) {
        state_->holding = false;
        return;
      }
    }
    for (State::Held& one : held) {
      const Status status = Enqueue(std::move(one.batch), one.done);
      if (!status.ok()) one.done(status);
    }
  }
}

int FaultyDevice::copies() const {
  MutexLock lock(state_->mutex);
  return state_->copies;
}

bool FaultyDevice::AwaitCopies(int count, Deadline deadline) {
  MutexLock lock(state_->mutex);
  while (state_->copies < count) {
    if (!state_->copied.WaitUntil(state_->mutex, deadline)) return state_->copies >= count;
  }
  return true;
}

Status FaultyDevice::Failure() const {
  MutexLock lock(state_->mutex);
  return state_->sticky ? State::StickyError() : Status::Ok();
}

Status FaultyDevice::Copy(CopyBatch batch, CopyDone done) {
  bool loses = false;
  {
    MutexLock lock(state_->mutex);
    if (state_->lost) return State::StickyError();
    const int nth = ++state_->copies;
    state_->copied.NotifyAll();
    loses = state_->sticky_at.has_value() && nth >= *state_->sticky_at;
    if (const auto found = state_->fail_now.find(nth); found != state_->fail_now.end()) return found->second;
    if (const auto found = state_->fail_later.find(nth); found != state_->fail_later.end()) {
      batch.pieces.clear();
      done = [instead = found->second, done = std::move(done)](const Status&) { done(instead); };
    }
    if (state_->holding || loses) {
      state_->held.push_back({std::move(batch), std::move(done)});
      if (!loses) return Status::Ok();
    }
  }
  if (!loses) return Enqueue(std::move(batch), std::move(done));
  state_->Lose();
  return Status::Ok();
}

Status FaultyDevice::Enqueue(CopyBatch batch, CopyDone done) {
  {
    MutexLock lock(state_->mutex);
    if (state_->lost) return State::StickyError();
    ++state_->under_way;
  }
  const Status status = inner_->Copy(
      std::move(batch), [state = state_, done = std::move(done)](Status ended) { state->End(done, std::move(ended)); });
  if (!status.ok()) state_->End([](const Status&) {}, status);
  return status;
}

}  // namespace cairn
