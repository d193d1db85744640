#include "bench/pipeline/pipeline_compute.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/status_macros.h"
#include "bench/pipeline/stage.h"

namespace cairn::bench {

std::vector<PipelineTask> TasksOf(int stage, std::uint64_t micro_batches) {
  const std::uint64_t ahead = std::min<std::uint64_t>(kStages - 1 - static_cast<std::uint64_t>(stage), micro_batches);
  std::vector<PipelineTask> tasks(ahead, PipelineTask::kForward);
  for (std::uint64_t i = 0; i < micro_batches; ++i) {
    if (ahead + i < micro_batches) tasks.push_back(PipelineTask::kForward);
    tasks.push_back(PipelineTask::kBackward);
  }
  return tasks;
}

// The longest path through both stages is micro_batches + 1 forwards and backwards, and the update.
PipelineCompute::PipelineCompute(const PipelineSettings& settings, const LoopClock& clock, Socket& other_stage,
                                 Compute& update)
    : settings_(settings),
      clock_(clock),
      other_stage_(other_stage),
      update_(update),
      tasks_(TasksOf(settings.stage, settings.micro_batches)),
      forward_seconds_((settings.iteration_seconds - settings.update_seconds) /
                       (3 * static_cast<double>(settings.micro_batches + kStages - 1))),
      sent_(std::max<std::size_t>(settings.activation_bytes, sizeof(Head))),
      received_(sent_.size()) {}

Status PipelineCompute::Forward(double /*began*/) {
  std::array<std::uint64_t, 2> done{};  // By task.
  for (const PipelineTask task : tasks_) {
    const bool forward = task == PipelineTask::kForward;
    const Head head{.iteration = iteration_, .micro_batch = done[forward ? 0 : 1]++};
    const bool first = (settings_.stage == 0) == forward;  // Of the two stages, to do this.
    if (!first) CAIRN_RETURN_IF_ERROR(Receive(head));
    clock_.wait_until(clock_.now() + forward_seconds_ * (forward ? 1 : 2));
    if (first) Send(head);
  }
  ++iteration_;
  MutexLock lock(mutex_);
  return sending_;
}

void PipelineCompute::Send(const Head& head) {
  sender_.Post([this, head] {
    std::memcpy(sent_.data(), &head, sizeof(head));
    const Status status = other_stage_.Send(sent_);
    MutexLock lock(mutex_);
    if (sending_.ok()) sending_ = status;
  });
}

Status PipelineCompute::Receive(const Head& head) {
  CAIRN_RETURN_IF_ERROR(other_stage_.Receive(received_));
  Head found;
  std::memcpy(&found, received_.data(), sizeof(found));
  if (found.iteration == head.iteration && found.micro_batch == head.micro_batch) return {};
  return Error(StatusCode::kInternal, "expected micro-batch {} of iteration {} of the other stage, found {} of {}",
               head.micro_batch, head.iteration, found.micro_batch, found.iteration);
}

}  // namespace cairn::bench
