#include "engine/save_task.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

SaveTask::SaveTask(SavePlan plan, std::unique_ptr<Snapshot> snapshot, std::vector<DeviceEvents> events,
                   Clock::time_point begun, std::shared_ptr<Inbox> engine)
    : process_(::getpid()),
      plan_(std::move(plan)),
      begun_(begun),
      engine_(std::move(engine)),
      snapshot_(std::move(snapshot)),
      events_(std::move(events)),
      held_(plan_.hold.count() > 0) {
  stats_.step = plan_.step;
  if (snapshot_ != nullptr) {
    stats_.bytes = snapshot_->table().bytes();
    reads_cpu_ = snapshot_->reads_cpu();
  }
}

SaveTask::~SaveTask() { assert(!CheckProcess().ok() || ended()); }

Status SaveTask::CheckProcess() const {
  if (::getpid() == process_) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "step {}: the save belongs to the parent process of this forked child",
               plan_.step);
}

Status SaveTask::WaitCaptured(Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  while (!TensorsFree()) {
    if (deadline.passed()) {
      return Error(StatusCode::kDeadlineExceeded, "step {}: not captured in time, it is {}", plan_.step,
                   SavePhaseName(stats_.phase));
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return Told(tensors_released_.value_or(status_));
}

bool SaveTask::WaitTensorsFree(Deadline deadline) {
  if (!CheckProcess().ok()) return false;
  MutexLock lock(mutex_);
  while (!TensorsFree() && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
  return TensorsFree();
}

Status SaveTask::WaitDurable(Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  while (!Ended()) {
    if (deadline.passed()) {
      return Error(StatusCode::kDeadlineExceeded, "step {}: not durable in time, it is {}", plan_.step,
                   SavePhaseName(stats_.phase));
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return Told(status_);
}

Status SaveTask::Fence(Stream stream, Deadline deadline) {
  const Clock::time_point begin = Clock::now();
  {
    MutexLock lock(mutex_);
    const bool elsewhere = std::any_of(events_.begin(), events_.end(), [&](const DeviceEvents& one) {
      return !one.device->CanHoldStreamsOf(stream.device);
    });
    const bool host_waits = reads_cpu_ || elsewhere || stream.device.kind == DeviceKind::kCpu;
    const auto held_up = [&]() CAIRN_REQUIRES(mutex_) { return !TensorsFree() && (host_waits || !enqueued_); };
    if (held_up() && !fence_waits_.exchange(true)) engine_->Wake();
    while (held_up() && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
    const std::chrono::nanoseconds waited = Clock::now() - begin;
    stats_.stall += waited;
    fence_wait_ += waited;
    if (held_up()) {
      return Error(StatusCode::kDeadlineExceeded, "step {}: its tensors may not be overwritten yet, it is {}",
                   plan_.step, SavePhaseName(stats_.phase));
    }
    if (TensorsFree()) return Status::Ok();
    ++fencing_;  // Not captured yet, so the events still exist. This keeps them.
  }
  Status status = HoldStream(stream);
  MutexLock lock(mutex_);
  if (--fencing_ == 0 && events_unused_) ReleaseEvents();
  return status;
}

Status SaveTask::HoldStream(Stream stream) const {
  for (const DeviceEvents& one : events_) {
    for (std::size_t lane = 0; lane < one.lanes.size(); ++lane) {
      if (one.recorded[lane]) CAIRN_RETURN_IF_ERROR(one.device->StreamWait(stream, one.lanes[lane]));
    }
  }
  return Status::Ok();
}

std::chrono::nanoseconds SaveTask::fence_wait() const {
  MutexLock lock(mutex_);
  return fence_wait_;
}

bool SaveTask::waits_for_disk() const {
  MutexLock lock(mutex_);
  return short_of_buffers_ && !enqueued_ && !TensorsFree();
}

bool SaveTask::RequestCancel(Status why) {
  if (!CheckProcess().ok()) return false;
  {
    MutexLock lock(mutex_);
    if (stats_.phase >= SavePhase::kCommitting) return false;
    if (!cancelled_) cancelled_ = std::move(why);
  }
  engine_->Wake();
  return true;
}

void SaveTask::Release() {
  if (!CheckProcess().ok()) return;
  {
    MutexLock lock(mutex_);
    held_ = false;
  }
  engine_->Wake();
}

bool SaveTask::held() const {
  MutexLock lock(mutex_);
  return held_;
}

Status SaveTask::status() const {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  return Told(status_);
}

SaveStats SaveTask::stats() const {
  if (!CheckProcess().ok()) return {.step = plan_.step};
  MutexLock lock(mutex_);
  return stats_;
}

bool SaveTask::ended() const {
  MutexLock lock(mutex_);
  return Ended();
}

bool SaveTask::captured() const {
  MutexLock lock(mutex_);
  return stats_.phase >= SavePhase::kCaptured;
}

void SaveTask::SetCallTimes(std::chrono::nanoseconds call, std::chrono::nanoseconds stall) {
  MutexLock lock(mutex_);
  stats_.call = call;
  stats_.stall = stall;
}

void SaveTask::Advance(SavePhase phase) {
  assert(phase > stats_.phase);
  stats_.phase = phase;
  changed_.NotifyAll();
}

void SaveTask::MarkCapturing() {
  MutexLock lock(mutex_);
  Advance(SavePhase::kCapturing);
}

void SaveTask::MarkShortOfBuffers(bool is) {
  MutexLock lock(mutex_);
  short_of_buffers_ = is;
}

void SaveTask::MarkEnqueued(bool staged) {
  MutexLock lock(mutex_);
  enqueued_ = true;
  stats_.staged = staged;
  stats_.enqueued = SinceBegun();
  changed_.NotifyAll();
}

void SaveTask::MarkCaptured() {
  MutexLock lock(mutex_);
  stats_.captured = SinceBegun();
  ReleaseEvents();
  Advance(SavePhase::kCaptured);
}

void SaveTask::MarkWritten(std::uint64_t bytes_written, bool direct, bool recycled) {
  MutexLock lock(mutex_);
  stats_.written = SinceBegun();
  stats_.bytes_written = bytes_written;
  stats_.direct = direct;
  stats_.recycled = recycled;
}

bool SaveTask::MarkCommitting() {
  MutexLock lock(mutex_);
  if (cancelled_) return false;
  Advance(SavePhase::kCommitting);
  return true;
}

void SaveTask::ReleaseTensors(const Status& why) {
  MutexLock lock(mutex_);
  if (tensors_released_) return;
  tensors_released_ = why;
  changed_.NotifyAll();
}

std::optional<Status> SaveTask::cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

void SaveTask::Finish(Status status) {
  MutexLock lock(mutex_);
  if (Ended()) return;  // Given up by Engine::Stop.
  ReleaseEvents();
  status_ = std::move(status);
  if (status_.ok()) stats_.durable = SinceBegun();
  Advance(status_.ok() ? SavePhase::kDurable : SavePhase::kFailed);
}

void SaveTask::ReleaseEvents() {
  events_unused_ = true;
  if (fencing_ != 0 || !std::exchange(events_held_, false)) return;
  for (const DeviceEvents& one : events_) one.ReleaseAll();
}

}  // namespace cairn
