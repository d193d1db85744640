#include "api/memory_root.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/human.h"
#include "base/status_macros.h"
#include "base/uuid.h"
#include "engine/agreement.h"
#include "group/prefixed_group.h"
#include "restore/open.h"
#include "store/locks.h"
#include "store/memory_folder.h"
#include "store/names.h"
#include "store/remove.h"
#include "store/writer.h"

namespace cairn {
namespace {

constexpr unsigned kFileMode = 0600;
constexpr unsigned kFolderMode = 0700;
// Beside those of saves in flight: the newest that is kept, which waits, and the one that is drained.
std::uint64_t SlotsOf(const Options& options) { return static_cast<std::uint64_t>(options.max_in_flight) + 2; }

Options OptionsInMemory(Options options, std::string path) {
  options.root = std::move(path);
  options.keep_last = 1;
  options.keep_every = 0;
  options.recycle = true;
  options.file_mode = kFileMode;
  options.directory_mode = kFolderMode;
  // The disk's save looks, which is the one that is listed.
  options.nonfinite = MarkNonFinite::kOff;
  return options;
}

Result<std::unique_ptr<Root>> OpenIn(const std::string& path, const MemoryRoot::Parts& parts) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, parts.queue());
  return Root::Open(*queue, {.path = path,
                             .coordinator = parts.group->rank() == 0,
                             .wait = parts.options.open_timeout,
                             .take_over = parts.options.take_over,
                             .file_mode = kFileMode,
                             .directory_mode = kFolderMode,
                             .id = parts.group->rank() == 0 ? parts.id : std::string(),
                             .in_memory = true});
}

Status RecordOpenings(Root& root, const MemoryRoot::Parts& parts) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, parts.queue());
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(*queue, parts.root->KeepOpening()));
  return RunTaskBlocking(*queue, root.WriteOpenings(parts.root->record().openings));
}

/// Of an older version's root in memory only the numbers of its lines are known.
bool IsLineOfRoot(const WriterRecord& disk, const WriterRecord& memory, const CheckpointInfo& kept) {
  return memory.openings.empty() ? kept.line < disk.line : IsLineOf(disk.openings, memory.openings, kept.line);
}

std::pair<std::uint64_t, std::uint64_t> PlaceInTime(const CheckpointInfo& info) { return {info.line, info.step}; }

/// Whether the next one would fail as well; not if it lies in the ranks' calls, in that one of them is late, or in a
/// GPU.
bool MemoryFails(const Status& outcome, bool alone) {
  switch (outcome.code()) {
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kInvalidArgument:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kDeviceError:
      return false;
    case StatusCode::kAlreadyExists:
    case StatusCode::kFailedPrecondition:
      return alone;
    default:
      return true;
  }
}

const CheckpointInfo& InfoOf(const CheckpointInfo& one) { return one; }
const CheckpointInfo& InfoOf(const StoredCheckpoint& one) { return one.info; }

/// The newest that verifies.
template <typename T>
const T* NewestOf(const std::vector<T>& list) {
  const T* newest = nullptr;
  for (const T& one : list) {
    if (!InfoOf(one).status.ok()) continue;
    if (newest == nullptr || PlaceInTime(InfoOf(*newest)) < PlaceInTime(InfoOf(one))) newest = &one;
  }
  return newest;
}

}  // namespace

Result<std::unique_ptr<MemoryRoot>> MemoryRoot::Open(Parts parts) {
  const bool leads = parts.group->rank() == 0;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<MemoryRoot> made, leads ? Lead(std::move(parts)) : Join(std::move(parts)));
  if (made != nullptr) CAIRN_RETURN_IF_ERROR(made->Start());
  return made;
}

Result<std::unique_ptr<MemoryRoot>> MemoryRoot::Join(Parts parts) {
  const std::string& folder = parts.options.memory_root;
  const Result<std::string> found_path = FindMemoryFolder(folder, parts.id);
  if (found_path.status().code() == StatusCode::kNotFound) {
    return Error(StatusCode::kInvalidArgument,
                 "memory_root: expected the folder that rank 0 has opened, found none in {} on rank {}", folder,
                 parts.group->rank());
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string path, found_path);
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Root> root, OpenIn(path, parts));
  if (const Status seen = root->CheckSeen(parts.of_rank0.writer_id); !seen.ok()) {
    return Error(StatusCode::kInvalidArgument,
                 "memory_root: expected the folder that rank 0 has opened, found {} on rank {}: {}", path,
                 parts.group->rank(), seen.message());
  }
  std::optional<StoredCheckpoint> left;
  if (!parts.of_rank0.found_attempt.empty()) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> found, ListCheckpoints(root->at()));
    for (StoredCheckpoint& one : found) {
      if (one.info.attempt == parts.of_rank0.found_attempt) left = std::move(one);
    }
  }
  return std::unique_ptr<MemoryRoot>(new MemoryRoot(std::move(parts), std::move(root), {}, std::move(left)));
}

