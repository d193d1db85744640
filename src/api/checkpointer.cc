#include "cairn/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <utility>

#include "api/devices.h"
#include "api/published_paths.h"
#include "api/resolve_options.h"
#include "api/shared_restore.h"
#include "api/shared_root.h"
#include "api/steered_saves.h"
#include "api/wiring.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "base/worker_pool.h"
#include "device/host_device.h"
#include "engine/engine.h"
#include "engine/replicas.h"
#include "group/solo_group.h"
#include "restore/reader.h"
#include "store/list.h"
#include "store/pins.h"
#include "store/remove.h"
#include "store/root.h"

namespace cairn {
namespace {

Result<std::vector<CheckpointInfo>> ListInfos(const PathAt& root) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored, ListCheckpoints(root));
  std::vector<CheckpointInfo> infos;
  for (StoredCheckpoint& one : stored) infos.push_back(std::move(one.info));
  return infos;
}

}  // namespace

/// Members are destroyed from the last to the first: the engine goes before what it uses, the pool before the devices
/// that it is pinned with, and these before the workers that copy for them.
class Checkpointer::Impl {
 public:
  explicit Impl(Options resolved)
      : options(std::move(resolved)), workers("cairn-worker", options.worker_threads), trace(options.trace_events) {}

  // Constant after Open.
  const pid_t process = ::getpid();
  const Options options;
  std::string root_path;
  std::string queue_name;
  std::string queue_reason;
  IoQueueFactory queue_factory;
  std::shared_ptr<Group> group;

  // Each synchronises itself.
  WorkerPool workers;
  Trace trace;
  std::unique_ptr<Devices> devices;
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<Root> root;
  std::unique_ptr<Ledger> ledger;         // The coordinator's; null on other ranks, which have `restored`.
  std::unique_ptr<SteeredSaves> steered;  // Null without Options::steering.
  std::unique_ptr<Engine> engine;
  std::atomic<std::uint64_t> shared_restores = 0;  // Begun so far.

  // Held through a call of Save: saves are numbered in the order in which the engine gets them.
  Mutex save_mutex;
  std::uint64_t next_sequence CAIRN_GUARDED_BY(save_mutex) = 0;
  std::weak_ptr<const TensorTable> checked_table CAIRN_GUARDED_BY(save_mutex);
  std::optional<Sharing> sharing CAIRN_GUARDED_BY(save_mutex);  // Of this rank; made by the first save.
  Mutex restored_mutex;
  std::optional<ManifestParent> restored CAIRN_GUARDED_BY(restored_mutex);  // What this rank's tensors are.
  Mutex device_mutex;
  Mutex fence_mutex;
  std::map<Device*, EventId> fence_events CAIRN_GUARDED_BY(fence_mutex);

  [[nodiscard]] Status CheckUsable(bool writes) const;
  /// For calls that read by the path.
  [[nodiscard]] Status CheckReadable(const Which& which) const;
  [[nodiscard]] Status OpenRoot();
  [[nodiscard]] Status StartEngine(const Wiring& wiring);
  [[nodiscard]] RestoreParts Parts();
  [[nodiscard]] Result<Restored> Restore(const Which& which, const State& state, const RestoreOptions& restore_options);
  [[nodiscard]] PathParts Paths() const { return {queue_factory, *root, ledger.get(), options.on_event}; }
  Result<std::unique_ptr<IoQueue>> MakeQueue() const { return queue_factory(); }
  Result<std::shared_ptr<Device>> GetDevice(DeviceId id) CAIRN_EXCLUDES(device_mutex);

