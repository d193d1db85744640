#include "engine/retention.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "io/io_task.h"
#include "store/commit.h"
#include "store/list.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
namespace {

IoTask<Status> ListTask(PathAt root, std::shared_ptr<std::vector<CheckpointInfo>> found) {
  co_return co_await io::OnThread(root.text(), [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(*found, ListInfos(root));
    return Status::Ok();
  });
}

/// Checks the shards of the newest checkpoints until `keep_last` are whole, and the others are that ChooseRetired
/// keeps. Returns the first damage found.
Status CheckNewest(Ledger& ledger, std::uint64_t keep_last) {
  Status first;
  std::uint64_t whole = 0;
  NonFinite best = NonFinite::kNaN;
  bool origin = false;
  for (const CheckpointInfo& info : ledger.NewestFirst()) {
    if (whole >= keep_last && info.nonfinite >= best && (origin || info.frozen != Frozen::kWritten)) continue;
    const Result<StoredCheckpoint> found = ReadCheckpointFolder(info.path);
    Status status = found.ok() ? CheckShardFiles(*found) : found.status();
    if (status.code() != StatusCode::kCorrupt) {
      ++whole;
      best = std::min(best, info.nonfinite);
      origin = origin || info.frozen == Frozen::kWritten;
      continue;
    }
    ledger.FoundDamaged(info.step, info.attempt);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

IoTask<Status> LookTask(PathAt root, Ledger& ledger, std::uint64_t keep_last) {
  co_return co_await io::OnThread(root.text(), [&] { return CheckNewest(ledger, keep_last); });
}

}  // namespace

void Retention::Warn(const Status& status) {
  context_.Notify(
      {.severity = Severity::kWarning, .status = status, .message = status.message(), .phase = "retention"});
}

std::string Retention::PathOf(std::uint64_t step) const { return JoinPath(context_.parts.root, StepName(step)).text(); }

SparePolicy Retention::Spares() const {
  const std::uint64_t most = context_.spare_folders();
  return {.folders = most - std::min(most, callbacks_.files_in_flight()),
          .shards = recycles() ? static_cast<std::uint64_t>(context_.parts.group->size()) : 0,
          .file_mode = context_.parts.options.file_mode,
          .not_recycled = context_.not_recycled,
          .mapped = context_.mapped_files()};
}

void Retention::BeginScan() {
  context_.scanning = true;
  callbacks_.on_busy(true);
}

void Retention::EndScan() {
  context_.scanning = false;
  if (relist_due_) return Relist();
  callbacks_.on_scanned();
  RemoveNext();
}

void Retention::Begin() {
  if (!leads()) return;
  BeginScan();
  Sweep(*context_.queue, context_.parts.root, Spares(), context_.parts.memory, [this](Swept swept) {
    for (const std::string& why : swept.left) {
      context_.Notify({.severity = Severity::kWarning, .message = why, .phase = "retention"});
    }
    unnamed_ = std::move(swept.unnamed);
    CheckKept();
  });
}

// Lists trust manifests. Before newer checkpoints justify removing older ones, their shards are checked.
void Retention::CheckKept() {
  const std::uint64_t keep_last = context_.parts.options.keep_last;
  if (keep_last == 0) return EndScan();
  RunTask(*context_.queue, LookTask(context_.parts.root, *context_.parts.ledger, keep_last),
          [this](const Status& status) {
            if (!status.ok()) Warn(status);
            EndScan();
          });
}

void Retention::Relist() {
  if (context_.scanning) return;  // Still due when that has ended.
  BeginScan();
  relist_due_ = false;
  if (!context_.parts.ledger->BeginRelist()) return EndScan();
  const auto found = std::make_shared<std::vector<CheckpointInfo>>();
  RunTask(*context_.queue, ListTask(context_.parts.root, found), [this, found](const Status& status) {
    const bool known = status.ok() && context_.parts.ledger->Relist(*found);
    if (!status.ok()) Warn(status);
    EndScan();
    relist_due_ = relist_due_ || !known;  // Tried again after the next save.
  });
}

void Retention::OnDurable(std::uint64_t step) {
  if (retains() || unnamed_) unseen_.push_back(step);
}

void Retention::Retire() {
  if (!looking_) LookAtNext();
}

void Retention::OnSavesEnded() {
  if (relist_due_) Relist();
}

void Retention::LookAtNext() {
  looking_ = !unseen_.empty();
  if (looking_) {
    const std::uint64_t step = unseen_.front();
    const std::string attempt = context_.parts.ledger->AttemptOf(step);
    return RunTask(*context_.queue, LookForStep(context_.parts.root, step, attempt),
                   [this, step, attempt](const Status& status) { OnLooked(step, attempt, status); });
  }
  if (retains()) {
    const std::vector<std::uint64_t> steps = context_.parts.ledger->Retire();
    removals_.insert(removals_.end(), steps.begin(), steps.end());
  }
  RemoveNext();
}

void Retention::OnLooked(std::uint64_t step, const std::string& attempt, const Status& status) {
  // What cannot be read is looked at once more, before the next retirement.
  const bool unreadable = !status.ok() && status.code() != StatusCode::kNotFound;
  second_look_ = unreadable && !second_look_;
  if (!second_look_) unseen_.pop_front();
  if (status.ok() && unnamed_) {
    const PathAt folder = JoinPath(context_.parts.root, std::exchange(unnamed_, std::nullopt)->folder);
    return RunInBackground(*context_.queue, RemoveUnnamed(folder), [this](const Status&) { LookAtNext(); });
  }
  if (status.ok()) return LookAtNext();
  if (!unreadable) {
    if (!context_.parts.ledger->FoundMissing(step, attempt)) return LookAtNext();
    relist_due_ = true;
  } else if (!second_look_) {
    context_.parts.ledger->FoundDamaged(step, attempt);
  }
  context_.Notify(
      {.severity = Severity::kWarning,
       .step = step,
       .status = status,
       .message = fmt::format("step {} was saved durably, but {}; no older checkpoint is removed for it: does the disk "
                              "lose renames, or has somebody removed the step?",
                              step, status.message()),
       .phase = "retention",
       .path = PathOf(step)});
  looking_ = false;
  RemoveNext();
}

void Retention::RemoveNext() {
  if (context_.scanning || removal_in_flight_) return;
  if (removals_.empty() && std::exchange(spares_end_, false)) {
    removal_in_flight_ = true;
    return RunInBackground(*context_.queue, RemoveSparesTask(context_.parts.root, context_.parts.check_writer),
                           [this](const Status&) {
                             removal_in_flight_ = false;
                             RemoveNext();
                           });
  }
  if (removals_.empty()) {
    if (!looking_) callbacks_.on_busy(false);
    return;
  }
  const std::uint64_t step = removals_.front();
  removal_in_flight_ = true;
  RemovalOptions options{.attempt = context_.parts.ledger->AttemptOf(step),
                         .check_writer = context_.parts.check_writer,
                         .spares = Spares()};
  const PathAt& root = context_.parts.root;
  RemoveCheckpoint(*context_.queue, root, step, std::move(options), [this, step](const Removal& removal) {
    removals_.pop_front();
    removal_in_flight_ = false;
    if (removal.gone) {
      context_.parts.ledger->Removed(step);
    } else {
      context_.parts.ledger->SetPinned(step, removal.pinned);
      context_.parts.ledger->CancelRetirement(step);
    }
    NotifyRemoval(step, removal);
    if (removal.gone) kept_.erase(step);
    RemoveNext();
  });
}

void Retention::NotifyRemoval(std::uint64_t step, const Removal& removal) {
  const Status& status = removal.status;
  if (status.ok() || status.code() == StatusCode::kNotFound) {
    if (context_.parts.in_memory) return;  // The disk may have it.
    return context_.Notify(
        {.kind = EventKind::kCheckpointRemoved, .step = step, .phase = "retention", .path = PathOf(step)});
  }
  if (removal.pinned) return;
  // A property of the filesystem, so report it once.
  if (status.code() == StatusCode::kUnsupported && std::exchange(unsupported_reported_, true)) return;
  if (std::exchange(kept_[step], status.message()) == status.message()) return;
  context_.Notify({.severity = Severity::kWarning,
                   .step = step,
                   .status = status,
                   .message = fmt::format("step {} {}: {}", step, removal.gone ? "is removed, but" : "is kept for now",
                                          status.message()),
                   .phase = "retention",
                   .path = PathOf(step)});
}

void Retention::EndSpares() {
  if (!recycles()) return RemoveNext();
  spares_end_ = true;
  context_.recycles = false;
  RemoveNext();
}

void Retention::RemoveSpares() {
  if (!recycles()) return;
  removal_in_flight_ = true;
  RunInBackground(*context_.queue, RemoveSparesTask(context_.parts.root, context_.parts.check_writer),
                  [this](const Status&) { removal_in_flight_ = false; });
}

}  // namespace cairn
