#include "mirror/target.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "mirror/copy.h"
#include "mirror/upload.h"
#include "store/names.h"
#include "store/remove.h"
#include "store/suspect.h"
#include "store/writer.h"

namespace cairn {
namespace {

// In an object store: how old it must be, so that no mirror can be at it any more.
constexpr std::chrono::hours kUnfinishedGrace{24};

bool IsDirectory(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Result<std::unique_ptr<MirrorTarget>> MirrorTarget::Open(IoQueue& queue, Spec spec) {
  std::unique_ptr<MirrorTarget> target(new MirrorTarget(queue, std::move(spec)));
  CAIRN_RETURN_IF_ERROR(target->spec_.bucket == nullptr ? target->OpenDirectory() : target->OpenBucket());
  return target;
}

Status MirrorTarget::CheckIsThere(bool has_writer) const {
  if (has_writer || spec_.expected == 0) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition,
               "{}: expected the {} checkpoints that were copied there, found no root{} To begin anew, remove {}",
               spec_.target, spec_.expected, spec_.bucket == nullptr ? ": is its disk mounted?" : ".", spec_.record);
}

// A target without an id gets the source's. It must not have another's checkpoints, which retention might then remove.
Status MirrorTarget::CheckIsFree(const std::vector<CheckpointInfo>& list) const {
  for (const CheckpointInfo& info : list) {
    if (info.root == spec_.id) continue;
    return Error(StatusCode::kFailedPrecondition,
                 "{} is no mirror of {}: it has no id, and step {} there is not of the root {}", spec_.target,
                 spec_.source, info.step, spec_.id);
  }
  return Status::Ok();
}

Status MirrorTarget::OpenDirectory() {
  const Result<std::optional<WriterRecord>> writer = ReadWriter(spec_.target);
  CAIRN_RETURN_IF_ERROR(
      CheckIsThere(writer.ok() ? writer->has_value() : writer.status().code() != StatusCode::kNotFound));
  const bool has_id = writer.ok() && *writer && !(*writer)->root.empty();
  if (IsDirectory(spec_.target) && !has_id) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> list, ListInfos(spec_.target));
    CAIRN_RETURN_IF_ERROR(CheckIsFree(list));
  }
  CAIRN_ASSIGN_OR_RETURN(root_, Root::Open(queue_, {.path = spec_.target,
                                                    .wait = spec_.wait,
                                                    .file_mode = spec_.file_mode,
                                                    .directory_mode = spec_.directory_mode,
                                                    .id = spec_.id}));
  for (const std::string& note : root_->notes()) spec_.on_note(note);
  Swept swept;
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, SweepTask(root_->at(), {}, {}, swept)));
  if (swept.unnamed) {
    // A mirror was killed right before the rename. It is copied again.
    swept.left.pop_back();
    CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, RemoveUnnamed(JoinPath(root_->at(), swept.unnamed->folder))));
  }
  for (const std::string& left : swept.left) spec_.on_note(left);
  CAIRN_RETURN_IF_ERROR(WriteLine(spec_.line));
  return Look();
}

Status MirrorTarget::OpenBucket() {
  CAIRN_RETURN_IF_ERROR(Look());
  CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> last, spec_.bucket->ReadWriter());
  CAIRN_RETURN_IF_ERROR(CheckIsThere(last.has_value()));
  if (last && !last->root.empty() && last->root != spec_.id) {
    return Error(StatusCode::kFailedPrecondition, "{} is not a copy of that root: expected the id {}, found {}",
                 spec_.target, spec_.id, last->root);
  }
  if (!last || last->root.empty()) {
    std::vector<CheckpointInfo> infos;
    for (const StoredCheckpoint& one : list_) infos.push_back(one.info);
    CAIRN_RETURN_IF_ERROR(CheckIsFree(infos));
  }
  writer_ = WriterRecord::Next(last);
  writer_.root = spec_.id;
  writer_.line = std::max(writer_.line, spec_.line);
  return spec_.bucket->WriteWriter(writer_);
}

