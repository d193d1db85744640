#include "mirror/mirror.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "mirror/copy.h"
#include "store/late_name.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/remove.h"
#include "store/suspect.h"
#include "store/writer.h"

namespace cairn {
namespace {

constexpr std::uint64_t kChunkBytes = 4U << 20;
constexpr int kChunks = 4;
constexpr unsigned kFolderMode = 0755;
constexpr unsigned kPermissions = 0777;
// A checkpoint that retention removes between the list and the hold: how often to list again.
constexpr int kLooks = 10;
// Lines that the root may have begun while nobody mirrored it, before training went on from the target.
constexpr std::uint64_t kUnseenLines = 1000;

/// The same for one directory, by whatever links it is named.
Result<std::string> RealPath(const std::string& path) {
  if (path.empty()) return Error(StatusCode::kInvalidArgument, "expected a directory, found an empty path");
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  std::filesystem::path real = error ? absolute : std::filesystem::weakly_canonical(absolute, error);
  if (error) return ErrnoStatus(error.value(), "looking for " + path);
  if (!real.has_filename()) real = real.parent_path();
  return real.string();
}

bool IsInside(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

MirroredCheckpoint Named(const CheckpointInfo& info) {
  return {.step = info.step, .line = info.line, .attempt = info.attempt};
}

bool IsDirectory(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

IoTask<Status> OpenTask(const std::string& path, UniqueFd& fd) {
  co_return co_await io::OpenDirectory(path, /*follow=*/true, fd);
}

IoTask<Status> MakeIfMissing(PathAt path) {
  IoResult made = co_await io::MakeDirectory(path, kFolderMode);
  if (made.error == EEXIST) co_return Status::Ok();
  co_return made.status;
}

}  // namespace

Mirror::Mirror(IoQueue& queue, const MirrorOptions& options)
    : queue_(queue), options_(options), id_(MirrorId(options.target)) {}

Result<std::unique_ptr<Mirror>> Mirror::Open(IoQueue& queue, const MirrorOptions& options) {
  MirrorOptions real = options;
  CAIRN_ASSIGN_OR_RETURN(real.root, RealPath(options.root));
  CAIRN_ASSIGN_OR_RETURN(real.target, RealPath(options.target));
  std::error_code missing;
  if (IsInside(real.target, real.root) || IsInside(real.root, real.target) ||
      std::filesystem::equivalent(real.root, real.target, missing)) {
    return Error(StatusCode::kInvalidArgument, "{} and its mirror {}: expected neither to be in the other", real.root,
                 real.target);
  }
  std::unique_ptr<Mirror> mirror(new Mirror(queue, real));
  CAIRN_ASSIGN_OR_RETURN(mirror->pool_, BufferPool::Make(kChunks * kChunkBytes, kChunkBytes, kChunks));
  CAIRN_RETURN_IF_ERROR(mirror->OpenSource());
  CAIRN_RETURN_IF_ERROR(mirror->TakeLock());
  mirror->DropHolds();
  const Status opened = mirror->OpenTarget();
  mirror->Record(std::nullopt, opened.ok() ? "" : opened.ToString());
  if (!opened.ok()) return opened;
  return mirror;
}

Mirror::~Mirror() {
  if (!lock_) return;
  DropHolds();
  Record(std::nullopt, record_.error);
}

Status Mirror::OpenSource() {
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, OpenTask(options_.root, source_fd_)));
  source_ = PathAt(source_fd_.get(), options_.root);
  CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> writer, ReadWriter(source_));
  if (!writer || writer->root.empty()) {
    return Error(StatusCode::kFailedPrecondition, "{} has no id: expected a root that was opened for writing, found {}",
                 source_, writer ? "one of an earlier version: open it once" : "no .writer");
  }
  source_id_ = writer->root;
  struct stat folder {};
  struct stat file {};
  if (::fstat(source_fd_.get(), &folder) == 0) directory_mode_ = folder.st_mode & kPermissions;
  if (::fstatat(source_fd_.get(), std::string(kWriterName).c_str(), &file, 0) == 0)
    file_mode_ = file.st_mode & kPermissions;
  return Status::Ok();
}

