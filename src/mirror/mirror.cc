#include "mirror/mirror.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "mirror/lock_watch.h"
#include "store/late_name.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/writer.h"

namespace cairn {
namespace {

constexpr std::uint64_t kChunkBytes = 4U << 20;
constexpr unsigned kFolderMode = 0755;
constexpr unsigned kPermissions = 0777;
// A checkpoint that retention removes between the list and the hold: how often to list again.
constexpr int kLooks = 10;
// Lines that the root may have begun while nobody mirrored it, before training went on from the target.
constexpr std::uint64_t kUnseenLines = 1000;

// More than what two changes of a directory may lie apart that have the same time.
constexpr std::chrono::seconds kClockStep{1};

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

/// And, if it is in an object store, opens that.
Result<std::string> RealPlace(const MirrorOptions& options, const std::string& place, std::unique_ptr<Bucket>& bucket) {
  if (!IsBucket(place)) return RealPath(place);
  CAIRN_ASSIGN_OR_RETURN(BucketAddress address, BucketAddress::Parse(place));
  Result<Rclone> rclone = options.rclone ? Result<Rclone>(*options.rclone) : Rclone::Find();
  CAIRN_RETURN_IF_ERROR(rclone.status());
  bucket = std::make_unique<Bucket>(*std::move(rclone), std::move(address));
  return bucket->text();
}

bool IsInside(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

/// Whether nothing can be made in the directory.
bool IsReadOnly(const UniqueFd& directory) {
  return ::faccessat(directory.get(), ".", W_OK, AT_EACCESS) != 0 && (errno == EROFS || errno == EACCES);
}

MirroredCheckpoint Named(const CheckpointInfo& info) {
  return {.step = info.step, .line = info.line, .attempt = info.attempt};
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
    : queue_(queue), options_(options), id_(MirrorId(options.target)), limit_(options.bandwidth) {}

Result<std::unique_ptr<Mirror>> Mirror::Open(IoQueue& queue, const MirrorOptions& options) {
  MirrorOptions real = options;
  std::unique_ptr<Bucket> source;
  std::unique_ptr<Bucket> target;
  CAIRN_ASSIGN_OR_RETURN(real.root, RealPlace(options, options.root, source));
  CAIRN_ASSIGN_OR_RETURN(real.target, RealPlace(options, options.target, target));
  std::error_code missing;
  if (source != nullptr && target != nullptr) {
    return Error(StatusCode::kInvalidArgument, "{} and its mirror {}: expected one of them to be a directory",
                 real.root, real.target);
  }
  if (IsInside(real.target, real.root) || IsInside(real.root, real.target) ||
      std::filesystem::equivalent(real.root, real.target, missing)) {
    return Error(StatusCode::kInvalidArgument, "{} and its mirror {}: expected neither to be in the other", real.root,
                 real.target);
  }
  std::unique_ptr<Mirror> mirror(new Mirror(queue, real));
  mirror->source_bucket_ = std::move(source);
  mirror->target_bucket_ = std::move(target);
  const std::uint64_t chunks = kCopyLanes * ChunksOfLane(mirror->source_bucket_.get());
  CAIRN_ASSIGN_OR_RETURN(mirror->pool_, BufferPool::Make(chunks * kChunkBytes, kChunkBytes, chunks));
  CAIRN_RETURN_IF_ERROR(mirror->OpenSource());
  CAIRN_RETURN_IF_ERROR(mirror->TakeLock());
  CAIRN_RETURN_IF_ERROR(mirror->CheckNotBack());
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

Status Mirror::CheckSource(const std::optional<WriterRecord>& writer) const {
  if (writer && !writer->root.empty()) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "{} has no id: expected a root that was opened for writing, found {}",
               options_.root, writer ? "one of an earlier version: open it once" : "no .writer");
}

Status Mirror::OpenSource() {
  if (source_bucket_ != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> writer, source_bucket_->ReadWriter());
    CAIRN_ASSIGN_OR_RETURN(here_, source_bucket_->List(Bucket::Rank::kWhole));  // The bucket itself may be missing.
    CAIRN_RETURN_IF_ERROR(CheckSource(writer));
    source_id_ = writer->root;
    source_line_ = writer->line;
    source_openings_ = writer->openings;
    looked_ = true;
    return Status::Ok();
  }
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue_, OpenTask(options_.root, source_fd_)));
  source_ = PathAt(source_fd_.get(), options_.root);
  CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> writer, ReadWriter(source_));
  CAIRN_RETURN_IF_ERROR(CheckSource(writer));
  source_id_ = writer->root;
  source_line_ = writer->line;
  source_openings_ = writer->openings;
  struct stat folder {};
  struct stat file {};
  if (::fstat(source_fd_.get(), &folder) == 0) directory_mode_ = folder.st_mode & kPermissions;
  if (::fstatat(source_fd_.get(), std::string(kWriterName).c_str(), &file, 0) == 0)
    file_mode_ = file.st_mode & kPermissions;
  return Status::Ok();
}

