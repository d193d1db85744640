// The calls that keep a checkpoint, remove it, or move it out of the root.
#include "api/checkpointer_impl.h"
#include "api/memory_root.h"
#include "base/status_macros.h"
#include "engine/ledger.h"
#include "store/list.h"
#include "store/names.h"
#include "store/pins.h"
#include "store/publish.h"
#include "store/remove.h"

namespace cairn {
namespace {

/// If there is no such step, says which there are.
Status NameSteps(const PathAt& root, std::uint64_t step, Status status) {
  return status.code() == StatusCode::kNotFound && !StepExists(root, step) ? NoSuchStep(root, step) : std::move(status);
}

}  // namespace

Status Checkpointer::Impl::SetPinned(std::uint64_t step, PinOwner owner, bool pinned) {
  CAIRN_RETURN_IF_ERROR(CheckWritable());
  return blocking->Run([this, step, owner, pinned](IoQueue& queue) -> Status {
    MutexLock lock(pin_mutex);
    // keep_best leaves a user's pin alone.
    if (owner == PinOwner::kBest && FindPin(JoinPath(root->at(), StepName(step))) == PinOwner::kUser) {
      return Status::Ok();
    }
    const std::optional<PinOwner> wanted = pinned ? std::optional(owner) : std::nullopt;
    CAIRN_RETURN_IF_ERROR(NameSteps(root->at(), step, SetPin(queue, root->at(), step, wanted, options.file_mode)));
    if (ledger != nullptr) ledger->SetPinned(step, pinned);
    return Status::Ok();
  });
}

Status Checkpointer::Impl::CheckRank0(const std::string& what, std::string_view does) const {
  CAIRN_RETURN_IF_ERROR(CheckWritable());
  if (group->rank() == 0) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "{}: only rank 0 {}", what, does);
}

void Checkpointer::Impl::Warn(const std::vector<std::string>& messages, std::string_view phase) const {
  for (const std::string& message : messages) {
    Notify({.severity = Severity::kWarning, .message = message, .phase = phase});
  }
}

Status Checkpointer::Pin(std::uint64_t step) { return impl_->SetPinned(step, PinOwner::kUser, true); }

Status Checkpointer::Unpin(std::uint64_t step) { return impl_->SetPinned(step, PinOwner::kUser, false); }

Status Checkpointer::Remove(std::uint64_t step) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckRank0(fmt::format("step {}", step)));
  return impl_->blocking->Run([impl = impl_.get(), step](IoQueue& queue) -> Status {
    if (impl->memory != nullptr) {
      impl->memory->drains().GiveUp(step, "removed", Deadline::In(impl->options.full_timeout));
    }
    CAIRN_RETURN_IF_ERROR(impl->ledger->BeginRemoval(step));
    Removal removal = RemoveCheckpointBlocking(queue, impl->root->at(), step,
                                               {.check_writer = impl->check_writer, .pinned = Pinned::kGoes});
    removal.gone ? impl->ledger->Removed(step) : impl->ledger->CancelRetirement(step);
    const bool gone = removal.gone || removal.status.code() == StatusCode::kNotFound;
    if (impl->memory != nullptr && gone) {
      Status in_memory = impl->memory->RemoveStep(queue, step);
      if (in_memory.code() != StatusCode::kNotFound) return in_memory;
    }
    return NameSteps(impl->root->at(), step, std::move(removal.status));
  });
}

Status Checkpointer::Publish(std::uint64_t step, const std::string& path, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckRank0(path));
  return impl_->blocking->Run([impl = impl_.get(), step, path, deadline](IoQueue& queue) -> Status {
    CAIRN_RETURN_IF_ERROR(impl->ledger->BeginRemoval(step));
    const PathAt& root = impl->root->at();
    Leftovers left;
    Status published =
        cairn::Publish(queue, root, step, path, {.deadline = deadline, .check_writer = impl->check_writer}, left);
    // Publish exchanges the names of step and path. If the outcome is unknown, the step may be what the path was.
    const bool gone = published.ok() || !StepExists(root, step);
    gone ? impl->ledger->Removed(step) : impl->ledger->CancelRetirement(step);
    impl->Warn(left, "retention");
    return NameSteps(root, step, std::move(published));
  });
}

Status Checkpointer::RemovePublished(const std::string& path, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckRank0(path));
  return impl_->blocking->Run([impl = impl_.get(), path, deadline](IoQueue& queue) -> Status {
    Leftovers left;
    Status removed = cairn::RemovePublished(queue, impl->root->at(), path,
                                            {.deadline = deadline, .check_writer = impl->check_writer}, left);
    impl->Warn(left, "retention");
    return removed;
  });
}

}  // namespace cairn