Status Mirror::TakeLock() {
  const PathAt mirrors = JoinPath(source_, kMirrorsName);
  holds_ = JoinPath(mirrors, id_);
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, MakeIfMissing(mirrors)));
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, MakeIfMissing(holds_)));
  const std::optional<MirrorRecord> last = ReadMirrorRecord(source_, id_);
  const Deadline deadline = Deadline::In(options_.wait);
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(std::optional<WriterLock> lock, WriterLock::TryTake(holds_, kMirrorFileMode));
    if (lock) {
      lock_.emplace(*std::move(lock));
      break;
    }
    if (deadline.passed()) {
      return Error(StatusCode::kFailedPrecondition, StatusDetail::kOpenElsewhere, "{} is mirrored to {} already, by {}",
                   source_, options_.target, last ? last->Describe() : "another process");
    }
    const Deadline again = Deadline::At(std::min(Deadline::In(kLockInterval).when(), deadline.when()));
    CAIRN_RETURN_IF_ERROR(queue_.RunOnce(again).status());
  }
  if (last) record_ = *last;
  for (const MirroredCheckpoint& one : record_.checkpoints) copied_.insert(one.attempt);
  record_.target = options_.target;
  record_.copying.reset();
  return Status::Ok();
}

// A root without an id gets the source's. It must not have another's checkpoints, which retention might then remove.
Status Mirror::CheckTargetIsFree() const {
  if (!IsDirectory(options_.target)) return Status::Ok();
  const Result<std::optional<WriterRecord>> writer = ReadWriter(options_.target);
  if (writer.ok() && *writer && !(*writer)->root.empty()) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> list, ListInfos(options_.target));
  for (const CheckpointInfo& info : list) {
    if (info.root == source_id_) continue;
    return Error(StatusCode::kFailedPrecondition,
                 "{} is no mirror of {}: it has no id, and step {} there is not of the root {}", options_.target,
                 source_, info.step, source_id_);
  }
  return Status::Ok();
}

Status Mirror::CheckTargetIsThere() const {
  if (record_.checkpoints.empty()) return Status::Ok();
  const Result<std::optional<WriterRecord>> writer = ReadWriter(options_.target);
  const bool missing = writer.ok() ? !*writer : writer.status().code() == StatusCode::kNotFound;
  if (!missing) return Status::Ok();
  return Error(
      StatusCode::kFailedPrecondition,
      "{}: expected the {} checkpoints that were copied there, found no root: is its disk mounted? To begin anew, "
      "remove {}.json",
      options_.target, record_.checkpoints.size(), holds_);
}

Status Mirror::OpenTarget() {
  CAIRN_RETURN_IF_ERROR(CheckTargetIsThere());
  CAIRN_RETURN_IF_ERROR(CheckTargetIsFree());
  CAIRN_ASSIGN_OR_RETURN(target_, Root::Open(queue_, {.path = options_.target,
                                                      .file_mode = file_mode_,
                                                      .directory_mode = directory_mode_,
                                                      .id = source_id_}));
  for (const std::string& note : target_->notes()) Note(note);
  Swept swept;
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, SweepTask(target_->at(), {}, swept)));
  if (swept.unnamed) {
    // A mirror was killed right before the rename. It is copied again.
    swept.left.pop_back();
    CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, RemoveUnnamed(JoinPath(target_->at(), swept.unnamed->folder))));
  }
  for (const std::string& left : swept.left) Note(left);
  return Look();
}

Status Mirror::Check() const {
  struct stat by_path {};
  struct stat by_fd {};
  if (::fstat(source_fd_.get(), &by_fd) != 0 || ::stat(options_.root.c_str(), &by_path) != 0 ||
      by_path.st_dev != by_fd.st_dev || by_path.st_ino != by_fd.st_ino) {
    return Error(StatusCode::kFailedPrecondition, "{} was moved or removed while it was mirrored", source_);
  }
  if (!lock_->Named(holds_) || !lock_->Held()) {
    return Error(StatusCode::kFailedPrecondition, "{}: the mirror's lock was lost; another may have it now", holds_);
  }
  CAIRN_RETURN_IF_ERROR(target_->CheckPath());
  return target_->CheckWriter();
}

