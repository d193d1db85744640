#include <utility>

#include "base/status_macros.h"
#include "cairn/checkpointer.h"
#include "engine/save_task.h"

namespace cairn {

SaveHandle::SaveHandle(std::shared_ptr<SaveTask> task) : task_(std::move(task)) {}
std::uint64_t SaveHandle::step() const { return task_->plan().step; }
Status SaveHandle::WaitCaptured(Deadline deadline) const { return task_->WaitCaptured(deadline); }
Status SaveHandle::WaitDurable(Deadline deadline) const { return task_->WaitDurable(deadline); }
Status SaveHandle::status() const { return task_->status(); }
void SaveHandle::Release() const { task_->Release(); }
SaveStats SaveHandle::stats() const { return task_->stats(); }
bool SaveHandle::Cancel() const {
  return Cancel(Error(StatusCode::kCancelled, "step {}: cancelled by the caller", task_->plan().step));
}
bool SaveHandle::Cancel(Status why) const { return task_->RequestCancel(std::move(why)); }

}  // namespace cairn
