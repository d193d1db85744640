// The calls that change nothing under the root.
#include <algorithm>
#include <fstream>

#include "api/checkpointer_impl.h"
#include "api/memory_root.h"
#include "api/shared_restore.h"
#include "base/status_macros.h"
#include "engine/engine.h"
#include "engine/ledger.h"
#include "group/solo_group.h"
#include "io/disk_watch.h"
#include "store/list.h"
#include "store/memory_folder.h"
#include "store/mirrors.h"

namespace cairn {

Status Checkpointer::Impl::CheckReadable(const Selector& selector) const {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  return selector.folder().empty() ? root->CheckPath() : Status::Ok();
}

MemoryPlace Checkpointer::Impl::memory_place() const {
  if (memory != nullptr) return memory->place();
  if (!options.read_only || options.memory_root.empty()) return {};
  const Result<std::optional<WriterRecord>> record = ReadWriter(root->at());
  if (!record.ok() || !*record || (*record)->root.empty()) return {};
  const Result<std::string> folder = FindMemoryFolder(options.memory_root, (*record)->root);
  if (folder.status().code() == StatusCode::kFailedPrecondition && !memory_ignored.exchange(true)) {
    options.on_event({.severity = Severity::kWarning,
                      .status = folder.status(),
                      .message = "what is kept there is not read, which may be newer than what the disk has: " +
                                 folder.status().message(),
                      .phase = "open",
                      .path = options.memory_root});
  }
  return FindMemoryPlace(options.memory_root, **record);
}

RestoreParts Checkpointer::Impl::MakeRestoreParts() {
  return {.queue = Reporting(make_queue, options.on_event),
          .pool = pool.get(),
          .workers = &workers,
          .device = [this](DeviceId id) -> Result<Device*> {
            CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, GetDevice(id));
            return device.get();
          },
          .queue_depth = options.queue_depth,
          .memory_timeout = options.full_timeout,
          .on_event = options.on_event,
          .on_damaged =
              [this](const CheckpointInfo& info) {
                // The disk's copy of it is another.
                const bool in_memory = memory != nullptr && info.path.starts_with(memory->place().path + "/");
                if (in_memory) return memory->FoundDamaged(info);
                if (ledger != nullptr) ledger->FoundDamaged(info.step, info.attempt);
              },
          .world = group->size(),
          .ranks_of_node = ranks_of_node,
          .memory = memory_place(),
          .kept = &kept_header};
}

Result<Restored> Checkpointer::Impl::Restore(const Selector& selector, const RestoreCall& call) {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  const Status readable = CheckReadable(selector);
  RestoreCall noted = call;
  noted.plan = [&](const CheckpointInfo& chosen) {
    Result<ReadPlan> plan = call.plan(chosen);
    if (plan.ok() && engine != nullptr) engine->ForgetKept(plan->state.table());
    return plan;
  };
  const RestoreParts parts = MakeRestoreParts();
  SoloGroup solo;
  std::atomic<std::uint64_t> own_round = 0;  // The group's are counted alike on every rank.
  Result<Restored> now = RestoreTogether({.parts = parts,
                                          .root = root_path,
                                          .selector = selector,
                                          .call = noted,
                                          .group = call.alone ? solo : *group,
                                          .rank = group->rank(),
                                          .group_timeout = options.group_timeout,
                                          .next_round = call.alone ? own_round : restore_rounds,
                                          .readable = readable.ok() ? call.ready : readable});
  if (now.ok() && call.resume) ContinueFrom(*now);
  return now;
}

Result<Chosen> Checkpointer::Impl::Choose(const Selector& selector, bool inspect) {
  CAIRN_RETURN_IF_ERROR(CheckReadable(selector));
  return ChooseSelected(MakeRestoreParts(), root_path, selector, inspect);
}

Result<CheckpointDetails> Checkpointer::Impl::Inspect(const Selector& selector, const InspectPart& part) {
  CAIRN_RETURN_IF_ERROR(CheckReadable(selector));
  return InspectSelected(MakeRestoreParts(), root_path, selector, part);
}

void Checkpointer::Impl::ContinueFrom(const Restored& now) {
  // Of several ranks, each saves only its share of what is replicated. What is kept in memory needs no pool.
  if (!Keeps() && growth != nullptr && group->size() == 1) growth->FitTo(now.bytes, Severity::kInfo);
  if (ledger != nullptr) ledger->Restored(now.step, now.line, now.attempt);
  MutexLock lock(restored_mutex);
  restored = ManifestParent{now.step, now.attempt};
}