Result<std::unique_ptr<MemoryRoot>> MemoryRoot::Lead(Parts parts) {
  const Options& options = parts.options;
  const std::string id = parts.id;
  const auto warn = [&options](std::string message, std::string path) {
    options.on_event(
        {.severity = Severity::kWarning, .message = std::move(message), .phase = "open", .path = std::move(path)});
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string path, MakeMemoryFolder(options.memory_root, id));
  const Result<std::optional<WriterRecord>> record = ReadWriter(PathAt(path));
  if (record.ok() && *record && (*record)->root != id) {
    warn(fmt::format("{} is of another root, {}, and is ignored: there is no memory root in this run", path,
                     (*record)->root),
         path);
    return std::unique_ptr<MemoryRoot>();
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Root> root, OpenIn(path, parts));
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> found, ListCheckpoints(root->at()));
  std::erase_if(found, [&](const StoredCheckpoint& stored) {
    const CheckpointInfo& one = stored.info;
    if (!one.status.ok() || one.root == id) return false;
    warn(fmt::format("{} is of another root, {}, and is ignored", one.path, one.root), one.path);
    return true;
  });
  const StoredCheckpoint* const newest_found = NewestOf(found);
  const CheckpointInfo* newest = newest_found == nullptr ? nullptr : &newest_found->info;
  if (newest != nullptr && !IsLineOfRoot(parts.root->record(), root->record(), *newest)) {
    // Whether what is there is newer or older than the root's, no number tells.
    const std::string aside = fmt::format("{}-aside-{}", path, MakeUuid());
    if (::rename(path.c_str(), aside.c_str()) != 0) return ErrnoStatus(errno, "renaming " + path);
    warn(fmt::format("{} has step {} of line {}, which {} has not begun: has an older copy of it been put back? It is "
                     "not read, and is now {}; remove it",
                     path, newest->step, newest->line, options.root, aside),
         aside);
    root.reset();
    CAIRN_RETURN_IF_ERROR(MakeMemoryFolder(options.memory_root, id).status());
    CAIRN_ASSIGN_OR_RETURN(root, OpenIn(path, parts));
    found.clear();
    newest = nullptr;
  }
  // From now on all that is there is of these.
  CAIRN_RETURN_IF_ERROR(RecordOpenings(*root, parts));
  const std::vector<CheckpointInfo> on_disk = parts.ledger->NewestFirst();
  if (newest != nullptr && !on_disk.empty() && newest->line < on_disk.front().line) {
    warn(fmt::format("{} is of line {}, and older than step {} of line {}, which the disk has", newest->path,
                     newest->line, on_disk.front().step, on_disk.front().line),
         newest->path);
  }
  std::optional<StoredCheckpoint> left;
  if (newest != nullptr && (on_disk.empty() || PlaceInTime(on_disk.front()) < PlaceInTime(*newest))) {
    left = *newest_found;
  }
  std::vector<CheckpointInfo> infos;
  for (StoredCheckpoint& one : found) infos.push_back(std::move(one.info));
  return std::unique_ptr<MemoryRoot>(
      new MemoryRoot(std::move(parts), std::move(root), std::move(infos), std::move(left)));
}