  Result<SaveHandle> Save(std::uint64_t step, const State& state, const SaveOptions& save_options)
      CAIRN_EXCLUDES(save_mutex);
  std::shared_ptr<SaveTask> GiveUp(std::uint64_t step, std::uint64_t sequence, SaveTask::Clock::time_point begun,
                                   const Status& why) CAIRN_REQUIRES(save_mutex);
  Status CheckTensors(const std::shared_ptr<const TensorTable>& table) CAIRN_REQUIRES(save_mutex);
  Result<SavePlan> Accept(std::uint64_t step, IfExists if_exists, Status& given_up) CAIRN_REQUIRES(save_mutex)
      CAIRN_EXCLUDES(restored_mutex);
  Status TakePlace(std::uint64_t step, Deadline deadline, Status& given_up) CAIRN_REQUIRES(save_mutex);
  Result<std::vector<DeviceEvents>> RecordStreams(const TensorTable& table, const std::vector<Stream>& streams);
  Status RefuseWhileCapturing(Stream stream) CAIRN_EXCLUDES(fence_mutex);
};

Status Checkpointer::Impl::CheckUsable(bool writes) const {
  if (::getpid() != process) {
    return Error(StatusCode::kFailedPrecondition, "this is a forked child: the Checkpointer of {} is its parent's",
                 root_path);
  }
  if (writes && options.read_only) {
    return Error(StatusCode::kFailedPrecondition, "the Checkpointer of {} was opened read-only", root_path);
  }
  return Status::Ok();
}

Status Checkpointer::Impl::CheckReadable(const Which& which) const {
  CAIRN_RETURN_IF_ERROR(CheckUsable(false));
  return which.folder().empty() ? root->CheckPath() : Status::Ok();
}

// Open

Status Checkpointer::Impl::OpenRoot() {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, MakeQueue());
  CAIRN_ASSIGN_OR_RETURN(root, OpenSharedRoot(*queue, options, *group));
  root_path = root->path();
  for (const std::string& note : root->notes()) {
    if (options.on_event) options.on_event({.severity = Severity::kWarning, .message = note});
  }
  if (group->rank() != 0) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> committed, ListInfos(root->at()));
  ledger = std::make_unique<Ledger>(std::move(committed), options.keep_last, options.keep_every);
  return Status::Ok();
}

Status Checkpointer::Impl::StartEngine(const Wiring& wiring) {
  CAIRN_ASSIGN_OR_RETURN(pool, BufferPool::Make(options.host_memory_bytes, options.chunk_bytes, options.queue_depth));
  std::vector<std::shared_ptr<Device>> given;
  if (wiring.devices) {
    CAIRN_ASSIGN_OR_RETURN(given, wiring.devices(workers));
  }
  const bool has_cpu =
      std::any_of(given.begin(), given.end(), [](const auto& device) { return device->id() == DeviceId{}; });
  if (!has_cpu) given.push_back(HostDevice::Make({.id = {}, .lanes = options.worker_threads}, workers));
  devices = std::make_unique<Devices>(options, *pool, workers, given);

  EngineParts parts;
  for (const auto& device : given) {
    CAIRN_ASSIGN_OR_RETURN(const Devices::Found found, devices->Get(device->id()));
    parts.devices.push_back(found.device);
    if (found.staging != nullptr) parts.staging.emplace_back(device.get(), found.staging, options.staging_bytes);
  }
  parts.touch_pool = true;
  if (options.read_only) return Status::Ok();
  parts.options = options;
  parts.root = root->at();
  parts.still_writer = [this] { return root->CheckWriter(); };
  parts.pool = pool.get();
  parts.workers = &workers;
  parts.ledger = ledger.get();
  parts.trace = &trace;
  parts.queue = queue_factory;
  parts.group = group;
  CAIRN_ASSIGN_OR_RETURN(engine, Engine::Start(std::move(parts)));
  for (const int index : options.cuda_devices) {
    CAIRN_RETURN_IF_ERROR(GetDevice({DeviceKind::kCuda, index}).status());
  }
  return Status::Ok();
}

Result<std::unique_ptr<Checkpointer>> Checkpointer::Open(const Options& options) { return Open(options, Wiring()); }

Result<std::unique_ptr<Checkpointer>> Checkpointer::Open(const Options& options, Wiring wiring) {
  Result<std::unique_ptr<Checkpointer>> opened = Make(options, wiring);
  AnnounceOpened(options, opened.ok() ? opened->get()->impl_->root->writer_id() : std::string(), opened.status());
  return opened;
}

