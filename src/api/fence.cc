// The calls that wait for saves in flight.
#include "api/checkpointer_impl.h"
#include "api/memory_root.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "engine/engine.h"

namespace cairn {

Status Checkpointer::Fence(Stream stream, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckProcess());
  if (impl_->engine == nullptr) return Status::Ok();
  if (stream.device.kind != DeviceKind::kCpu) CAIRN_RETURN_IF_ERROR(impl_->RefuseWhileCapturing(stream));
  for (const std::shared_ptr<SaveTask>& task : impl_->Unfenced()) {
    const Trace::Clock::time_point begun = Trace::Clock::now();
    const Status status = impl_->FenceOn(*task, stream, deadline);
    impl_->trace.Span("fence", "fence", begun, Trace::Clock::now(), task->plan().step, 0);
    CAIRN_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

std::vector<std::shared_ptr<SaveTask>> Checkpointer::Impl::Unfenced() const {
  std::vector<std::shared_ptr<SaveTask>> tasks = engine->InFlight();
  if (memory == nullptr) return tasks;
  // A drain reads what is kept.
  std::erase_if(tasks, [](const auto& task) { return task->drains(); });
  for (auto& task : memory->engine().InFlight()) tasks.push_back(std::move(task));
  return tasks;
}

CopyPause Checkpointer::PauseCopies(std::chrono::nanoseconds at_most) {
  if (!impl_->CheckProcess().ok() || impl_->engine == nullptr) return {};
  const std::shared_ptr<CopyPauses>& pauses = impl_->Saver().pauses();
  return {pauses, pauses->Begin(Deadline::In(at_most).when())};
}

void Checkpointer::Impl::EndPauses() {
  if (!CheckProcess().ok() || engine == nullptr) return;
  engine->pauses()->EndAll();
  if (memory != nullptr) memory->engine().pauses()->EndAll();
}

Status Checkpointer::Impl::FenceOn(SaveTask& task, Stream stream, Deadline deadline) {
  if (fence_waited) return task.Fence(stream, deadline);
  return task.Fence(stream, deadline, [&] {
    if (growth != nullptr && growth->growing()) return;  // It waits for memory, and not for the disk.
    if (fence_waited.exchange(true)) return;
    Notify({.severity = Severity::kWarning,
            .step = task.plan().step,
            .message = fmt::format(
                "a fence waits for the disk, and training with it: the pool of {} is full of what is not written yet, "
                "and has no room for all of this save's {}. A larger host_memory_bytes, or "
                "staging_bytes on the GPU, lets training go on",
                HumanBytes(pool->total_bytes()), HumanBytes(task.stats().bytes)),
            .phase = "fence",
            .duration = SaveTask::kLongFence});
  });
}

Status Checkpointer::Impl::RefuseWhileCapturing(Stream stream) {
  // If nothing is in flight, a fence captured into a CUDA graph would order nothing at replay. To record an event is an
  // error during capture, so this is found at once.
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, GetDevice(stream.device));
  if (!device->has_streams()) return Status::Ok();
  EventId event = 0;
  {
    MutexLock lock(fence_mutex);
    EventId& kept = fence_events[device.get()];
    if (kept == 0) {
      CAIRN_ASSIGN_OR_RETURN(kept, device->AcquireEvent());
    }
    event = kept;
  }
  // Without the mutex, since the driver may block. Nobody waits for the event, so threads may share it.
  return device->RecordOnStream(stream, event);
}

Status Checkpointer::WaitForPlace(Deadline deadline) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckWritable());
  const auto begun = SaveTask::Clock::now();
  const bool place = impl_->Saver().WaitForPlace(impl_->options.max_in_flight, deadline);
  impl_->metrics->stall += static_cast<std::uint64_t>(std::chrono::nanoseconds(SaveTask::Clock::now() - begun).count());
  if (place) return Status::Ok();
  return Error(StatusCode::kDeadlineExceeded, "{} saves are in flight", impl_->options.max_in_flight);
}

Status Checkpointer::Drain(Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->WaitIdle(deadline));
  return impl_->TakeDrainFailure();
}

Status Checkpointer::Impl::WaitIdle(Deadline deadline) const {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  if (memory != nullptr && (!memory->drains().WaitIdle(deadline) || !memory->engine().WaitIdle(deadline))) {
    const Status hangs = deadline.passed() ? Status::Ok() : memory->drains().DiskHangs();
    if (hangs.ok()) return Error(StatusCode::kDeadlineExceeded, "still in flight: {}", memory->Busy());
    return Error(hangs.code(), hangs.detail(), "still in flight: {}: {}", memory->Busy(), hangs.message());
  }
  if (engine == nullptr || engine->WaitIdle(deadline)) return Status::Ok();
  return Error(StatusCode::kDeadlineExceeded, "still in flight: {}", engine->Busy());
}

bool Checkpointer::Impl::HasSaves() const {
  return engine != nullptr &&
         (engine->HasSaves() || (memory != nullptr && !memory->drains().WaitIdle(Deadline::In({}))));
}

Status Checkpointer::Impl::TakeDrainFailure() {
  Status failure = TakeUnheardFailure();
  return failure.ok() && memory != nullptr ? memory->drains().Failure() : failure;
}

Status Checkpointer::Impl::TakeUnheardFailure() {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  if (engine == nullptr) return Status::Ok();
  Status failure = engine->TakeUnheardFailure();
  return failure.ok() && memory != nullptr ? memory->engine().TakeUnheardFailure() : failure;
}

}  // namespace cairn
