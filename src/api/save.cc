#include <algorithm>
#include <map>
#include <utility>

#include "api/checkpointer_impl.h"
#include "api/memory_root.h"
#include "base/status_macros.h"
#include "engine/engine.h"

namespace cairn {

Result<SaveHandle> Checkpointer::Save(std::uint64_t step, const State& state, const SaveOptions& options) {
  return impl_->Save(step, state, state.values(), options, /*hold=*/{});
}

Result<bool> Checkpointer::ShouldSave(std::uint64_t step) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckWritable());
  if (impl_->steered != nullptr) return impl_->steered->ShouldSave(step);
  return Error(StatusCode::kFailedPrecondition, "ShouldSave of step {}: steering is not set", step);
}

Result<SaveHandle> Checkpointer::GiveUp(std::uint64_t step, const Status& why) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckWritable());
  if (why.ok() || why.code() == StatusCode::kUnknownOutcome) {
    return Error(StatusCode::kInvalidArgument, "GiveUp of step {}: expected why it fails, found {}", step,
                 why.ok() ? "Ok" : "UnknownOutcome");
  }
  MutexLock lock(impl_->save_mutex);
  const auto task = impl_->SubmitFailed(step, impl_->next_sequence++, SaveTask::Clock::now(), why);
  task->MarkHeard();  // The caller gave the reason.
  return SaveHandle(task);
}

void Checkpointer::Impl::Refuse(std::uint64_t step, const Status& why) {
  if (!CheckWritable().ok()) return;
  MutexLock lock(save_mutex);
  TellRefused(step, next_sequence++, SaveTask::Clock::now(), why);
}

void Checkpointer::Impl::TellRefused(std::uint64_t step, std::uint64_t sequence, SaveTask::Clock::time_point begun,
                                     const Status& why) {
  if (group->size() == 1) return engine->CountRefused(why);
  SubmitFailed(step, sequence, begun, why)->MarkHeard();
}

std::shared_ptr<SaveTask> Checkpointer::Impl::SubmitFailed(std::uint64_t step, std::uint64_t sequence,
                                                           SaveTask::Clock::time_point begun, const Status& why) {
  auto task = std::make_shared<SaveTask>(SavePlan{.step = step, .sequence = sequence}, nullptr,
                                         std::vector<DeviceEvents>(), begun, engine->inbox());
  // The others may wait in their first save's call for what this rank says.
  if (memory != nullptr) memory->RefuseRoom(why);
  memory != nullptr && memory->shared() ? memory->Submit(task, why) : engine->Submit(task, why);
  return task;
}

Result<SaveHandle> Checkpointer::Impl::Save(std::uint64_t step, const State& state, Values values,
                                            const SaveOptions& save_options, std::chrono::nanoseconds hold) {
  CAIRN_RETURN_IF_ERROR(CheckWritable());
  const auto begun = SaveTask::Clock::now();
  MutexLock lock(save_mutex);
  const std::uint64_t sequence = next_sequence++;
  const auto refuse = [&](const Status& why) CAIRN_REQUIRES(save_mutex) {
    TellRefused(step, sequence, begun, why);
    return why;
  };

  const Result<std::shared_ptr<const TensorTable>> examined = Examine(state.table());
  if (!examined.ok()) return refuse(examined.status());
  const std::shared_ptr<const TensorTable>& table = *examined;
  if (!sharing) sharing.emplace(group->rank(), group->size());
  const Result<ReplicaAssignment> share = sharing->Of(table, save_options.replicated);
  if (!share.ok()) return refuse(share.status());
  const auto waiting = SaveTask::Clock::now();
  const bool due = save_options.pin || (options.keep_every != 0 && step % options.keep_every == 0);
  const Result<bool> keeps = CanKeep(due, *share->table, values);
  if (!keeps.ok()) return refuse(keeps.status());
  // Of several ranks, rank 0 says what goes to the disk alone.
  const bool kept = *keeps && (!due || group->rank() != 0);
  if (memory != nullptr && ledger != nullptr &&
      (save_options.if_exists == IfExists::kReplace || ledger->IsAbandoned(step))) {
    memory->drains().GiveUp(step, "saved anew", Deadline::In(options.full_timeout));
  }
  Engine& saver = kept && memory->in_use() ? memory->engine() : *engine;
  Result<SavePlan> plan = Admit(step, save_options.if_exists, saver);
  const auto stall = SaveTask::Clock::now() - waiting;
  // Not an error of this call: training goes on, and its saves do once the disk answers.
  if (plan.status().code() == StatusCode::kCancelled || plan.status().detail() == StatusDetail::kDiskHangs) {
    return SaveHandle(SubmitFailed(step, sequence, begun, plan.status()));
  }
  if (!plan.ok()) return refuse(plan.status());
  if (kept) {
    if (const Status accepted = memory->Accept(*plan, Deadline::In(options.full_timeout)); !accepted.ok()) {
      ledger->Withdraw(*plan);
      return refuse(accepted);
    }
  }
  plan->sequence = sequence;
  plan->pin = save_options.pin;
  plan->hold = hold;
  plan->replicated = share->replicated;
  Result<std::vector<DeviceEvents>> events = RecordStreams(*table, *share->table, save_options.streams);
  if (!events.ok()) {
    if (plan->admitted) ledger->Withdraw(*plan);
    if (kept) memory->Withdraw(*plan);
    return refuse(events.status());
  }
  auto task = std::make_shared<SaveTask>(*plan, std::make_unique<Snapshot>(share->table, std::move(values)),
                                         *std::move(events), begun, saver.inbox());
  task->SetCallTimes(SaveTask::Clock::now() - begun, stall);
  if (*keeps && !kept) memory->GiveToDisk(step);
  kept ? memory->Submit(task) : engine->Submit(task);
  if (steered != nullptr) steered->Begun(task);
  // Last: its thread takes locks of the kernel and the driver that this one may need.
  if (growth != nullptr && (!kept || due || !memory->in_use()))
    growth->FitTo(share->table->bytes(), Severity::kWarning);
  return SaveHandle(std::move(task));
}