Result<std::unique_ptr<Checkpointer>> Checkpointer::Make(const Options& options, const Wiring& wiring) {
  CAIRN_ASSIGN_OR_RETURN(Options resolved, ResolveOptions(options));
  auto impl = std::make_unique<Impl>(std::move(resolved));
  CAIRN_RETURN_IF_ERROR(impl->workers.status());
  CAIRN_ASSIGN_OR_RETURN(IoQueueChoice choice, ChooseIoQueue(impl->options.io_queue, impl->options.queue_depth));
  impl->queue_name = choice.name;
  impl->queue_reason = choice.reason;
  impl->queue_factory = wiring.wrap_queue ? wiring.wrap_queue(choice.factory) : choice.factory;
  impl->group = impl->options.group != nullptr ? impl->options.group : std::make_shared<SoloGroup>();
  if (impl->options.steering) {
    CAIRN_ASSIGN_OR_RETURN(impl->steered, SteeredSaves::Make(*impl->options.steering, impl->group->size(), wiring.now));
  }
  CAIRN_RETURN_IF_ERROR(impl->OpenRoot());
  CAIRN_RETURN_IF_ERROR(impl->StartEngine(wiring));
  return std::unique_ptr<Checkpointer>(new Checkpointer(std::move(impl)));
}

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Checkpointer::~Checkpointer() {
  if (::getpid() != impl_->process) {
    // The threads, the ring and the lock are the parent's; nothing here may be waited for or released.
    static_cast<void>(impl_.release());
    return;
  }
  if (impl_->engine == nullptr) return;
  static_cast<void>(impl_->engine->WaitIdle(Deadline::In(impl_->options.drain_deadline)));
  // The engine's thread, the kernel and the devices go on using what is in there.
  if (!impl_->engine->Stop(Deadline::In(impl_->options.close_deadline))) static_cast<void>(impl_.release());
}

Result<std::shared_ptr<Device>> Checkpointer::Impl::GetDevice(DeviceId id) {
  // Whoever finds a device set up must find it with the engine too.
  MutexLock lock(device_mutex);
  CAIRN_ASSIGN_OR_RETURN(Devices::Found found, devices->Get(id));
  if (found.fresh && engine != nullptr) engine->AddDevice(found.device, found.staging);
  return found.device;
}

// Save

Result<SaveHandle> Checkpointer::Save(std::uint64_t step, const State& state, const SaveOptions& options) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  return impl_->Save(step, state, options);
}

Result<bool> Checkpointer::ShouldSave(std::uint64_t step) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  if (impl_->steered != nullptr) return impl_->steered->ShouldSave(step);
  return Error(StatusCode::kFailedPrecondition, "ShouldSave of step {}: Options::steering is not set", step);
}

Result<SaveHandle> Checkpointer::GiveUp(std::uint64_t step, const Status& why) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  if (why.ok() || why.code() == StatusCode::kUnknownOutcome) {
    return Error(StatusCode::kInvalidArgument, "GiveUp of step {}: expected why it fails, found {}", step,
                 why.ok() ? "Ok" : "UnknownOutcome");
  }
  MutexLock lock(impl_->save_mutex);
  return SaveHandle(impl_->GiveUp(step, impl_->next_sequence++, SaveTask::Clock::now(), why));
}

std::shared_ptr<SaveTask> Checkpointer::Impl::GiveUp(std::uint64_t step, std::uint64_t sequence,
                                                     SaveTask::Clock::time_point begun, const Status& why) {
  auto task = std::make_shared<SaveTask>(SavePlan{.step = step, .sequence = sequence}, nullptr,
                                         std::vector<DeviceEvents>(), begun, engine->inbox());
  engine->Submit(task, why);
  return task;
}

