#include "api/binding_calls.h"

#include <utility>

#include "api/checkpointer_impl.h"
#include "base/status_macros.h"

namespace cairn {

Result<SaveHandle> BindingCalls::SaveHeld(Checkpointer& checkpointer, std::uint64_t step, const State& state,
                                          const SaveOptions& options, std::chrono::nanoseconds hold) {
  return checkpointer.impl_->Save(step, state, options, hold);
}

std::shared_ptr<const TensorTable> BindingCalls::Examine(Checkpointer& checkpointer, const State& state) {
  Checkpointer::Impl& impl = *checkpointer.impl_;
  if (!impl.CheckWritable().ok()) return state.table();
  MutexLock lock(impl.save_mutex);
  const Result<std::shared_ptr<const TensorTable>> examined = impl.Examine(state.table());
  return examined.ok() ? *examined : state.table();
}

void BindingCalls::Release(const SaveHandle& save) { save.task_->Release(); }

bool BindingCalls::WaitTensorsFree(const SaveHandle& save, Deadline deadline) {
  return save.task_->WaitTensorsFree(deadline);
}

bool BindingCalls::WaitEnded(const SaveHandle& save, Deadline deadline) { return save.task_->WaitEnded(deadline); }

Status BindingCalls::PinBest(Checkpointer& checkpointer, std::uint64_t step, bool pinned) {
  return checkpointer.impl_->SetPinned(step, PinOwner::kBest, pinned);
}

bool BindingCalls::Cancel(const SaveHandle& save, Status why) { return save.task_->RequestCancel(std::move(why)); }

Status BindingCalls::WaitIdle(const Checkpointer& checkpointer, Deadline deadline) {
  return checkpointer.impl_->WaitIdle(deadline);
}

Status BindingCalls::UnheardFailure(Checkpointer& checkpointer) { return checkpointer.impl_->TakeUnheardFailure(); }

bool BindingCalls::HasSaves(const Checkpointer& checkpointer) {
  const auto& engine = checkpointer.impl_->engine;
  return engine != nullptr && engine->HasSaves();
}

void BindingCalls::CloseBy(Checkpointer& checkpointer, Deadline abandons, Deadline ends) {
  checkpointer.impl_->abandon_by = abandons.when();
  checkpointer.impl_->close_by = ends.when();
}

void BindingCalls::EndPauses(Checkpointer& checkpointer) { checkpointer.impl_->EndPauses(); }

Result<Chosen> BindingCalls::Choose(const Checkpointer& checkpointer, const Selector& selector, bool inspect) {
  Checkpointer::Impl& impl = *checkpointer.impl_;
  CAIRN_RETURN_IF_ERROR(impl.CheckReadable(selector));
  return ChooseSelected(impl.MakeRestoreParts(), impl.root_path, selector, inspect);
}

Result<CheckpointDetails> BindingCalls::Inspect(const Checkpointer& checkpointer, const Selector& selector,
                                                const InspectPart& part) {
  Checkpointer::Impl& impl = *checkpointer.impl_;
  CAIRN_RETURN_IF_ERROR(impl.CheckReadable(selector));
  return InspectSelected(impl.MakeRestoreParts(), impl.root_path, selector, part);
}

Result<Restored> BindingCalls::Restore(Checkpointer& checkpointer, const Selector& selector, const RestoreCall& call) {
  return checkpointer.impl_->Restore(selector, call);
}

}  // namespace cairn