Status Checkpointer::Impl::CheckTensors(const std::shared_ptr<const TensorTable>& table) {
  if (table == checked_table.lock()) return Status::Ok();
  std::map<DeviceId, std::shared_ptr<Device>> found;
  for (const DeviceId id : table->devices()) {
    CAIRN_ASSIGN_OR_RETURN(found[id], GetDevice(id));
  }
  for (std::size_t i = 0; i < table->size(); ++i) {
    const TensorEntry& entry = (*table)[i];
    if (entry.bytes() == 0) continue;
    if (const Status status = found[entry.device]->CheckLayout(entry.layout); !status.ok()) {
      return Error(status.code(), "tensor \"{}\" on {}: {}", entry.name, ToString(entry.device), status.message());
    }
  }
  checked_table = table;
  return Status::Ok();
}

std::shared_ptr<const TensorTable> Checkpointer::Impl::Foresee(const State& state) {
  if (!CheckWritable().ok()) return state.table();
  MutexLock lock(save_mutex);
  const Result<std::shared_ptr<const TensorTable>> examined = Examine(state.table());
  return examined.ok() ? *examined : state.table();
}

Result<std::shared_ptr<const TensorTable>> Checkpointer::Impl::Examine(
    const std::shared_ptr<const TensorTable>& table) {
  CAIRN_RETURN_IF_ERROR(CheckTensors(table));
  if (table == marked_table) return table;
  if (table == asked_table.lock()) return marked_table == nullptr ? table : marked_table;
  // Without a GPU in use nobody pays for this. Any of them knows all of the driver's memory.
  const std::vector<std::shared_ptr<Device>> gpus = devices->WithStreams();
  if (gpus.empty() || table->cpu_bytes() == 0) return table;
  std::vector<bool> written(table->size());
  bool any = false;
  for (std::size_t i = 0; i < table->size(); ++i) {
    const TensorEntry& entry = (*table)[i];
    if (entry.device.kind != DeviceKind::kCpu || entry.is_alias() || entry.bytes() == 0) continue;
    written[i] = gpus.front()->IsWrittenByStreams(entry.layout.base);
    any = any || written[i];
  }
  asked_table = table;
  marked_table = any ? table->WithWritten(written) : nullptr;
  return any ? marked_table : table;
}

bool Checkpointer::Impl::Keeps() const { return memory != nullptr && memory->in_use(); }

Engine& Checkpointer::Impl::Saver() const { return Keeps() ? memory->engine() : *engine; }

Result<bool> Checkpointer::Impl::CanKeep(bool due, const TensorTable& table, const Values& values) {
  if (memory == nullptr || memory->gone() || (due && group->size() == 1)) return false;
  if (due && group->rank() == 0 && memory->shared()) return true;  // It needs no room.
  // A header has, in JSON, of each tensor its name (maybe of a part, too) and numbers, and the values, escaped.
  SlotNeed need{.data = table.bytes(), .header = 9 * DivideUp(table.bytes(), kChecksumBlock)};
  for (std::size_t i = 0; i < table.size(); ++i) need.header += 512 + 4 * table[i].name.size();
  for (const auto& [name, value] : values) {
    const Json* const json = std::get_if<Json>(&value);
    const std::string* const text = std::get_if<std::string>(&value);
    const std::size_t length = json != nullptr ? json->text.size() : text != nullptr ? text->size() : 0;
    need.header += 64 + 2 * name.size() + (length < kLongValueBytes || text != nullptr ? 2 * length : 0);
    if (json != nullptr && length >= kLongValueBytes) need.long_values += length;
  }
  need.data += need.long_values;
  for (const DeviceId id : table.devices()) {
    CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, GetDevice(id));
    if (device->has_streams()) need.devices.push_back(std::move(device));
  }
  return memory->MakeRoom(need, Deadline::In(options.full_timeout));
}