Result<SaveHandle> Checkpointer::Impl::Save(std::uint64_t step, const State& state, const SaveOptions& save_options) {
  const auto begun = SaveTask::Clock::now();
  MutexLock lock(save_mutex);
  const std::uint64_t sequence = next_sequence++;
  Status given_up;  // A save that other ranks count on, and that this one will not make.
  const auto refuse = [&](const Status& why) CAIRN_REQUIRES(save_mutex) {
    if (group->size() > 1) GiveUp(step, sequence, begun, why);
    return why;
  };

  const std::shared_ptr<const TensorTable>& table = state.table();
  if (const Status status = CheckTensors(table); !status.ok()) return refuse(status);
  if (!sharing) sharing.emplace(group->rank(), group->size());
  const Result<Share> share = sharing->Of(table, save_options.replicated);
  if (!share.ok()) return refuse(share.status());
  const auto waiting = SaveTask::Clock::now();
  Result<SavePlan> plan = Accept(step, save_options.if_exists, given_up);
  const auto stall = SaveTask::Clock::now() - waiting;
  if (!plan.ok()) return refuse(plan.status());
  if (!given_up.ok()) return SaveHandle(GiveUp(step, sequence, begun, given_up));
  plan->sequence = sequence;
  plan->hold = save_options.hold;
  plan->alike = share->alike;
  // Where other ranks write all that is on a device, what its streams do is nothing to this save.
  std::vector<Stream> streams;
  for (const Stream& stream : save_options.streams) {
    const auto among = [&stream](const std::vector<DeviceId>& used) {
      return std::find(used.begin(), used.end(), stream.device) != used.end();
    };
    if (among(share->table->devices()) || !among(table->devices())) streams.push_back(stream);
  }
  Result<std::vector<DeviceEvents>> events = RecordStreams(*share->table, streams);
  if (!events.ok()) {
    if (plan->admitted) ledger->Withdraw(*plan);
    return refuse(events.status());
  }
  auto task = std::make_shared<SaveTask>(*plan, std::make_unique<Snapshot>(share->table, state.values()),
                                         *std::move(events), begun, engine->inbox());
  task->SetCallTimes(SaveTask::Clock::now() - begun, stall);
  engine->Submit(task);
  if (steered != nullptr) steered->Begun(task);
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

Result<SavePlan> Checkpointer::Impl::Accept(std::uint64_t step, IfExists if_exists, Status& given_up) {
  const Deadline deadline = Deadline::In(options.full_deadline);
  CAIRN_RETURN_IF_ERROR(TakePlace(step, deadline, given_up));
  if (!given_up.ok()) return SavePlan{};
  if (ledger != nullptr) return ledger->Admit(step, if_exists, deadline);
  MutexLock lock(restored_mutex);
  return SavePlan{.step = step, .parent = restored};
}

Status Checkpointer::Impl::TakePlace(std::uint64_t step, Deadline deadline, Status& given_up) {
  if (engine->WaitForPlace(options.max_in_flight, Deadline::In({}))) return Status::Ok();
  int places = options.max_in_flight;
  if (group->rank() != 0) {
    // The coordinator decides. What it skips must hold nobody up: there is a place for a save whose refusal is on its
    // way.
    if (options.when_full == WhenFull::kSkip) ++places;
  } else if (options.when_full == WhenFull::kSkip) {
    given_up = Error(StatusCode::kCancelled, "step {}: skipped, {} saves are in flight", step, options.max_in_flight);
    return Status::Ok();
  } else if (options.when_full == WhenFull::kReplace) {
    const std::vector<std::shared_ptr<SaveTask>> tasks = engine->InFlight();
    const auto youngest =
        std::find_if(tasks.rbegin(), tasks.rend(), [](const auto& task) { return !task->captured(); });
    if (youngest != tasks.rend()) {
      static_cast<void>((*youngest)->RequestCancel(
          Error(StatusCode::kCancelled, "step {}: replaced by step {}", (*youngest)->plan().step, step)));
    }
  }
  if (engine->WaitForPlace(places, deadline)) return Status::Ok();
  return Error(StatusCode::kDeadlineExceeded,
               "step {}: {} saves were in flight until the deadline of Options::full_deadline", step,
               options.max_in_flight);
}

Result<std::vector<DeviceEvents>> Checkpointer::Impl::RecordStreams(const TensorTable& table,
                                                                    const std::vector<Stream>& streams) {
  std::vector<DeviceEvents> all;
  for (const Stream& stream : streams) {
    const std::vector<DeviceId>& used = table.devices();
    if (std::find(used.begin(), used.end(), stream.device) != used.end()) continue;
    return Error(StatusCode::kInvalidArgument,
                 "a stream of {}, where no tensor of the state is: what it does to others' memory it cannot order",
                 ToString(stream.device));
  }
  const auto record = [&]() -> Status {
    for (const DeviceId id : table.devices()) {
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

// Fence, Drain

Status Checkpointer::Fence(Stream stream, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(false));
  if (impl_->engine == nullptr) return Status::Ok();
  if (stream.device.kind != DeviceKind::kCpu) CAIRN_RETURN_IF_ERROR(impl_->RefuseWhileCapturing(stream));
  for (const std::shared_ptr<SaveTask>& task : impl_->engine->InFlight()) {
    CAIRN_RETURN_IF_ERROR(task->Fence(stream, deadline));
  }
  return Status::Ok();
}

Status Checkpointer::Impl::RefuseWhileCapturing(Stream stream) {
  // A fence that is captured while nothing is in flight would order nothing at replay: recording says so at once.
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, GetDevice(stream.device));
  if (!device->has_streams()) return Status::Ok();
  MutexLock lock(fence_mutex);
  EventId& event = fence_events[device.get()];
  if (event == 0) {
    CAIRN_ASSIGN_OR_RETURN(event, device->AcquireEvent());
  }
  return device->RecordOnStream(stream, event);
}

Status Checkpointer::WaitForPlace(Deadline deadline) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  if (impl_->engine->WaitForPlace(impl_->options.max_in_flight, deadline)) return Status::Ok();
  return Error(StatusCode::kDeadlineExceeded, "{} saves are in flight", impl_->options.max_in_flight);
}

Status Checkpointer::Drain(Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(false));
  if (impl_->engine == nullptr) return Status::Ok();
  const std::vector<std::shared_ptr<SaveTask>> tasks = impl_->engine->InFlight();
  if (!impl_->engine->WaitIdle(deadline)) {
    return Error(StatusCode::kDeadlineExceeded, "{} saves are still in flight", impl_->engine->InFlight().size());
  }
  // Their places are free, and so their ends are told any moment.
  for (const std::shared_ptr<SaveTask>& task : tasks) CAIRN_RETURN_IF_ERROR(task->WaitDurable(deadline));
  return Status::Ok();
}