Status MirrorTarget::CheckWriter() const {
  if (root_ != nullptr) return root_->CheckWriter();
  CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> found, spec_.bucket->ReadWriter());
  if (found && found->id == writer_.id) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "{} has another writer: {}", spec_.target,
               found ? found->Describe() : "its .writer is gone");
}

Status MirrorTarget::Check() const {
  if (root_ != nullptr) CAIRN_RETURN_IF_ERROR(root_->CheckPath());
  const Status writer = CheckWriter();
  return root_ != nullptr || writer.code() == StatusCode::kFailedPrecondition ? writer : Status::Ok();
}

Status MirrorTarget::WriteLine(std::uint64_t line) {
  if (root_ != nullptr) return RunTaskBlocking(queue_, root_->WriteLine(line));
  if (writer_.line >= line) return Status::Ok();
  CAIRN_RETURN_IF_ERROR(CheckWriter());
  WriterRecord next = writer_;
  next.line = line;
  CAIRN_RETURN_IF_ERROR(spec_.bucket->WriteWriter(next));
  writer_ = std::move(next);
  return Status::Ok();
}

Status MirrorTarget::WriteOpenings(Openings openings) {
  openings.push_back(record().OwnOpening());
  if (openings == record().openings) return Status::Ok();
  if (root_ != nullptr) return RunTaskBlocking(queue_, root_->WriteOpenings(std::move(openings)));
  CAIRN_RETURN_IF_ERROR(CheckWriter());
  WriterRecord next = writer_;
  next.openings = std::move(openings);
  CAIRN_RETURN_IF_ERROR(spec_.bucket->WriteWriter(next));
  writer_ = std::move(next);
  return Status::Ok();
}

Status MirrorTarget::Look() {
  if (root_ == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(list_, spec_.bucket->List());
    for (StoredCheckpoint& one : list_) one.info.status = spec_.bucket->CheckObjects(one);
    return Status::Ok();
  }
  CAIRN_RETURN_IF_ERROR(root_->CheckPath());
  CAIRN_ASSIGN_OR_RETURN(list_, ListCheckpoints(root_->at()));
  if (spec_.rules.keep_last == 0) return Status::Ok();
  for (const std::string& why : CheckNewestShards(list_, spec_.rules.keep_last, {})) {
    spec_.on_note(fmt::format("{}: {}", spec_.target, why));
  }
  return Status::Ok();
}

Status MirrorTarget::MarkSuspects(const std::set<std::string>& files) {
  for (StoredCheckpoint& copy : list_) {
    const bool links = std::ranges::any_of(copy.manifest.shards, [&](const ManifestShard& shard) {
      return shard.kept && files.contains(shard.file) && shard.kept->step != copy.info.step;
    });
    if (!links || copy.info.suspect || !copy.info.status.ok()) continue;
    if (root_ != nullptr) {
      const PathAt folder = JoinPath(root_->at(), StepName(copy.info.step));
      CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, MarkSuspectFolder(folder, spec_.file_mode)));
    } else {
      CAIRN_RETURN_IF_ERROR(spec_.bucket->MarkSuspect(copy.info));
    }
    copy.info.suspect = true;
  }
  return Status::Ok();
}

MirrorTarget::Copied MirrorTarget::Copy(const CopySpec& spec) {
  Copied copied = root_ == nullptr ? CopyToBucket(spec) : CopyToDirectory(spec);
  if (!copied.status.ok()) return copied;
  StoredCheckpoint one = spec.from.checkpoint;
  one.info.pinned = false;
  one.info.path = root_ == nullptr ? spec_.target + "/" + Bucket::FolderName(one.info)
                                   : JoinPath(root_->at(), StepName(one.info.step)).text();
  std::erase_if(list_, [&one](const auto& other) { return other.info.step == one.info.step; });
  list_.push_back(std::move(one));
  std::ranges::sort(list_, {}, [](const StoredCheckpoint& other) {
    return std::tuple(!other.info.status.ok(), other.info.line, other.info.step);
  });
  return copied;
}