Result<Restored> Checkpointer::Restore(const Selector& selector, const State& state, const RestoreOptions& options) {
  const auto plan = [&](const CheckpointInfo& /*chosen*/) { return ReadPlan{.state = state, .options = options}; };
  Result<Restored> restored = impl_->Restore(selector, {.plan = plan, .resume = options.resume});
  impl_->CountRestore(restored.ok());
  return restored;
}

Result<std::vector<CheckpointInfo>> Checkpointer::List() const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(Latest()));
  CAIRN_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> list, ListInfos(impl_->root_path, impl_->memory_place()));
  for (const MirrorRecord& mirror : ListMirrors(impl_->root_path)) {
    for (const MirroredCheckpoint& copy : mirror.checkpoints) {
      const auto found = std::ranges::find(list, copy.attempt, &CheckpointInfo::attempt);
      if (found != list.end()) found->mirrors.push_back(mirror.target);
    }
  }
  return list;
}

Status Checkpointer::Impl::WaitMirrored(std::uint64_t step, const std::string& target, Deadline deadline) const {
  CAIRN_RETURN_IF_ERROR(CheckRank0(fmt::format("step {}", step), "waits for mirrors"));
  if (mirrors == nullptr) return Error(StatusCode::kInvalidArgument, "{} has no mirror {}", root_path, target);
  const std::vector<CheckpointInfo> committed = ledger->NewestFirst();
  const auto found = std::ranges::find(committed, step, &CheckpointInfo::step);
  const std::optional<CheckpointInfo> wanted =
      found == committed.end() ? mirrors->FindCommitted(step) : std::optional(*found);
  if (!wanted) return Error(StatusCode::kNotFound, "{} has no step {}", root_path, step);
  return mirrors->Wait(target, *wanted, deadline);
}

Status Checkpointer::WaitMirrored(std::uint64_t step, const std::string& target, Deadline deadline) const {
  return impl_->WaitMirrored(step, target, deadline);
}

Result<CheckpointDetails> Checkpointer::Inspect(const Selector& selector) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(selector));
  return InspectSelected(impl_->root_path, selector, impl_->memory_place());
}

Status Checkpointer::Verify(const Selector& selector, const Progress& progress) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckReadable(selector));
  return VerifySelected(impl_->MakeRestoreParts(), impl_->root_path, selector, progress);
}

Status Checkpointer::LastFailure() const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckProcess());
  if (impl_->engine == nullptr) return Status::Ok();
  Status newest = impl_->engine->NewestFailure();
  return newest.ok() && impl_->memory != nullptr ? impl_->memory->engine().NewestFailure() : newest;
}

Status Checkpointer::CheckFailures() const {
  const int most = impl_->options.stop_after_failures;
  if (most == 0) return LastFailure();
  CAIRN_RETURN_IF_ERROR(impl_->CheckProcess());
  if (impl_->engine == nullptr) return Status::Ok();
  Status failure = impl_->engine->FailureAfter(static_cast<std::uint64_t>(most));
  if (!failure.ok() || impl_->memory == nullptr) return failure;
  return impl_->memory->engine().FailureAfter(static_cast<std::uint64_t>(most));
}

CheckpointerStats Checkpointer::stats() const {
  CheckpointerStats stats;
  if (!impl_->CheckProcess().ok()) return stats;
  stats.io_queue = impl_->queue_name;
  stats.io_queue_reason = impl_->queue_reason;
  stats.pool_bytes = impl_->pool->total_bytes();
  stats.ranks_of_node = impl_->ranks_of_node;
  stats.pool_limit_bytes = impl_->pool->cap_bytes();
  stats.pool_hugepage_bytes = impl_->pool->HugepageBytes();
  stats.pool_peak_bytes = impl_->pool->peak_bytes();
  stats.chunk_bytes = impl_->pool->chunk_bytes();
  impl_->AddCounters(stats);
  if (impl_->steered != nullptr) impl_->steered->AddStats(stats);
  impl_->AddMetrics(stats);
  return stats;
}

Status Checkpointer::WriteTrace(const std::string& path) const {
  CAIRN_RETURN_IF_ERROR(impl_->CheckProcess());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << impl_->trace.ToJson();
  file.close();
  return file ? Status::Ok() : Error(StatusCode::kIoError, "{}: the trace could not be written", path);
}

}  // namespace cairn