// Restore and the rest

RestoreParts Checkpointer::Impl::Parts() {
  return {.queue = queue_factory,
          .pool = pool.get(),
          .workers = &workers,
          .device = [this](DeviceId id) -> Result<Device*> {
            CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, GetDevice(id));
            return device.get();
          },
          .queue_depth = options.queue_depth,
          .memory_deadline = options.full_deadline,
          .on_event = options.on_event,
          .on_damaged =
              [this](const CheckpointInfo& info) {
                if (ledger != nullptr) ledger->FoundDamaged(info.step, info.attempt);
              }};
}

Result<Restored> Checkpointer::Impl::Restore(const Which& which, const State& state,
                                             const RestoreOptions& restore_options) {
  const RestoreParts parts = Parts();
  if (which.fall_back() && group->size() > 1) {
    // Not read at once: the others are to hear of it.
    return RestoreTogether({.parts = parts,
                            .root = root_path,
                            .which = which,
                            .state = state,
                            .options = restore_options,
                            .group = *group,
                            .group_deadline = options.group_deadline,
                            .number = shared_restores++,
                            .readable = CheckReadable(which)});
  }
  CAIRN_RETURN_IF_ERROR(CheckReadable(which));
  return RestoreWhich(parts, root_path, which, group->rank(), state, restore_options);
}