Status Mirror::TakeLock() {
  if (source_bucket_ != nullptr) return Status::Ok();
  const PathAt mirrors = JoinPath(source_, kMirrorsName);
  holds_ = JoinPath(mirrors, id_);
  if (IsReadOnly(source_fd_)) return Status::Ok();
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
  if (last && !options_.brings_back) record_ = *last;
  for (const MirroredCheckpoint& one : record_.checkpoints) copied_.insert(one.attempt);
  record_.target = options_.target;
  record_.copying.reset();
  return Status::Ok();
}

// Each of the two would raise the other's line counter for ever.
Status Mirror::CheckNotBack() const {
  if (source_bucket_ != nullptr || target_bucket_ != nullptr) return Status::Ok();
  const std::string back = MirrorId(options_.root);
  const PathAt folder = JoinPath(JoinPath(PathAt(options_.target), kMirrorsName), back);
  std::error_code unknown;
  if (!std::filesystem::is_directory(folder.text(), unknown)) return Status::Ok();
  const Result<std::optional<WriterLock>> lock = WriterLock::TryTake(folder, kMirrorFileMode);
  if (!lock.ok() || *lock) return Status::Ok();
  const std::optional<MirrorRecord> record = ReadMirrorRecord(PathAt(options_.target), back);
  return Error(StatusCode::kFailedPrecondition,
               "{} is mirrored to {} now, by {}: expected that to end before the way back", options_.target,
               options_.root, record ? record->Describe() : "another process");
}

Status Mirror::OpenTarget() {
  CAIRN_ASSIGN_OR_RETURN(target_, MirrorTarget::Open(queue_, {.target = options_.target,
                                                              .bucket = std::move(target_bucket_),
                                                              .source = options_.root,
                                                              .id = source_id_,
                                                              .line = source_line_ + kUnseenLines,
                                                              .file_mode = file_mode_,
                                                              .directory_mode = directory_mode_,
                                                              .wait = options_.wait,
                                                              .expected = record_.checkpoints.size(),
                                                              .record = holds_.text() + ".json",
                                                              .rules = options_.rules,
                                                              .on_note = [this](const auto& note) { Note(note); }}));
  follows_ = !options_.brings_back || target_->list().empty();
  return LookAtSource();
}

Status Mirror::CheckSourcePath() const {
  struct stat by_path {};
  struct stat by_fd {};
  if (::fstat(source_fd_.get(), &by_fd) != 0 || ::stat(options_.root.c_str(), &by_path) != 0 ||
      by_path.st_dev != by_fd.st_dev || by_path.st_ino != by_fd.st_ino) {
    return Error(StatusCode::kFailedPrecondition, "{} was moved or removed while it was mirrored", source_);
  }
  return Status::Ok();
}

Status Mirror::Check() const {
  if (source_bucket_ != nullptr) return target_->Check();
  CAIRN_RETURN_IF_ERROR(CheckSourcePath());
  if (lock_ && (!lock_->Named(holds_) || !lock_->Held())) {
    return Error(StatusCode::kFailedPrecondition, "{}: the mirror's lock was lost; another may have it now", holds_);
  }
  return target_->Check();
}

std::optional<std::chrono::nanoseconds> Mirror::LastChange() const {
  struct stat found {};
  if (source_bucket_ != nullptr || ::fstat(source_fd_.get(), &found) != 0) return std::nullopt;
  const auto change = std::chrono::seconds(found.st_mtim.tv_sec) + std::chrono::nanoseconds(found.st_mtim.tv_nsec);
  // The next change may get the same time from a clock of coarse steps.
  if (std::chrono::abs(std::chrono::system_clock::now().time_since_epoch() - change) < kClockStep) return std::nullopt;
  return change;
}