Status MemoryRoot::Start() {
  EngineParts engine;
  engine.options = OptionsInMemory(disk_.options, root_->path());
  engine.root = root_->at();
  engine.root_id = disk_.id;
  engine.in_memory = true;
  engine.begin_line = [raw = disk_.engine](std::uint64_t line, StatusDone done) {
    raw->BeginLine(line, std::move(done));
  };
  engine.admitted_by = disk_.ledger;
  engine.check_writer = [raw = root_.get()]() -> Status {
    CAIRN_RETURN_IF_ERROR(raw->CheckWriter());
    return raw->CheckPath();  // Under another path no start finds what is kept.
  };
  engine.devices = disk_.devices;
  engine.pool = disk_.pool;
  engine.workers = disk_.workers;
  engine.ledger = leads() ? &ledger_ : nullptr;
  engine.trace = disk_.trace;
  engine.metrics = disk_.metrics;
  engine.on_gone = [this](const std::shared_ptr<SaveTask>& task, const Status& outcome, const std::string& attempt) {
    OnGone(task, outcome, attempt);
  };
  engine.on_moved = [this](const std::shared_ptr<SaveTask>& task, bool off) { OnMoved(task, off); };
  engine.on_not_moved = [raw = disk_.engine](std::uint64_t step, const Status& why) { raw->GiveUpCall(step, why); };
  engine.queue = disk_.queue;
  engine.group = disk_.group;
  if (!alone()) engine.group = std::make_shared<PrefixedGroup>(disk_.group, "memory/");
  CAIRN_ASSIGN_OR_RETURN(engine_, Engine::Start(std::move(engine)));
  slots_ = std::make_unique<MemorySlots>(root_->at(), static_cast<std::uint64_t>(disk_.group->rank()),
                                         SlotsOf(disk_.options), engine_->mapped_files(), disk_.options.on_event);
  if (alone()) return Status::Ok();
  BeginRoom();
  // What killed runs have left is gone before any rank looks for slots.
  static_cast<void>(engine_->WaitIdle(Deadline::In(disk_.options.group_timeout / 2)));
  return Status::Ok();
}

MemoryRoot::MemoryRoot(Parts parts, std::unique_ptr<Root> root, std::vector<CheckpointInfo> found,
                       std::optional<StoredCheckpoint> left)
    : disk_(std::move(parts)),
      root_(std::move(root)),
      ledger_(std::move(found), /*keep_last=*/1, /*keep_every=*/0, disk_.root->line()),
      left_(std::move(left)),
      drains_({.disk_every = disk_.options.disk_every,
               .group_timeout = disk_.options.group_timeout,
               .group = disk_.group,
               .engine = disk_.engine,
               .ledger = disk_.ledger,
               .memory_ledger = &ledger_,
               .retire =
                   [this] {
                     MutexLock lock(slots_mutex_);
                     engine_->Retire();
                   },
               .rank0_lives =
                   [this] {
                     return WriterLock::IsTaken(root_->at()) && root_->CheckSeen(disk_.of_rank0.writer_id).ok();
                   }}) {
  ledger_.RetireDamaged();
  if (disk_.ledger != nullptr) disk_.ledger->ShareOrder();
}

MemoryRoot::~MemoryRoot() = default;

Result<std::unique_ptr<Snapshot>> MemoryRoot::ReadBack(const StoredCheckpoint& stored) {
  const auto rank = static_cast<std::size_t>(disk_.group->rank());
  if (!IsOfThisWorld(stored)) {
    return Error(StatusCode::kInvalidArgument, "{}: expected as many shards as there are processes, {}, found {}",
                 stored.info.path, disk_.group->size(), stored.manifest.shards.size());
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, disk_.queue());
  CAIRN_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(*queue, stored));
  ShardFile& file = opened.files.at(rank);
  const PathAt path = JoinPath(JoinPath(root_->at(), StepName(stored.info.step)), ShardName(rank));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<MappedFile> mapped,
                         engine_->mapped_files().Map(path, file.fd, file.length));
  std::byte* const data = mapped->data() + file.header.data_begin;
  return Snapshot::OfStored(std::move(file.header), {mapped, data}, disk_.pool->chunk_bytes());
}

bool MemoryRoot::IsOfThisWorld(const StoredCheckpoint& stored) const {
  return stored.manifest.shards.size() == static_cast<std::size_t>(disk_.group->size());
}

std::string MemoryRoot::found_attempt() const {
  return left_ && IsOfThisWorld(*left_) ? left_->info.attempt : std::string();
}