Result<Restored> Checkpointer::Restore(const Which& which, const State& state, const RestoreOptions& options) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(false));
  CAIRN_ASSIGN_OR_RETURN(Restored restored, impl_->Restore(which, state, options));
  if (!options.resume) return restored;
  if (impl_->ledger != nullptr) impl_->ledger->Restored(restored.step, restored.generation, restored.attempt);
  MutexLock lock(impl_->restored_mutex);
  impl_->restored = ManifestParent{restored.step, restored.attempt};
  return restored;
}

Result<std::vector<CheckpointInfo>> Checkpointer::List() const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(Latest()));
  return ListInfos(impl_->root_path);
}

Result<CheckpointDetails> Checkpointer::Inspect(const Which& which) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(which));
  return InspectWhich(impl_->root_path, which);
}

Result<CheckpointDetails> Checkpointer::Inspect(const Which& which, const InspectPart& part) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(which));
  return InspectWhich(impl_->Parts(), impl_->root_path, which, part);
}

Result<Chosen> Checkpointer::Choose(const Which& which) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(which));
  return ChooseWhich(impl_->Parts(), impl_->root_path, which);
}

Status Checkpointer::Verify(const Which& which, const Progress& progress) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(which));
  return VerifyWhich(impl_->Parts(), impl_->root_path, which, progress);
}

Status Checkpointer::Pin(std::uint64_t step) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, impl_->MakeQueue());
  CAIRN_RETURN_IF_ERROR(SetPin(*queue, impl_->root->at(), step, true, impl_->options.file_mode));
  if (impl_->ledger != nullptr) impl_->ledger->SetPinned(step, true);
  return Status::Ok();
}

Status Checkpointer::Unpin(std::uint64_t step) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, impl_->MakeQueue());
  CAIRN_RETURN_IF_ERROR(SetPin(*queue, impl_->root->at(), step, false, impl_->options.file_mode));
  if (impl_->ledger != nullptr) impl_->ledger->SetPinned(step, false);
  return Status::Ok();
}

Status Checkpointer::Remove(std::uint64_t step) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  if (impl_->group->rank() != 0) {
    return Error(StatusCode::kFailedPrecondition, "step {}: only rank 0 removes checkpoints", step);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, impl_->MakeQueue());
  CAIRN_RETURN_IF_ERROR(impl_->ledger->BeginRemoval(step));
  Removal removal = RemoveCheckpointBlocking(
      *queue, impl_->root->at(), step,
      {.still_writer = [this] { return impl_->root->CheckWriter(); }, .pinned = Pinned::kGoes});
  removal.gone ? impl_->ledger->Removed(step) : impl_->ledger->KeepAfterAll(step);
  return std::move(removal.status);
}

Status Checkpointer::Publish(std::uint64_t step, const std::string& path, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  return PublishStep(impl_->Paths(), step, path, deadline);
}

Status Checkpointer::RemovePublished(const std::string& path, Deadline deadline) {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(true));
  return RemovePath(impl_->Paths(), path, deadline);
}

Status Checkpointer::LastFailure() const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(false));
  return impl_->engine == nullptr ? Status::Ok() : impl_->engine->last_failure();
}

CheckpointerStats Checkpointer::stats() const {
  CheckpointerStats stats;
  if (!impl_->CheckUsable(false).ok()) return stats;
  stats.io_queue = impl_->queue_name;
  stats.io_queue_reason = impl_->queue_reason;
  stats.pool_bytes = impl_->pool->total_bytes();
  stats.pool_hugepage_bytes = impl_->pool->HugepageBytes();
  stats.pool_peak_bytes = impl_->pool->peak_bytes();
  stats.chunk_bytes = impl_->pool->chunk_bytes();
  if (impl_->engine != nullptr) impl_->engine->AddStats(stats);
  if (impl_->steered != nullptr) impl_->steered->AddStats(stats);
  return stats;
}

Status Checkpointer::WriteTrace(const std::string& path) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckUsable(false));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << impl_->trace.ToJson();
  file.close();
  return file ? Status::Ok() : Error(StatusCode::kIoError, "{}: the trace could not be written", path);
}

}  // namespace cairn