Status Mirror::LookAtSource() {
  if (looked_) return Status::Ok();
  if (source_bucket_ == nullptr) CAIRN_RETURN_IF_ERROR(CheckSourcePath());
  CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> writer,
                         source_bucket_ != nullptr ? source_bucket_->ReadWriter() : ReadWriter(source_));
  if (!writer || writer->root != source_id_) {
    return Error(StatusCode::kFailedPrecondition, "{} has another id: expected {}, found {}", options_.root, source_id_,
                 writer ? writer->root : "no .writer");
  }
  source_line_ = writer->line;
  source_openings_ = writer->openings;
  if (source_bucket_ != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(here_, source_bucket_->List(Bucket::Rank::kWhole));
    return Status::Ok();
  }
  static_cast<void>(ForgetCachedNames(source_));
  CAIRN_ASSIGN_OR_RETURN(here_, ListCheckpoints(source_));
  return Status::Ok();
}

Status Mirror::Look() {
  CAIRN_RETURN_IF_ERROR(LookAtSource());
  looked_ = false;
  CAIRN_RETURN_IF_ERROR(target_->Look());
  for (const StoredCheckpoint& one : here_) {
    if (!IsAnothers(one, target_->list(), copied_)) continue;
    Note(fmt::format("{}: step {} there is another save of line {}, which was not copied from {}: it is left as it is",
                     options_.target, one.info.step, one.info.line, options_.root));
  }
  // So that training that goes on from the target begins a line above all of this root.
  CAIRN_RETURN_IF_ERROR(target_->WriteLine(source_line_ + kUnseenLines));
  // And so that what a root in memory has is this root's there, too.
  if (follows_) CAIRN_RETURN_IF_ERROR(target_->WriteOpenings(source_openings_));
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
  return target_->MarkSuspects(files);
}

const StoredCheckpoint* Mirror::NextDue() const {
  const auto due = ChooseDue(here_, target_->list(), options_.rules, copied_, damaged_);
  return due.empty() ? nullptr : due.front();
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
    const std::optional<std::chrono::nanoseconds> change = LastChange();
    const std::optional<std::chrono::nanoseconds> listed = std::exchange(listed_, std::nullopt);
    // Many that are due need one list.
    const bool known = change && change == listed;
    CAIRN_RETURN_IF_ERROR(known ? target_->Check() : Look());
    CAIRN_RETURN_IF_ERROR(CheckManifests());
    const StoredCheckpoint* const due = NextDue();
    if (due == nullptr && known) continue;
    if (due == nullptr) {
      CAIRN_RETURN_IF_ERROR(target_->Retire({}));
      return std::optional<Copied>();
    }
    // A mirror that was killed, or a reader there, may have left more than the rules keep, and the disk may be full.
    const std::string attempt = due->info.attempt;
    CAIRN_RETURN_IF_ERROR(target_->Retire(attempt));
    Record(Named(due->info), record_.error);
    bool gone = false;
    const Result<Copied> copied = Copy(*due, interrupted, gone);
    DropHolds();
    if (gone && looks < kLooks) continue;
    CAIRN_RETURN_IF_ERROR(copied.status());
    copied_.insert(attempt);
    CAIRN_RETURN_IF_ERROR(target_->Retire({}));
    listed_ = change;
    return std::optional(*copied);
  }
}

// Of a manifest that cannot be read nothing may be known but its place.
Status Mirror::CheckManifests() {
  for (const StoredCheckpoint& one : here_) {
    const Status& status = one.info.status;
    if (status.ok() || one.info.step % options_.rules.every != 0) continue;
    if (damaged_.emplace(one.info.path, status.ToString()).second) return status;
  }
  return Status::Ok();
}

const CheckpointInfo* Mirror::newest() const {
  const auto good = std::find_if(here_.rbegin(), here_.rend(), [](const auto& one) { return one.info.status.ok(); });
  return good == here_.rend() ? nullptr : &good->info;
}

std::string Mirror::DamageLeft() const {
  for (const StoredCheckpoint& one : here_) {
    const auto found = damaged_.find(one.info.status.ok() ? one.info.attempt : one.info.path);
    if (found != damaged_.end()) return found->second;
  }
  return {};
}

