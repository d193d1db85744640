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
      reads_cpu_(snapshot != nullptr && snapshot->reads_cpu()),
      snapshot_(std::move(snapshot)),
      events_(std::move(events)),
      engine_(std::move(engine)),
      held_(plan_.hold.count() > 0) {
  stats_.step = plan_.step;
  if (snapshot_ != nullptr) stats_.bytes = snapshot_->table().bytes();
}

SaveTask::~SaveTask() { assert(!CheckProcess().ok() || ended()); }

Status SaveTask::CheckProcess() const {
  if (::getpid() == process_) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "step {}: the save belongs to the parent process of this forked child",
               plan_.step);
}

bool SaveTask::WaitUntil(bool (SaveTask::*over)() const, Deadline deadline) {
  while (!(this->*over)() && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
  return (this->*over)();
}

Status SaveTask::Late(const char* what) const {
  return Error(StatusCode::kDeadlineExceeded, "step {}: not {} in time, it is {}", plan_.step, what,
               SavePhaseName(stats_.phase));
}

Status SaveTask::WaitCaptured(Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  if (!WaitUntil(&SaveTask::TensorsFree, deadline)) return Late("captured");
  return Told(tensors_released_.value_or(status_));
}

Status SaveTask::WaitKept(Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  if (!WaitUntil(&SaveTask::KeptOrEnded, deadline)) return Late("kept");
  return stats_.phase == SavePhase::kKept ? Status::Ok() : Told(status_);
}

bool SaveTask::WaitTensorsFree(Deadline deadline) {
  if (!CheckProcess().ok()) return false;
  MutexLock lock(mutex_);
  return WaitUntil(&SaveTask::TensorsFree, deadline);
}

bool SaveTask::WaitEnded(Deadline deadline) {
  if (!CheckProcess().ok()) return false;
  MutexLock lock(mutex_);
  return WaitUntil(&SaveTask::Ended, deadline);
}

bool SaveTask::WaitKeptOrEnded(Deadline deadline) {
  if (!CheckProcess().ok()) return false;
  MutexLock lock(mutex_);
  return WaitUntil(&SaveTask::KeptOrEnded, deadline);
}

void SaveTask::Want() {
  if (!CheckProcess().ok()) return;
  std::function<void()> call;
  {
    MutexLock lock(mutex_);
    wanted_ = true;
    call = std::exchange(on_wanted_, {});
  }
  if (call) call();
}

void SaveTask::OnWanted(std::function<void()> call) {
  MutexLock lock(mutex_);
  if (!wanted_ && !Ended()) on_wanted_ = std::move(call);
}

bool SaveTask::wanted() const {
  MutexLock lock(mutex_);
  return wanted_;
}

Status SaveTask::WaitDurable(Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  Want();
  MutexLock lock(mutex_);
  return WaitUntil(&SaveTask::Ended, deadline) ? Told(status_) : Late("durable");
}

Status SaveTask::Fence(Stream stream, Deadline deadline, const std::function<void()>& on_disk) {
  CAIRN_ASSIGN_OR_RETURN(const bool free, AwaitFence(HostWaits(stream), deadline, on_disk));
  if (free) return Status::Ok();
  Status status = HoldStream(stream);
  {
    MutexLock lock(mutex_);
    if (--fencing_ == 0 && events_unused_) ReleaseEvents();
  }
  if (status.ok() || !LostAnotherGpu(stream)) return status;
  // Soon the engine finds the loss too, and ends the save: what a fence answers must not depend on who is first.
  return AwaitFence(true, deadline, {}).status();
}

Result<bool> SaveTask::AwaitFence(bool host_waits, Deadline deadline, const std::function<void()>& on_disk) {
  const Clock::time_point begin = Clock::now();
  for (bool tells = on_disk != nullptr;; tells = false) {
    {
      MutexLock lock(mutex_);
      // Earlier calls count: Python's are short, so that signals interrupt them.
      const Deadline long_at =
          Deadline::At(begin + kLongFence - std::min<std::chrono::nanoseconds>(fence_wait_, kLongFence));
      if (HeldUp(host_waits) && !fence_waits_.exchange(true)) engine_->Wake();
      while (HeldUp(host_waits) && !deadline.passed() && !(tells && long_at.passed() && waits_for_disk())) {
        const bool first = tells && !long_at.passed() && long_at.when() < deadline.when();
        changed_.WaitUntil(mutex_, first ? long_at : deadline);
      }
      const bool over = !HeldUp(host_waits) || deadline.passed();
      if (over || !tells) {
        const std::chrono::nanoseconds waited = Clock::now() - begin;
        stats_.stall += waited;
        fence_wait_ += waited;
        if (HeldUp(host_waits)) {
          return Error(StatusCode::kDeadlineExceeded, "step {}: its tensors may not be overwritten yet, it is {}",
                       plan_.step, SavePhaseName(stats_.phase));
        }
        if (!TensorsFree()) ++fencing_;
        return TensorsFree();
      }
    }
    on_disk();
  }
}

bool SaveTask::HostWaits(Stream stream) const {
  return reads_cpu_ || stream.device.kind == DeviceKind::kCpu ||
         std::ranges::any_of(events_,
                             [&](const DeviceEvents& one) { return !one.device->CanHoldStreamsOf(stream.device); });
}

bool SaveTask::LostAnotherGpu(Stream stream) const {
  return std::ranges::any_of(events_, [&](const DeviceEvents& one) {
    return one.device->id() != stream.device && !one.device->Health().ok();
  });
}

Status SaveTask::HoldStream(Stream stream) const {
  for (const DeviceEvents& one : events_) {
    for (std::size_t lane = 0; lane < one.lanes.size(); ++lane) {
      if (one.recorded[lane]) CAIRN_RETURN_IF_ERROR(one.device->StreamWait(stream, one.lanes[lane]));
    }
  }
  return Status::Ok();
}

void SaveTask::MoveTo(std::shared_ptr<Inbox> engine) {
  MutexLock lock(mutex_);
  engine_ = std::move(engine);
}

bool SaveTask::RequestCancel(Status why) {
  if (!CheckProcess().ok()) return false;
  std::shared_ptr<Inbox> engine;
  {
    MutexLock lock(mutex_);
    if (stats_.phase >= SavePhase::kCommitting) return false;
    if (!cancelled_) cancelled_ = std::move(why);
    engine = engine_;
  }
  engine->Wake();
  return true;
}

void SaveTask::Release() {
  if (!CheckProcess().ok()) return;
  std::shared_ptr<Inbox> engine;
  {
    MutexLock lock(mutex_);
    held_ = false;
    engine = engine_;
  }
  engine->Wake();
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

Status SaveTask::outcome() const {
  MutexLock lock(mutex_);
  return status_;
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
  if (Ended()) return;  // Given up by Engine::Stop.
  assert(phase > stats_.phase);
  stats_.phase = phase;
  changed_.NotifyAll();
}

void SaveTask::MarkCapturing() {
  MutexLock lock(mutex_);
  if (stats_.phase == SavePhase::kCapturing) return;  // It was, elsewhere, and had not begun: see MoveTo.
  Advance(SavePhase::kCapturing);
}

void SaveTask::MarkShortOfBuffers(bool is) {
  MutexLock lock(mutex_);
  short_of_buffers_ = is;
  changed_.NotifyAll();
}

void SaveTask::AddGpuChecksums(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  stats_.gpu_checksum_bytes += bytes;
}

void SaveTask::MarkEnqueued(bool staged) {
  MutexLock lock(mutex_);
  enqueued_ = true;
  stats_.staged = staged;
  stats_.enqueued = SinceBegun();
  changed_.NotifyAll();
}

void SaveTask::Reach(SavePoint point) {
  Clock::time_point& at = points_[static_cast<std::size_t>(point)];
  if (point != SavePoint::kFirstCopied || at == Clock::time_point()) at = Clock::now();
}

void SaveTask::AddPhases(Metrics& metrics) const {
  Clock::time_point begun = begun_;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (points_[i] == Clock::time_point()) continue;
    const Clock::time_point end = std::max(begun, points_[i]);
    metrics.phases[i].Observe(end - begun);
    begun = end;
  }
  metrics.durations.Observe(begun - begun_);
}

void SaveTask::MarkCaptured() {
  Reach(SavePoint::kCaptured);
  MutexLock lock(mutex_);
  stats_.captured = SinceBegun();
  ReleaseEvents();
  Advance(SavePhase::kCaptured);
}

void SaveTask::MarkWritten(std::uint64_t bytes_written, bool direct, bool recycled) {
  Reach(SavePoint::kSummed);
  MutexLock lock(mutex_);
  stats_.written = SinceBegun();
  stats_.bytes_written = bytes_written;
  stats_.direct = direct;
  stats_.recycled = recycled;
}

void SaveTask::MarkKept(std::shared_ptr<const KeptFile> kept) {
  MutexLock lock(mutex_);
  kept_ = std::move(kept);
}

std::shared_ptr<const KeptFile> SaveTask::kept() const {
  if (!CheckProcess().ok()) return nullptr;
  MutexLock lock(mutex_);
  return kept_;
}

bool SaveTask::MarkCommitting() {
  Reach(SavePoint::kReleased);
  MutexLock lock(mutex_);
  if (cancelled_ || Ended()) return false;
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

Status SaveTask::FinishUnanswered() {
  Status status;
  {
    MutexLock lock(mutex_);
    if (Ended()) return status_;
    const bool commits = stats_.phase == SavePhase::kCommitting;
    status = Error(commits ? StatusCode::kUnknownOutcome : StatusCode::kDeadlineExceeded,
                   "step {}: the disk did not respond while the checkpointer was closed", plan_.step);
    FinishLocked(status);
  }
  FinishKept();
  return status;
}

void SaveTask::MarkInMemory() {
  MutexLock lock(mutex_);
  if (Ended()) return;
  stats_.kept = SinceBegun();
  Advance(SavePhase::kKept);
}

void SaveTask::Finish(Status status) {
  {
    MutexLock lock(mutex_);
    FinishLocked(std::move(status));
  }
  FinishKept();
}

void SaveTask::FinishKept() {
  if (kept_save_ == nullptr) return;
  SaveStats stats;
  Status status;
  {
    MutexLock lock(mutex_);
    stats = stats_;
    status = status_;
  }
  SaveTask& kept = *kept_save_;
  MutexLock lock(kept.mutex_);
  kept.stats_.bytes_written = stats.bytes_written;
  kept.stats_.direct = stats.direct;
  kept.stats_.recycled = stats.recycled;
  kept.FinishLocked(std::move(status));
}

void SaveTask::FinishLocked(Status status) {
  if (Ended()) return;  // Given up by Engine::Stop.
  ReleaseEvents();
  status_ = std::move(status);
  if (status_.ok()) stats_.durable = SinceBegun();
  // What is kept stays so, whatever becomes of it on the disk.
  if (status_.ok() || stats_.phase != SavePhase::kKept) {
    Advance(status_.ok() ? SavePhase::kDurable : SavePhase::kFailed);
  }
  ended_ = true;
  on_wanted_ = {};
  changed_.NotifyAll();
}

void SaveTask::ReleaseEvents() {
  events_unused_ = true;
  if (fencing_ != 0 || !std::exchange(events_held_, false)) return;
  for (const DeviceEvents& one : events_) one.ReleaseAll();
}

}  // namespace cairn