void MemoryRoot::DrainFound() {
  if (!left_) return;
  const StoredCheckpoint stored = *std::exchange(left_, std::nullopt);
  const CheckpointInfo& info = stored.info;
  const std::string attempt = info.attempt;
  Result<std::unique_ptr<Snapshot>> snapshot = ReadBack(stored);
  if (!snapshot.ok()) {
    if (leads()) {
      drains_.AnnounceLeftOut(info.step, attempt, snapshot.status());
    } else {
      disk_.group->Send("prepared/" + attempt, EncodePrepared({.failure = snapshot.status()}));
    }
    // Whoever reads it hears the same.
    return Notify({.severity = Severity::kWarning,
                   .step = info.step,
                   .status = snapshot.status(),
                   .message = fmt::format("step {} is in memory alone, in {}, and the disk does not get it: {}",
                                          info.step, info.path, snapshot.status().message()),
                   .phase = "open",
                   .path = info.path});
  }
  SavePlan plan{
      .step = info.step, .attempt = info.attempt, .line = info.line, .parent = stored.manifest.parent, .found = true};
  if (leads()) disk_.ledger->Resume(plan);
  const auto task = std::make_shared<SaveTask>(std::move(plan), *std::move(snapshot), std::vector<DeviceEvents>(),
                                               SaveTask::Clock::now(), disk_.engine->inbox());
  task->MarkInMemory();
  task->Want();
  if (leads()) {
    Notify(
        {.step = info.step,
         .message = fmt::format("step {}, which an earlier run has kept in {}, goes to the disk", info.step, info.path),
         .phase = "open",
         .path = info.path});
  }
  drains_.Keep(task, attempt);
}

void MemoryRoot::BeginRoom() {
  room_ = std::make_shared<RoomOfRanks>(disk_.group, rounds_++);
  room_->Begin();
  said_room_ = refused_room_ = false;
}

Result<bool> MemoryRoot::AgreeOnRoom(const SlotNeed& need) {
  while (!agreed_) {
    if (!std::exchange(said_room_, true)) room_->Say(slots_->Make(need));
    const std::optional<Status> all = room_->Verdict(Deadline::In(disk_.options.group_timeout));
    if (!all) {
      return Error(StatusCode::kDeadlineExceeded, StatusDetail::kRanksMissing,
                   "memory_root: not all ranks have said within group_timeout that they have room for a save");
    }
    if (all->code() == StatusCode::kCancelled) {
      const bool before = refused_room_;
      BeginRoom();
      if (before) continue;
      return false;  // The disk's engine hears why this save fails.
    }
    agreed_ = all->ok();
    if (!all->ok()) {
      slots_->Free();
      TurnOff(*all);
      return false;
    }
  }
  CAIRN_RETURN_IF_ERROR(slots_->Pin(need.devices));
  // Other ranks hear from rank 0 what is not kept any more, and then it goes to the disk.
  if (off_ && leads() && !std::exchange(told_off_, true)) engine_->AnnounceOff();
  return !off_ || !leads();
}

void MemoryRoot::RefuseRoom(const Status& why) {
  if (alone() || agreed_ || off_) return;
  if (refused_room_) BeginRoom();
  if (std::exchange(said_room_, true)) return;
  refused_room_ = true;
  room_->Say(Error(StatusCode::kCancelled, "its save was refused: {}", why.message()));
}

Result<bool> MemoryRoot::MakeRoom(const SlotNeed& need, Deadline deadline) {
  if (gone()) return false;
  if (!alone() && (!agreed_ || off_)) {
    Result<bool> agreed = AgreeOnRoom(need);
    slot_bytes_ = slots_->LengthFor(need);
    return agreed;
  }
  while (!gave_up_ && !slots_->Fit(need)) {
    if (!engine_->WaitIdle(deadline)) {
      if (alone()) return false;
      return Error(StatusCode::kDeadlineExceeded,
                   "memory_root: {} all through full_timeout, and a state of another size needs other slots",
                   engine_->Busy());
    }
    MutexLock lock(slots_mutex_);
    if (!engine_->WaitIdle(Deadline::In({}))) continue;
    if (const Status made = slots_->Make(need); !made.ok()) {
      gave_up_ = true;
      if (!alone()) return made;
      TurnOff(made);
      return false;
    }
  }
  slot_bytes_ = slots_->LengthFor(need);
  return true;
}

Status MemoryRoot::Accept(SavePlan& plan, Deadline deadline) {
  plan.slot_bytes = slot_bytes_;
  if (!leads()) return Status::Ok();
  CAIRN_RETURN_IF_ERROR(ledger_.Accept(plan, deadline));
  plan.attempt = MakeUuid();
  return Status::Ok();
}

void MemoryRoot::Submit(const std::shared_ptr<SaveTask>& task, Status given_up) {
  drains_.Expect(task);
  engine_->Submit(task, std::move(given_up));
}

void MemoryRoot::TurnOff(const Status& why) {
  if (off_.exchange(true)) return;
  engine_->EndSpares();
  engine_->mapped_files().Clear();
  Notify({.severity = Severity::kWarning,
          .status = why,
          .message =
              fmt::format("{}: there is no memory root from here on in this run, and saves go to the disk alone: {}",
                          root_->path(), why.message()),
          .phase = "memory",
          .path = root_->path()});
}