MirrorTarget::Copied MirrorTarget::CopyToDirectory(const CopySpec& spec) {
  CheckpointCopy copy({.from = spec.from,
                       .bucket = spec.bucket,
                       .to = *root_,
                       .there = list_,
                       .whole = whole_,
                       .file_mode = spec_.file_mode,
                       .directory_mode = spec_.directory_mode,
                       .pool = spec.pool,
                       .limit = spec.limit,
                       .interrupted = spec.interrupted});
  const Status status = RunTaskBlocking(queue_, copy.Run());
  return {.status = status, .source_damaged = copy.source_damaged(), .bytes = copy.bytes()};
}

MirrorTarget::Copied MirrorTarget::CopyToBucket(const CopySpec& spec) {
  CheckpointUpload copy({.from = spec.from,
                         .to = *spec_.bucket,
                         .there = list_,
                         .pool = spec.pool,
                         .limit = spec.limit,
                         .check_writer = [this] { return CheckWriter(); },
                         .interrupted = spec.interrupted});
  const Status status = RunTaskBlocking(queue_, copy.Run());
  return {.status = status, .source_damaged = copy.source_damaged(), .bytes = copy.bytes()};
}

std::vector<std::uint64_t> MirrorTarget::Retired() const {
  std::vector<const CheckpointInfo*> infos;
  for (const StoredCheckpoint& one : list_) infos.push_back(&one.info);
  std::vector<std::uint64_t> retired = ChooseRetired(infos, spec_.rules.keep_last, spec_.rules.keep_every);
  if (root_ == nullptr) {
    const std::vector<std::uint64_t> damaged = ChooseOldDamaged(infos, spec_.rules);
    retired.insert(retired.end(), damaged.begin(), damaged.end());
  }
  return retired;
}

const StoredCheckpoint& MirrorTarget::At(std::uint64_t step) const {
  return *std::ranges::find_if(list_, [step](const auto& one) { return one.info.step == step; });
}

Status MirrorTarget::Retire(std::string_view due) {
  return root_ != nullptr ? RetireInDirectory() : RetireInBucket(due);
}

Status MirrorTarget::RetireInDirectory() {
  for (const std::uint64_t step : Retired()) {
    const Removal removal =
        RemoveCheckpointBlocking(queue_, root_->at(), step,
                                 {.attempt = At(step).info.attempt, .check_writer = [this] { return CheckWriter(); }});
    if (!removal.status.ok()) {
      spec_.on_note(fmt::format("step {} is kept at {} for now: {}", step, spec_.target, removal.status.message()));
    }
    if (removal.gone) std::erase_if(list_, [step](const auto& one) { return one.info.step == step; });
  }
  return CheckWriter();
}

Status MirrorTarget::RetireInBucket(std::string_view due) {
  Bucket& bucket = *spec_.bucket;
  for (const Bucket::Folder& folder : bucket.superseded()) {
    if (At(folder.step).info.status.ok()) CAIRN_RETURN_IF_ERROR(RemoveFromBucket(folder));
  }
  const double latest = SecondsSince1970() - std::chrono::duration<double>(kUnfinishedGrace).count();
  for (const Bucket::Folder& folder : bucket.unfinished()) {
    if (folder.time < latest && folder.attempt != due) CAIRN_RETURN_IF_ERROR(RemoveFromBucket(folder));
  }
  while (!Retired().empty()) {
    // Others are removed because of those that stay: they must be there now.
    CAIRN_RETURN_IF_ERROR(Look());
    const std::vector<std::uint64_t> retired = Retired();
    if (retired.empty()) break;
    CAIRN_RETURN_IF_ERROR(RemoveFromBucket(*bucket.Find(Bucket::FolderName(At(retired.front()).info))));
    std::erase_if(list_, [&](const auto& one) { return one.info.step == retired.front(); });
  }
  return Status::Ok();
}

Status MirrorTarget::RemoveFromBucket(const Bucket::Folder& folder) {
  CAIRN_RETURN_IF_ERROR(CheckWriter());
  return spec_.bucket->Remove(folder);
}

}  // namespace cairn
