// The calls that keep a checkpoint, remove it, or move it out of the root.
#include "api/checkpointer_impl.h"
#include "base/status_macros.h"
#include "io/watched_queue.h"
#include "store/names.h"
#include "store/pins.h"
#include "store/publish.h"
#include "store/remove.h"

namespace cairn {

Status Checkpointer::Impl::SetPinned(std::uint64_t step, PinOwner owner, bool pinned) {
  CAIRN_RETURN_IF_ERROR(CheckWritable());
  MutexLock lock(pin_mutex);
  // keep_best leaves a user's pin alone.
  if (owner == PinOwner::kBest && FindPin(JoinPath(root->at(), StepName(step))) == PinOwner::kUser) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, MakeLimitedQueue());
  const std::optional<PinOwner> wanted = pinned ? std::optional(owner) : std::nullopt;
  CAIRN_RETURN_IF_ERROR(SetPin(*queue, root->at(), step, wanted, options.file_mode));
  if (ledger != nullptr) ledger->SetPinned(step, pinned);
  return Status::Ok();
}

Result<std::unique_ptr<IoQueue>> Checkpointer::Impl::MakeQueueOnRank0(const std::string& what) const {
  CAIRN_RETURN_IF_ERROR(CheckWritable());
  if (group->rank() == 0) return MakeLimitedQueue();
  return Error(StatusCode::kFailedPrecondition, "{}: only rank 0 publishes and removes checkpoints", what);
}

Result<std::unique_ptr<IoQueue>> Checkpointer::Impl::MakeLimitedQueue() const {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, make_queue());
  return std::unique_ptr<IoQueue>(std::make_unique<LimitedQueue>(std::move(queue), options.stall_timeout));
}

void Checkpointer::Impl::Warn(const std::vector<std::string>& messages) const {
  if (!options.on_event) return;
  for (const std::string& message : messages) options.on_event({.severity = Severity::kWarning, .message = message});
}

Status Checkpointer::Pin(std::uint64_t step) { return impl_->SetPinned(step, PinOwner::kUser, true); }

Status Checkpointer::Unpin(std::uint64_t step) { return impl_->SetPinned(step, PinOwner::kUser, false); }

Status Checkpointer::Remove(std::uint64_t step) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, impl_->MakeQueueOnRank0(fmt::format("step {}", step)));
  CAIRN_RETURN_IF_ERROR(impl_->ledger->BeginRemoval(step));
  Removal removal = RemoveCheckpointBlocking(*queue, impl_->root->at(), step,
                                             {.check_writer = impl_->check_writer, .pinned = Pinned::kGoes});
  removal.gone ? impl_->ledger->Removed(step) : impl_->ledger->CancelRetirement(step);
  return std::move(removal.status);
}

Status Checkpointer::Publish(std::uint64_t step, const std::string& path, Deadline deadline) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, impl_->MakeQueueOnRank0(path));
  CAIRN_RETURN_IF_ERROR(impl_->ledger->BeginRemoval(step));
  const PathAt& root = impl_->root->at();
  Leftovers left;
  Status published =
      cairn::Publish(*queue, root, step, path, {.deadline = deadline, .check_writer = impl_->check_writer}, left);
  // Publish exchanges the names of step and path. If the outcome is unknown, the step may be what the path was.
  const bool gone = published.ok() || !StepExists(root, step);
  gone ? impl_->ledger->Removed(step) : impl_->ledger->CancelRetirement(step);
  impl_->Warn(left);
  return published;
}

Status Checkpointer::RemovePublished(const std::string& path, Deadline deadline) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, impl_->MakeQueueOnRank0(path));
  Leftovers left;
  Status removed = cairn::RemovePublished(*queue, impl_->root->at(), path,
                                          {.deadline = deadline, .check_writer = impl_->check_writer}, left);
  impl_->Warn(left);
  return removed;
}

}  // namespace cairn
