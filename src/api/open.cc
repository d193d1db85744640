#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "api/checkpointer_impl.h"
#include "api/memory_ranks.h"
#include "api/memory_root.h"
#include "api/resolve_options.h"
#include "api/restore_from.h"
#include "api/shared_root.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "device/host_device.h"
#include "engine/engine.h"
#include "engine/ledger.h"
#include "group/solo_group.h"
#include "io/disk_watch.h"
#include "store/list.h"
#include "store/memory_folder.h"
#include "store/space.h"
#include "store/writer.h"

namespace cairn {

Checkpointer::Impl::Impl(Options resolved, bool pool_grows, std::uint64_t node_ranks, std::shared_ptr<Metrics> counted)
    : options(std::move(resolved)),
      grows(pool_grows),
      ranks_of_node(node_ranks),
      metrics(std::move(counted)),
      workers("cairn-worker", options.worker_threads),
      trace(options.trace_events) {}

Checkpointer::Impl::~Impl() = default;

Status Checkpointer::Impl::CheckProcess() const {
  if (::getpid() == process) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "this is a forked child: the Checkpointer of {} is its parent's",
               root_path);
}

Status Checkpointer::Impl::CheckWritable() const {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  if (!options.read_only) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "the Checkpointer of {} was opened read-only", root_path);
}

void Checkpointer::Impl::ReportNodeRanks(const NodeRanks& node) const {
  if (group->size() == 1 && node.source.empty()) return;
  Notify({.severity = node.guessed ? Severity::kWarning : Severity::kInfo,
          .message = fmt::format("ranks on this node: {}, known by {}. This one has a pool of at most {}, "
                                 "worker_threads={} and queue_depth={}",
                                 node.count, node.source, HumanBytes(options.host_memory_bytes), options.worker_threads,
                                 options.queue_depth),
          .phase = "open"});
}

Status Checkpointer::Impl::OpenRoot() {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, Reporting(make_queue, options.on_event)());
  CAIRN_ASSIGN_OR_RETURN(root, OpenSharedRoot(*queue, options, *group, memory_said));
  root_path = root->path();
  Warn(root->notes(), "open");
  root_id = root->id();
  if (root_id.empty()) {
    const Result<std::optional<WriterRecord>> record = ReadWriter(root->at());
    if (record.ok() && *record) root_id = (*record)->root;
  }
  const Result<std::optional<std::uint64_t>> free = FindFreeSpace(root->at());
  if (free.ok() && *free) metrics->disk_free = static_cast<std::int64_t>(**free);
  if (group->rank() != 0) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored, ListCheckpoints(root->at()));
  std::vector<CheckpointInfo> committed;
  Ledger::Times committed_at;
  for (StoredCheckpoint& one : stored) {
    if (one.committed_at) committed_at.emplace(one.info.step, *one.committed_at);
    committed.push_back(std::move(one.info));
  }
  ledger = std::make_unique<Ledger>(std::move(committed), options.keep_last, options.keep_every, root->line(),
                                    std::move(committed_at));
  return Status::Ok();
}

Status Checkpointer::Impl::MakePool() {
  const std::uint64_t limit = options.host_memory_bytes;
  // A restore uses twice as many as it reads. With a root in memory that is seldom from the disk: as many as are
  // written, and one that each worker fills.
  const int chunks = options.queue_depth + (options.memory_root.empty() ? options.queue_depth : options.worker_threads);
  const std::uint64_t first = static_cast<std::uint64_t>(chunks) * options.chunk_bytes;
  const std::uint64_t begin = grows ? std::min(first, limit) : limit;
  const std::uint64_t reserved = options.read_only ? begin : limit;
  Result<std::unique_ptr<BufferPool>> made =
      BufferPool::MakeGrowing(begin, reserved, options.chunk_bytes, options.queue_depth);
  // A limit of the address space (ulimit -v) leaves no room to grow into.
  if (!made.ok() && reserved > begin) made = BufferPool::Make(begin, options.chunk_bytes, options.queue_depth);
  CAIRN_ASSIGN_OR_RETURN(pool, std::move(made));
  return Status::Ok();
}