void MemoryRoot::OnGone(const std::shared_ptr<SaveTask>& task, const Status& outcome, const std::string& attempt) {
  const bool failed = MemoryFails(outcome, alone()) && outcome.detail() != StatusDetail::kDiskHangs;
  // A save may be cancelled with any status.
  if (failed && leads() && !task->cancelled()) TurnOff(outcome);
  outcome.ok() ? drains_.Keep(task, attempt) : drains_.Forget(task);
}

void MemoryRoot::OnMoved(const std::shared_ptr<SaveTask>& task, bool off) {
  if (off) TurnOff(Error(StatusCode::kCancelled, "rank 0 does not keep saves any more"));
  task->MoveTo(disk_.engine->inbox());
  disk_.engine->Submit(task);
  drains_.Forget(task);
}

Status MemoryRoot::RemoveStep(IoQueue& queue, std::uint64_t step) {
  CAIRN_RETURN_IF_ERROR(ledger_.BeginRemoval(step));
  const Removal removal = RemoveCheckpointBlocking(
      queue, root_->at(), step, {.check_writer = [this] { return root_->CheckWriter(); }, .pinned = Pinned::kGoes});
  removal.gone ? ledger_.Removed(step) : ledger_.CancelRetirement(step);
  return removal.status;
}

std::string MemoryRoot::Busy() const { return engine_->HasSaves() ? engine_->Busy() : drains_.Busy(); }

void MemoryRoot::AddStats(CheckpointerStats& stats) const {
  CheckpointerStats kept;
  engine_->AddStats(kept);
  drains_.AddStats(stats);
  const std::vector<std::shared_ptr<SaveTask>> tasks = disk_.engine->InFlight();
  stats.saves_in_flight = static_cast<std::uint64_t>(std::ranges::count(tasks, false, &SaveTask::drains));
  stats.saves_started += kept.saves_started;
  stats.saves_kept = kept.saves_durable;
  stats.saves_failed += kept.saves_failed;
  stats.saves_in_flight += kept.saves_in_flight;
  stats.failures_in_a_row = std::max(stats.failures_in_a_row, kept.failures_in_a_row);
  if (stats.not_recycled_reason.empty()) stats.not_recycled_reason = std::move(kept.not_recycled_reason);
  if (in_use()) stats.memory_root = root_->path();
}

void MemoryRoot::Close(bool removes) {
  if (!leads()) return;
  const auto warn = [this](std::string message, std::optional<std::uint64_t> step = std::nullopt) {
    Notify({.severity = Severity::kWarning,
            .step = step,
            .message = std::move(message),
            .phase = "close",
            .path = root_->path()});
  };
  Result<std::vector<CheckpointInfo>> found = ListInfos(root_->at());
  if (!found.ok()) return warn(found.status().message());
  const std::vector<CheckpointInfo> on_disk = disk_.ledger->NewestFirst();
  for (const CheckpointInfo& one : *found) {
    if (one.status.ok()) continue;
    // Unless the disk has this very one whole, it may be all that tells the next run that what the disk has is not the
    // newest. The number of its step does not tell.
    const bool whole = std::ranges::any_of(on_disk, [&, attempt = AttemptSaid(one)](const CheckpointInfo& other) {
      return other.step == one.step && other.attempt == attempt;
    });
    if (whole) continue;
    return warn(fmt::format("step {} is in memory alone, in {}, and damaged: it stays, and so does the folder: {}",
                            one.step, one.path, one.status.message()),
                one.step);
  }
  std::erase_if(*found, [this](const CheckpointInfo& one) { return one.root != disk_.root->id(); });
  const CheckpointInfo* const kept = NewestOf(*found);
  if (kept != nullptr && (on_disk.empty() || PlaceInTime(on_disk.front()) < PlaceInTime(*kept))) {
    return warn(fmt::format("step {} is kept in memory alone, in {}: it is lost with the machine, or the next restore "
                            "of this root finds it",
                            kept->step, kept->path),
                kept->step);
  }
  if (!removes) return;
  const Result<std::unique_ptr<IoQueue>> queue = disk_.queue();
  const Status removed = queue.ok() ? RemoveMemoryFolder(**queue, root_->path()) : queue.status();
  if (!removed.ok()) warn(fmt::format("{} was not removed: {}", root_->path(), removed.message()));
}

}  // namespace cairn