Status Mirror::Look() {
  CAIRN_RETURN_IF_ERROR(target_->CheckPath());
  CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> writer, ReadWriter(source_));
  if (!writer || writer->root != source_id_) {
    return Error(StatusCode::kFailedPrecondition, "{} has another id: expected {}, found {}", source_, source_id_,
                 writer ? writer->root : "no .writer");
  }
  static_cast<void>(ForgetCachedNames(source_));
  CAIRN_ASSIGN_OR_RETURN(here_, ListCheckpoints(source_));
  CAIRN_ASSIGN_OR_RETURN(there_, ListCheckpoints(target_->at()));
  for (const StoredCheckpoint& one : here_) {
    if (!IsAnothers(one, there_, copied_)) continue;
    Note(fmt::format("{}: step {} there is another save of line {}, which was not copied from {}: it is left as it is",
                     options_.target, one.info.step, one.info.line, source_));
  }
  if (options_.rules.keep_last != 0) {
    for (const std::string& why : CheckNewestShards(there_, options_.rules.keep_last, {})) {
      Note(fmt::format("{}: {}", options_.target, why));
    }
  }
  // So that training that goes on from the target begins a line above all of this root.
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, target_->WriteLine(writer->line + kUnseenLines)));
  return MarkSuspects();
}

Status Mirror::MarkSuspects() {
  // The root may have removed others with the same kept files before it marked these.
  std::set<std::string> files;
  for (const StoredCheckpoint& one : here_) {
    for (const ManifestShard& shard : one.manifest.shards) {
      if (one.info.suspect && shard.kept) files.insert(shard.file);
    }
  }
  for (StoredCheckpoint& copy : there_) {
    const bool links = std::ranges::any_of(copy.manifest.shards, [&](const ManifestShard& shard) {
      return shard.kept && files.contains(shard.file) && shard.kept->step != copy.info.step;
    });
    if (!links || copy.info.suspect || !copy.info.status.ok()) continue;
    const PathAt folder = JoinPath(target_->at(), StepName(copy.info.step));
    CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, MarkSuspectFolder(folder, file_mode_)));
    copy.info.suspect = true;
  }
  return Status::Ok();
}

const StoredCheckpoint* Mirror::NextDue() const {
  for (const StoredCheckpoint* one : ChooseDue(here_, there_, options_.rules, copied_)) {
    if (!damaged_.contains(one->info.attempt)) return one;
  }
  return nullptr;
}

Result<std::optional<Mirror::Copied>> Mirror::CopyNext(const std::function<bool()>& interrupted) {
  Result<std::optional<Copied>> copied = TryCopyNext(interrupted);
  const StatusCode code = copied.status().code();
  if (copied.ok()) {
    Record(std::nullopt, DamageLeft());
  } else if (code != StatusCode::kCancelled) {
    Record(std::nullopt, copied.status().ToString());
  }
  return copied;
}

Result<std::optional<Mirror::Copied>> Mirror::TryCopyNext(const std::function<bool()>& interrupted) {
  for (int looks = 1;; ++looks) {
    CAIRN_RETURN_IF_ERROR(Look());
    const StoredCheckpoint* const due = NextDue();
    if (due == nullptr) {
      CAIRN_RETURN_IF_ERROR(Retire());
      return std::optional<Copied>();
    }
    // A mirror that was killed, or a reader there, may have left more than the rules keep, and the disk may be full.
    const std::string attempt = due->info.attempt;
    CAIRN_RETURN_IF_ERROR(Retire());
    Record(Named(due->info), record_.error);
    bool gone = false;
    const Result<Copied> copied = Copy(*due, interrupted, gone);
    DropHolds();
    if (gone && looks < kLooks) continue;
    CAIRN_RETURN_IF_ERROR(copied.status());
    copied_.insert(attempt);
    CAIRN_RETURN_IF_ERROR(Look());
    CAIRN_RETURN_IF_ERROR(Retire());
    return std::optional(*copied);
  }
}