Status Checkpointer::Impl::StartEngine(const Wiring& wiring) {
  CAIRN_RETURN_IF_ERROR(MakePool());
  std::vector<std::shared_ptr<Device>> given;
  if (wiring.devices) {
    CAIRN_ASSIGN_OR_RETURN(given, wiring.devices(workers));
  }
  const bool has_cpu =
      std::any_of(given.begin(), given.end(), [](const auto& device) { return device->id() == DeviceId{}; });
  if (!has_cpu) given.push_back(HostDevice::Make({.id = {}, .lanes = options.worker_threads}, workers));
  devices = std::make_unique<Devices>(options, *pool, workers, wiring, given);

  std::vector<DeviceId> ids;
  for (const auto& device : given) ids.push_back(device->id());
  if (!options.read_only) {
    for (const int index : options.cuda_devices) ids.push_back({DeviceKind::kCuda, index});
  }
  EngineParts parts;
  for (const DeviceId id : ids) {
    CAIRN_ASSIGN_OR_RETURN(const Devices::Found found, devices->Get(id));
    if (!found.fresh) continue;
    parts.devices.push_back(found.device);
    WarnWithoutGpuChecksums(*found.device);
    if (found.staging != nullptr) {
      parts.staging.emplace_back(found.device.get(), found.staging, options.staging_bytes, options.chunk_bytes);
    }
  }
  parts.touch_pool = true;
  if (options.read_only) return Status::Ok();
  parts.options = options;
  parts.root = root->at();
  if (ledger != nullptr) {
    parts.root_id = root->id();
    parts.memory = FindMemoryPlace(options.memory_root, root->record());
    parts.write_line = [this](std::uint64_t line) { return root->WriteLine(line); };
  }
  parts.check_writer = check_writer;
  parts.pool = pool.get();
  parts.workers = &workers;
  parts.ledger = ledger.get();
  parts.trace = &trace;
  parts.metrics = metrics.get();
  parts.on_ended = [this] { SaveEnded(); };
  parts.on_gone = [this](const std::shared_ptr<SaveTask>& task, const Status& outcome, const std::string& /*attempt*/) {
    if (memory != nullptr) memory->drains().OnGone(task, outcome);
  };
  parts.on_answers = [this] {
    if (memory != nullptr) memory->drains().OnAnswers();
  };
  parts.queue = make_queue;
  parts.group = group;
  parts.frozen_every = wiring.frozen_every.value_or(kFrozenEvery);
  CAIRN_ASSIGN_OR_RETURN(engine, Engine::Start(std::move(parts)));
  if (grows) {
    CAIRN_ASSIGN_OR_RETURN(growth, PoolGrowth::Start(*pool, workers, ranks_of_node, options.on_event));
  }
  return Status::Ok();
}

Status Checkpointer::Impl::OpenMemory(const Wiring& wiring) {
  MemoryOfRank0 of_rank0;
  if (group->rank() != 0 && !options.read_only) {
    CAIRN_ASSIGN_OR_RETURN(of_rank0, CheckMemoryOfRank0(options, group->rank(), memory_said));
    if (of_rank0.writer_id.empty()) return Status::Ok();
  }
  if (options.memory_root.empty() || options.read_only) return Status::Ok();
  // Nothing there waits for a disk, and no ring is needed for it.
  CAIRN_ASSIGN_OR_RETURN(IoQueueChoice queue, ChooseIoQueue(IoQueueKind::kThreads, options.queue_depth));
  CAIRN_ASSIGN_OR_RETURN(
      memory,
      MemoryRoot::Open({.options = options,
                        .root = root.get(),
                        .id = root_id,
                        .of_rank0 = of_rank0,
                        .ledger = ledger.get(),
                        .engine = engine.get(),
                        .pool = pool.get(),
                        .workers = &workers,
                        .trace = &trace,
                        .metrics = metrics.get(),
                        .devices = devices->Ready(),
                        .group = group,
                        .queue = wiring.wrap_memory_queue ? wiring.wrap_memory_queue(queue.factory) : queue.factory}));
  return Status::Ok();
}