Result<SavePlan> Checkpointer::Impl::Admit(std::uint64_t step, IfExists if_exists, Engine& saver) {
  const Deadline deadline = Deadline::In(options.full_timeout);
  CAIRN_RETURN_IF_ERROR(ApplyWhenFull(step, deadline, saver));
  if (const Status hangs = saver.DiskHangs(); !hangs.ok()) {
    return Error(hangs.code(), hangs.detail(), "step {}: not begun: {}", step, hangs.message());
  }
  if (ledger != nullptr) return ledger->Admit(step, if_exists, deadline);
  MutexLock lock(restored_mutex);
  return SavePlan{.step = step, .parent = restored};
}

Status Checkpointer::Impl::ApplyWhenFull(std::uint64_t step, Deadline deadline, Engine& saver) {
  if (saver.WaitForPlace(options.max_in_flight, Deadline::In({}))) return Status::Ok();
  int places = options.max_in_flight;
  if (group->rank() != 0) {
    // Rank 0 decides. If it skips a save, nobody waits here: there is one more place, for the save whose refusal is on
    // its way.
    if (options.when_full == WhenFull::kSkip) ++places;
  } else if (options.when_full == WhenFull::kSkip) {
    return Error(StatusCode::kCancelled, "step {}: skipped, {} saves are in flight", step, options.max_in_flight);
  } else if (options.when_full == WhenFull::kReplace) {
    const std::vector<std::shared_ptr<SaveTask>> tasks = saver.InFlight();
    const auto youngest =
        std::find_if(tasks.rbegin(), tasks.rend(), [](const auto& task) { return !task->captured(); });
    if (youngest != tasks.rend()) {
      static_cast<void>((*youngest)->RequestCancel(
          Error(StatusCode::kCancelled, "step {}: replaced by step {}", (*youngest)->plan().step, step)));
    }
  }
  if (saver.WaitForPlace(places, deadline)) return Status::Ok();
  return Error(StatusCode::kDeadlineExceeded, "step {}: {} saves were in flight all through full_timeout", step,
               options.max_in_flight);
}

Result<std::vector<DeviceEvents>> Checkpointer::Impl::RecordStreams(const TensorTable& table,
                                                                    const TensorTable& written,
                                                                    const std::vector<Stream>& streams) {
  // That it holds empty tensors alone is no mistake of the caller.
  const auto holds = [&](DeviceId device) {
    const std::vector<DeviceId>& of_table = table.devices();
    if (std::ranges::find(of_table, device) != of_table.end()) return true;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].device == device) return true;
    }
    return false;
  };
  std::vector<DeviceId> used = written.devices();
  const auto use = [&](DeviceId device) {
    if (std::ranges::find(used, device) == used.end()) used.push_back(device);
  };
  if (written.waits_for_streams()) {
    for (const auto& gpu : devices->WithStreams()) use(gpu->id());
    for (const Stream& stream : streams) use(stream.device);
  }
  for (const Stream& stream : streams) {
    if (table.waits_for_streams() || holds(stream.device)) continue;
    return Error(StatusCode::kInvalidArgument, "a stream of {}, but no tensor of the state is on this device",
                 ToString(stream.device));
  }
  std::vector<DeviceEvents> all;
  const auto record = [&]() -> Status {
    for (const DeviceId id : used) {
      CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, GetDevice(id));
      if (!device->has_streams()) continue;
      DeviceEvents& events = all.emplace_back(DeviceEvents{.device = device.get()});
      const auto record_on = [&](Stream stream) -> Status {
        CAIRN_ASSIGN_OR_RETURN(const EventId event, device->AcquireEvent());
        events.streams.push_back(event);
        return device->RecordOnStream(stream, event);
      };
      for (const Stream& stream : streams) {
        if (stream.device == id) CAIRN_RETURN_IF_ERROR(record_on(stream));
      }
      if (events.streams.empty()) CAIRN_RETURN_IF_ERROR(record_on({.device = id}));
      for (int lane = 0; lane < device->lanes(); ++lane) {
        CAIRN_ASSIGN_OR_RETURN(const EventId event, device->AcquireEvent());
        events.lanes.push_back(event);
        events.recorded.push_back(false);
      }
    }
    return Status::Ok();
  };
  if (const Status status = record(); !status.ok()) {
    for (const DeviceEvents& events : all) events.ReleaseAll();
    return status;
  }
  return all;
}

SaveHandle::SaveHandle(std::shared_ptr<SaveTask> task) : task_(std::move(task)) {}
std::uint64_t SaveHandle::step() const { return task_->plan().step; }
Status SaveHandle::WaitCaptured(Deadline deadline) const { return task_->WaitCaptured(deadline); }
Status SaveHandle::WaitKept(Deadline deadline) const { return task_->WaitKept(deadline); }
Status SaveHandle::WaitDurable(Deadline deadline) const { return task_->WaitDurable(deadline); }
Status SaveHandle::status() const { return task_->status(); }
SaveStats SaveHandle::stats() const { return task_->stats(); }
bool SaveHandle::Cancel() const {
  return task_->RequestCancel(Error(StatusCode::kCancelled, "step {}: cancelled by the caller", task_->plan().step));
}

}  // namespace cairn