Status Mirror::Hold(const StoredCheckpoint& one, HeldCheckpoint& held) {
  if (source_bucket_ == nullptr) return RunTaskBlocking(queue_, HoldCheckpoint(source_, holds_, one, held));
  held.checkpoint = one;
  CAIRN_RETURN_IF_ERROR(source_bucket_->CheckObjects(one));
  const Bucket::Folder* const folder = source_bucket_->Find(Bucket::FolderName(one.info));
  const auto& index = one.manifest.index;
  held.index = index && folder->Length(index->file) == index->length;
  CAIRN_ASSIGN_OR_RETURN(held.manifest, source_bucket_->ReadManifest(one.info));
  return Status::Ok();
}

Result<Mirror::Copied> Mirror::Copy(const StoredCheckpoint& one, const std::function<bool()>& interrupted, bool& gone) {
  const auto begun = std::chrono::steady_clock::now();
  HeldCheckpoint held;
  const Status holds = Hold(one, held);
  gone = holds.code() == StatusCode::kNotFound;
  if (holds.code() == StatusCode::kCorrupt) damaged_.emplace(one.info.attempt, holds.ToString());
  CAIRN_RETURN_IF_ERROR(holds);
  if (!held.not_linked.ok()) {
    Note(fmt::format("{}: its checkpoints are locked while they are copied, so that retention waits for them: {}",
                     source_, held.not_linked.message()));
  }
  LockWatch watch(held, options_.lock_patience);
  const std::function<bool()> stop = [&] { return !watch.GoesOn() || interrupted(); };
  const MirrorTarget::Copied copied = target_->Copy(
      {.from = held, .bucket = source_bucket_.get(), .pool = *pool_, .limit = limit_, .interrupted = stop});
  if (!copied.status.ok() && !watch.GoesOn()) {
    return Error(StatusCode::kDeadlineExceeded,
                 "step {} was not copied: nothing happened for {}, and {} is locked no longer than that", one.info.step,
                 HumanDuration(options_.lock_patience), source_);
  }
  const Status status = AsInRoot(copied.status);
  if (copied.source_damaged) damaged_.emplace(one.info.attempt, status.ToString());
  CAIRN_RETURN_IF_ERROR(status);
  return Copied{.info = one.info, .bytes = copied.bytes, .time = std::chrono::steady_clock::now() - begun};
}

Status Mirror::AsInRoot(const Status& status) const {
  const std::string held = holds_.text() + "/";
  std::string text = status.message();
  for (std::size_t at = text.find(held); lock_ && at != std::string::npos; at = text.find(held, at)) {
    text.replace(at, held.size(), source_.text() + "/");
  }
  return {status.code(), std::move(text), status.detail()};
}

void Mirror::DropHolds() {
  if (!lock_) return;
  Leftovers left;
  const Status dropped = RunTaskBlocking(queue_, cairn::DropHolds(holds_, left));
  if (!dropped.ok()) left.push_back(dropped.message());
  for (const std::string& why : left) Note(why);
}

void Mirror::Record(std::optional<MirroredCheckpoint> copying, const std::string& error) {
  std::vector<MirroredCheckpoint> there;
  std::vector<StoredCheckpoint> listed;
  // Until the target was looked at, what it had when the last mirror looked.
  if (target_ == nullptr) {
    there = record_.checkpoints;
  } else {
    listed = target_->list();
  }
  std::set<std::string_view> attempts;
  for (const StoredCheckpoint& one : here_) attempts.insert(one.info.attempt);
  for (const StoredCheckpoint& one : listed) {
    if (attempts.contains(one.info.attempt)) copied_.insert(one.info.attempt);
    if (one.info.status.ok() && copied_.contains(one.info.attempt)) there.push_back(Named(one.info));
  }
  const bool same = record_.checkpoints == there && record_.copying == copying && record_.error == error;
  if (same && recorded_) return;
  record_.checkpoints = std::move(there);
  record_.copying = std::move(copying);
  record_.error = error;
  if (!lock_ || options_.brings_back) return;
  const Status written = RunTaskBlocking(queue_, WriteMirrorRecord(source_, id_, record_));
  if (!written.ok()) Note(written.message());
  recorded_ = written.ok();
}

void Mirror::Note(const std::string& note) {
  if (noted_.insert(note).second) options_.on_note(note);
}

}  // namespace cairn