std::string Mirror::DamageLeft() const {
  for (const StoredCheckpoint& one : here_) {
    const auto found = damaged_.find(one.info.attempt);
    if (found != damaged_.end()) return found->second;
  }
  return {};
}

Result<Mirror::Copied> Mirror::Copy(const StoredCheckpoint& one, const std::function<bool()>& interrupted, bool& gone) {
  const auto begun = std::chrono::steady_clock::now();
  HeldCheckpoint held;
  const Status holds = RunTaskBlocking(queue_, HoldCheckpoint(source_, holds_, one, held));
  gone = holds.code() == StatusCode::kNotFound;
  if (holds.code() == StatusCode::kCorrupt) damaged_.emplace(one.info.attempt, holds.ToString());
  CAIRN_RETURN_IF_ERROR(holds);
  if (!held.not_linked.ok()) {
    Note(fmt::format("{}: its checkpoints are locked while they are copied, so that retention waits for them: {}",
                     source_, held.not_linked.message()));
  }
  CheckpointCopy copy({.from = held,
                       .to = *target_,
                       .there = there_,
                       .whole = whole_,
                       .file_mode = file_mode_,
                       .directory_mode = directory_mode_,
                       .pool = *pool_,
                       .interrupted = interrupted});
  const Status status = RunTaskBlocking(queue_, copy.Run());
  if (copy.source_damaged()) damaged_.emplace(one.info.attempt, status.ToString());
  CAIRN_RETURN_IF_ERROR(status);
  return Copied{.info = one.info, .bytes = copy.bytes(), .time = std::chrono::steady_clock::now() - begun};
}

Status Mirror::Retire() {
  std::vector<const CheckpointInfo*> list;
  for (const StoredCheckpoint& one : there_) list.push_back(&one.info);
  const MirrorRules& rules = options_.rules;
  for (const std::uint64_t step : ChooseRetired(list, rules.keep_last, rules.keep_every)) {
    const auto one = std::ranges::find_if(there_, [step](const auto& c) { return c.info.step == step; });
    const Removal removal = RemoveCheckpointBlocking(
        queue_, target_->at(), step,
        {.attempt = one->info.attempt, .check_writer = [this] { return target_->CheckWriter(); }});
    if (!removal.status.ok())
      Note(fmt::format("step {} is kept at {} for now: {}", step, options_.target, removal.status.message()));
    if (removal.gone) there_.erase(one);
  }
  return target_->CheckWriter();
}

void Mirror::DropHolds() {
  Leftovers left;
  const Status dropped = RunTaskBlocking(queue_, cairn::DropHolds(holds_, left));
  if (!dropped.ok()) left.push_back(dropped.message());
  for (const std::string& why : left) Note(why);
}

void Mirror::Record(std::optional<MirroredCheckpoint> copying, const std::string& error) {
  std::vector<MirroredCheckpoint> there;
  // Until the target was looked at, what it had when the last mirror looked.
  if (target_ == nullptr) there = record_.checkpoints;
  for (const StoredCheckpoint& one : there_) {
    const auto same = [&one](const StoredCheckpoint& its) { return its.info.attempt == one.info.attempt; };
    if (std::ranges::any_of(here_, same)) copied_.insert(one.info.attempt);
    if (one.info.status.ok() && copied_.contains(one.info.attempt)) there.push_back(Named(one.info));
  }
  const bool same = record_.checkpoints == there && record_.copying == copying && record_.error == error;
  if (same && recorded_) return;
  record_.checkpoints = std::move(there);
  record_.copying = std::move(copying);
  record_.error = error;
  const Status written = RunTaskBlocking(queue_, WriteMirrorRecord(source_, id_, record_));
  if (!written.ok()) Note(written.message());
  recorded_ = written.ok();
}

void Mirror::Note(const std::string& note) {
  if (noted_.insert(note).second) options_.on_note(note);
}

}  // namespace cairn