Status Checkpointer::Impl::StartMirrors(const std::string& command, const Wiring& wiring) {
  if (command.empty()) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(mirrors, Mirrors::Start({.command = command,
                                                  .root = std::filesystem::absolute(root_path).string(),
                                                  .specs = options.mirrors,
                                                  .timeout = options.mirror_timeout,
                                                  .patience = wiring.mirror_patience,
                                                  .on_event = options.on_event}));
  return Status::Ok();
}

void Checkpointer::Impl::SaveEnded() {
  if (metrics_file != nullptr) metrics_file->Update();
  if (mirrors == nullptr) return;
  const std::vector<CheckpointInfo> committed = ledger->NewestFirst();
  if (!committed.empty()) mirrors->Committed(committed.front());
}

Status Checkpointer::Impl::CheckWriter() {
  CAIRN_RETURN_IF_ERROR(root->CheckWriter());
  const Status moved = root->CheckPath();
  if (moved.ok() || root_moved.exchange(true)) return Status::Ok();
  Notify({.severity = Severity::kWarning,
          .status = moved,
          .message = fmt::format("{}. Its saves follow it; nothing is written under the path. To save there, close the "
                                 "checkpointer and open it again",
                                 moved.message()),
          .phase = "save"});
  return Status::Ok();
}

Result<std::unique_ptr<Checkpointer>> Checkpointer::Open(const Options& options) { return Open(options, Wiring()); }

Result<std::unique_ptr<Checkpointer>> Checkpointer::Open(const Options& options, Wiring wiring) {
  std::uint64_t announced = 0;
  std::string memory_said;
  Result<std::unique_ptr<Checkpointer>> opened = Make(options, wiring, announced, memory_said);
  AnnounceOpened(options, announced, opened.ok() ? opened->get()->impl_->root->writer_id() : std::string(), memory_said,
                 opened.status());
  const Status together = MeetInMemory(options, memory_said, opened.status());
  if (opened.ok() && !together.ok()) return together;
  // Last: from now on both engines use it.
  if (opened.ok() && opened->get()->impl_->memory != nullptr) opened->get()->impl_->memory->DrainFound();
  return opened;
}

Result<std::unique_ptr<Checkpointer>> Checkpointer::Make(const Options& options, const Wiring& wiring,
                                                         std::uint64_t& announced, std::string& memory_said) {
  const std::shared_ptr<Group> group = options.group != nullptr ? options.group : std::make_shared<SoloGroup>();
  const bool depends = DependOnNodeRanks(options);
  const NodeRanks node =
      wiring.node ? *wiring.node : FindNodeRanks(*group, depends, Deadline::In(options.group_timeout)).get();
  CAIRN_ASSIGN_OR_RETURN(Options resolved, ResolveOptions(options, node.count));
  std::string command;
  if (!resolved.mirrors.empty() && group->rank() == 0 && !options.read_only) {
    CAIRN_ASSIGN_OR_RETURN(command, FindCommand(options.mirror_command));
  }
  std::string metrics_path;
  if (!options.metrics_file.empty()) {
    CAIRN_ASSIGN_OR_RETURN(metrics_path, MetricsFileOf(options.metrics_file, group->rank(), group->size()));
  }
  const auto metrics = std::make_shared<Metrics>();
  resolved.on_event = CountedEvents(options.on_event, metrics, group->rank(), options.root);
  const bool grows = options.host_memory_bytes == 0;
  auto impl = std::make_unique<Impl>(std::move(resolved), grows, node.count, metrics);
  CAIRN_RETURN_IF_ERROR(impl->workers.status());
  CAIRN_ASSIGN_OR_RETURN(IoQueueChoice choice, ChooseIoQueue(impl->options.io_queue, impl->options.queue_depth));
  impl->queue_name = choice.name;
  impl->queue_reason = choice.reason;
  impl->make_queue = wiring.wrap_queue ? wiring.wrap_queue(choice.factory) : choice.factory;
  impl->group = group;
  if (depends) impl->ReportNodeRanks(node);
  if (impl->options.steering) {
    impl->steered = SteeredSaves::Make(*impl->options.steering, wiring.now);
  }
  impl->blocking = std::make_unique<BlockingCalls>(impl->make_queue, impl->options.stall_timeout);
  if (group->rank() == 0 && !options.read_only) {
    CAIRN_RETURN_IF_ERROR(BringNewest(impl->options, [&] { AnnounceGoesOn(options, announced); }));
  }
  const Status found = impl->OpenRoot();
  memory_said = impl->memory_said;
  CAIRN_RETURN_IF_ERROR(found);
  CAIRN_RETURN_IF_ERROR(impl->StartEngine(wiring));
  CAIRN_RETURN_IF_ERROR(impl->OpenMemory(wiring));
  if (group->rank() == 0 && !options.memory_root.empty()) {
    const MemoryRoot* const memory = impl->memory.get();
    memory_said = SayMemory(memory == nullptr ? MemoryOfRank0()
                                              : MemoryOfRank0{.writer_id = memory->root().writer_id(),
                                                              .found_attempt = memory->found_attempt()});
  }
  if (!metrics_path.empty()) {
    CAIRN_ASSIGN_OR_RETURN(
        impl->metrics_file,
        MetricsFile::Start(
            std::move(metrics_path), [impl = impl.get()] { return impl->MetricsText(); }, impl->options.on_event));
  }
  CAIRN_RETURN_IF_ERROR(impl->StartMirrors(command, wiring));
  return std::unique_ptr<Checkpointer>(new Checkpointer(std::move(impl)));
}

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Checkpointer::~Checkpointer() {
  if (::getpid() != impl_->process) {
    // The threads, the ring and the lock are the parent's; nothing here may be waited for or released.
    static_cast<void>(impl_.release());
    return;
  }
  if (impl_->engine == nullptr) {
    const std::unique_ptr<MetricsFile>& file = impl_->metrics_file;
    if (file != nullptr && !file->End(Deadline::In(impl_->options.close_timeout))) static_cast<void>(impl_.release());
    return;
  }
  impl_->EndPauses();  // Nobody trains with it any more, and a pause that is left over must not lose the last saves.
  const auto end = Deadline::At(std::min(Deadline::In(impl_->options.close_timeout).when(), impl_->close_by.load()));
  static_cast<void>(impl_->WaitIdle(impl_->abandons_at_once ? Deadline::In({}) : Inside::AbandonsBefore(end)));
  if (impl_->mirrors != nullptr && !impl_->HasSaves()) impl_->mirrors->Tell();
  const bool grown = impl_->growth == nullptr || impl_->growth->End(end);
  MemoryRoot* const memory = impl_->memory.get();
  if (memory != nullptr) memory->drains().Stop();
  const bool kept = memory == nullptr || memory->engine().Stop(end);
  const bool stopped = impl_->engine->Stop(end);
  // Its disk is not the root's, and nothing is lost with it.
  const auto soon = Deadline::At(std::min(end.when(), Deadline::In(std::chrono::seconds(1)).when()));
  const bool removed = impl_->metrics_file == nullptr || impl_->metrics_file->End(soon);
  if (kept && memory != nullptr) memory->Close(/*removes=*/stopped);
  // Who abandons at once has waited for them. Left behind, they use nothing of this.
  const auto patience = impl_->abandons_at_once ? Deadline::In({}) : end;
  if (impl_->mirrors != nullptr && !impl_->mirrors->End(patience)) static_cast<void>(impl_->mirrors.release());
  if (stopped && kept && impl_->blocking->idle() && grown && removed) return;
  // Leaked if a thread does not stop: it, the kernel and the devices go on using it.
  impl_.release()->LeaveBehind();
}

void Checkpointer::Impl::LeaveBehind() {
  root->Leave();
  if (memory != nullptr) memory->root().Leave();
  const auto ended = [this, running = std::make_shared<std::atomic<int>>(memory == nullptr ? 2 : 3)] {
    if (running->fetch_sub(1) != 1) return;
    if (memory != nullptr) memory->root().ReleaseLock();
    root->ReleaseLock();
  };
  engine->AtEnd(ended);
  blocking->AtEnd(ended);
  if (memory != nullptr) memory->engine().AtEnd(ended);
}

}  // namespace cairn
