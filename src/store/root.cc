// Step 0 of the commit protocol (see attempt.cc).

#include "store/root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "io/io_task.h"
#include "store/late_name.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/remove.h"

namespace cairn {
namespace {

enum class Found : std::uint8_t { kDirectory, kNothing };

Result<Found> Look(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return Found::kNothing;
    if (errno == ENOTDIR) return Error(StatusCode::kInvalidArgument, "{}: a parent of it is not a directory", path);
    return ErrnoStatus(errno, "looking for " + path);
  }
  if (!S_ISDIR(found.st_mode)) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a directory for checkpoints, found a file", path);
  }
  return Found::kDirectory;
}

std::string Parent(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }

/// Makes the directory entry in `parent` durable.
IoTask<Status> FsyncParent(std::string parent, bool made) {
  UniqueFd fd;
  IoResult result = co_await io::OpenDirectory(parent, /*follow=*/true, fd);
  if (result.ok()) result = co_await io::Fsync(fd, parent);
  // If nothing was made in this parent, and it cannot be opened or synced, it is somebody else's.
  const bool foreign =
      result.error == EACCES || result.error == EPERM || result.error == EROFS || result.error == EINVAL;
  if (foreign && !made) co_return Status::Ok();
  co_return result.status;
}

IoTask<Status> MakeDirectory(std::string path, unsigned mode) {
  IoResult made = co_await io::MakeDirectory(path, mode);
  if (!made.ok() && made.error != EEXIST) co_return made.status;  // EEXIST: another process was faster.
  co_return co_await FsyncParent(Parent(path), /*made=*/true);
}

/// Makes the directory and its missing parents from the top, each durable before the next. An existing one may come
/// from a process that was killed before its fsync, so its parent is fsynced too.
Status MakeDirectories(IoQueue& queue, const std::string& path, unsigned mode) {
  std::vector<std::string> missing;
  std::string existing = path;
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const Found found, Look(existing));
    if (found == Found::kDirectory) break;
    missing.push_back(existing);
    existing = Parent(existing);
  }
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, FsyncParent(Parent(existing), /*made=*/false)));
  for (auto directory = missing.rbegin(); directory != missing.rend(); ++directory) {
    CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, MakeDirectory(*directory, mode)));
  }
  CAIRN_ASSIGN_OR_RETURN(const Found found, Look(path));
  if (found == Found::kDirectory) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "{}: it was created but is missing now", path);
}

Status CheckWritable(const PathAt& path) {
  if (::faccessat(path.directory(), path.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return Status::Ok();
  return ErrnoStatus(errno, "writing into " + path.text());
}

IoTask<Status> OpenTask(const std::string& path, UniqueFd& fd) {
  co_return co_await io::OpenDirectory(path, /*follow=*/true, fd);
}

/// The last writer of the root, for messages.
std::string LastWriter(const PathAt& root) {
  const Result<std::optional<WriterRecord>> writer = ReadWriter(root);
  return writer.ok() && *writer ? (*writer)->Describe() : "another process";
}

}  // namespace

Status Root::OpenDirectory(IoQueue& queue, const std::string& path) {
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, OpenTask(path, directory_)));
  at_ = PathAt(directory_.get(), path);
  return CheckWritable(at_);
}

Status Root::TakeLock(IoQueue& queue, const RootOptions& options) {
  const Deadline deadline = Deadline::In(options.wait);
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(std::optional<WriterLock> lock, WriterLock::TryTake(at_, options.file_mode));
    if (lock) {
      lock_.emplace(*std::move(lock));
      break;
    }
    // The descriptor of this failed try is closed, so a hit is another lock of this process.
    const WriterLock::Here here = WriterLock::HeldHere(at_);
    const bool mine = here == WriterLock::Here::kOpen;
    const std::string holder =
        here == WriterLock::Here::kNo ? LastWriter(at_) : fmt::format("this process ({})", ::getpid());
    if (!options.take_over && (mine || deadline.passed())) {
      if (here == WriterLock::Here::kLeaving) {
        return Error(StatusCode::kFailedPrecondition,
                     "{} was closed in {}, but what goes on behind that has not ended: open it again later, or with a "
                     "longer open_timeout",
                     path(), holder);
      }
      return Error(StatusCode::kFailedPrecondition,
                   mine ? StatusDetail::kOpenInThisProcess : StatusDetail::kOpenElsewhere,
                   "{} is already open for writing in {}", path(), holder);
    }
    if (deadline.passed()) {
      notes_.push_back(fmt::format("{} was taken over from {}, which still held its lock", path(), holder));
      CAIRN_ASSIGN_OR_RETURN(WriterLock own, WriterLock::Replace(at_, options.file_mode));
      lock_.emplace(std::move(own));
      break;
    }
    const Deadline again = Deadline::At(std::min(Deadline::In(kLockInterval).when(), deadline.when()));
    CAIRN_RETURN_IF_ERROR(queue.RunOnce(again).status());
  }
  if (!lock_->locks()) {
    notes_.push_back(
        fmt::format("{}: its filesystem does not support locks; only {} shows a second writer, which takes over",
                    path(), kWriterName));
  }
  return Status::Ok();
}

IoTask<Status> Root::NameWriter() {
  const Result<std::optional<WriterRecord>> last = ReadWriter(at_);
  if (last.status().code() == StatusCode::kFailedPrecondition) co_return last.status();  // It may not be read.
  if (!last.ok()) {
    notes_.push_back(
        fmt::format("{}; the root gets a new id, and lines above those that are listed", last.status().message()));
  }
  writer_ = WriterRecord::Next(last.ok() ? *last : std::nullopt);
  if (in_memory_) {
    writer_.openings = last.ok() && *last ? (*last)->openings : Openings();
    writer_.alone = false;
  }
  if (writer_.root.empty()) writer_.root = expected_id_.empty() ? MakeUuid() : expected_id_;
  if (!expected_id_.empty() && writer_.root != expected_id_) {
    co_return Error(StatusCode::kFailedPrecondition, "{} is not a copy of that root: expected the id {}, found {}",
                    path(), expected_id_, writer_.root);
  }
  co_return co_await WriteRecord(writer_, WriterCheck());
}

IoTask<Status> Root::WriteLine(std::uint64_t line) {
  if (line <= writer_.line) co_return Status::Ok();
  WriterRecord record = writer_;
  record.line = line;
  CAIRN_CO_RETURN_IF_ERROR(co_await ChangeRecord(std::move(record)));
  writer_.line = line;
  co_return Status::Ok();
}

IoTask<Status> Root::KeepOpening() {
  WriterRecord record = writer_;
  record.alone = false;
  CAIRN_CO_RETURN_IF_ERROR(co_await ChangeRecord(std::move(record)));
  writer_.alone = false;
  co_return Status::Ok();
}

IoTask<Status> Root::WriteOpenings(Openings openings) {
  WriterRecord record = writer_;
  record.openings = openings;
  CAIRN_CO_RETURN_IF_ERROR(co_await ChangeRecord(std::move(record)));
  writer_.openings = std::move(openings);
  co_return Status::Ok();
}

IoTask<Status> Root::ChangeRecord(WriterRecord record) {
  CAIRN_CO_RETURN_IF_ERROR(co_await WriteRecord(std::move(record), [this] { return CheckWriter(); }));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(directory_, path()));
  co_return Status::Ok();
}

IoTask<Status> Root::WriteRecord(WriterRecord record, WriterCheck check) {
  const std::string text = EncodeWriter(record);
  const PathAt draft = JoinPath(at_, WriterDraftName(MakeUuid()));
  Status replaced = co_await ReplaceRecord(draft, text, check);
  if (replaced.ok()) co_return replaced;
  static_cast<void>(co_await io::Unlink(draft));
  if (replaced.code() != StatusCode::kNoSpace) co_return replaced;
  CAIRN_CO_RETURN_IF_ERROR(co_await cairn::CheckWriter(at_, check));
  const Status overwritten = co_await OverwriteRecord(text);
  co_return overwritten.ok() ? overwritten : replaced;
}

IoTask<Status> Root::ReplaceRecord(const PathAt& draft, const std::string& text, const WriterCheck& check) {
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(draft, 0, file_mode_, fd));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::WriteAll(fd, draft.text(), 0, std::as_bytes(std::span(text)), /*alignment=*/1));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(fd, draft.text()));
  CAIRN_CO_RETURN_IF_ERROR(co_await cairn::CheckWriter(at_, check));
  co_return co_await io::Rename(draft, JoinPath(at_, kWriterName), RenameMode::kPlain);
}

// Needs no new byte where files are overwritten in place. One write covers the whole record, which is within a sector:
// a power cut leaves the old one or the new one, and an unreadable one counts as another writer's too.
IoTask<Status> Root::OverwriteRecord(std::string text) {
  const PathAt path = JoinPath(at_, kWriterName);
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK, fd));
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) co_return ErrnoStatus(errno, "stat of " + path.text());
  // Another name may be the record of another root: a copy of hard links.
  if (!S_ISREG(found.st_mode) || found.st_nlink != 1) {
    co_return Error(StatusCode::kFailedPrecondition, "{}: not a regular file of one name", path);
  }
  // Not truncated: the last blocks that it gave up could be somebody else's before they are needed again.
  const auto length = static_cast<std::size_t>(std::min<off_t>(found.st_size, kMaxRecordBytes));
  if (text.size() < length) text.resize(length, '\n');
  CAIRN_CO_RETURN_IF_ERROR(co_await io::WriteAll(fd, path.text(), 0, std::as_bytes(std::span(text)), /*alignment=*/1));
  co_return co_await io::Fsync(fd, path.text());
}

/// Skips a folder that cannot be renamed because it is in a lower layer of an overlay: nobody writes it.
IoTask<Status> Root::RenameAway(const PathAt& path, const PathAt& to) {
  IoResult renamed = co_await io::Rename(path, to, RenameMode::kPlain);
  if (renamed.error == EXDEV) {
    notes_.push_back(fmt::format("{} is left alone: {}", path.text(), renamed.status.message()));
  } else if (!renamed.ok() && renamed.error != ENOENT) {
    co_return renamed.status;
  }
  co_return Status::Ok();
}

IoTask<Status> Root::RenameAllAway() {
  const Result<std::vector<FolderEntry>> entries = ListRoot(at_);
  CAIRN_CO_RETURN_IF_ERROR(entries.status());
  std::set<std::string> there;
  for (const FolderEntry& entry : *entries) there.insert(entry.name);
  for (const FolderEntry& entry : *entries) {
    const PathAt path = JoinPath(at_, entry.name);
    if (!entry.directory && IsDraft(entry.name)) {
      IoResult removed = co_await io::Unlink(path);
      if (!removed.ok() && removed.error != ENOENT) co_return removed.status;
    }
    if (!entry.directory || !IsAttemptName(entry.name)) continue;
    // Named after the attempt, so that the sweep can tell it from what retention has retired.
    std::string retired = RetiredName(entry.name.substr(AttemptName({}).size()));
    if (there.contains(retired)) retired = RetiredName(MakeUuid());
    CAIRN_CO_RETURN_IF_ERROR(co_await RenameAway(path, JoinPath(at_, retired)));
  }
  co_return co_await PutBackReplaced();
}

IoTask<Status> Root::Fence() {
  CAIRN_CO_RETURN_IF_ERROR(co_await NameWriter());
  CAIRN_CO_RETURN_IF_ERROR(co_await RenameAllAway());
  // Renames of a killed writer may not be on the disk yet. They must be before anything is listed or touched.
  co_return co_await io::Fsync(directory_, path());
}

// Call it only when no attempt can take these names any more.
IoTask<Status> Root::PutBackReplaced() {
  const Result<std::vector<FolderEntry>> entries = ListRoot(at_);
  CAIRN_CO_RETURN_IF_ERROR(entries.status());
  std::set<std::string> there;
  for (const FolderEntry& entry : *entries) there.insert(entry.name);
  for (const FolderEntry& entry : *entries) {
    const std::optional<std::uint64_t> step = entry.directory ? ParseReplacedName(entry.name) : std::nullopt;
    if (!step) continue;
    const bool back = there.insert(StepName(*step)).second;
    if (back) notes_.push_back(fmt::format("step {} is restored: a save that was replacing it was cut off", *step));
    const PathAt to = JoinPath(at_, back ? StepName(*step) : RetiredName(MakeUuid()));
    CAIRN_CO_RETURN_IF_ERROR(co_await RenameAway(JoinPath(at_, entry.name), to));
  }
  co_return Status::Ok();
}

IoTask<Status> Root::MakeRoom() {
  // Attempts lose their names first, as in Fence: a late commit of one either came before or finds nothing. What needs
  // room itself stays.
  static_cast<void>(co_await RenameAllAway());
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(directory_, path()));
  Swept swept;
  const MemoryPlace nowhere;
  CAIRN_CO_RETURN_IF_ERROR(co_await SweepTask(at_, {}, nowhere, swept));
  notes_.insert(notes_.end(), swept.left.begin(), swept.left.end());
  co_return Status::Ok();
}

Status Root::TakeRoot(IoQueue& queue, const RootOptions& options) {
  CAIRN_RETURN_IF_ERROR(TakeLock(queue, options));
  Status fenced = RunTaskBlocking(queue, Fence());
  if (fenced.code() != StatusCode::kNoSpace) return fenced;
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, MakeRoom()));
  return RunTaskBlocking(queue, Fence());
}

Status Root::ExplainNoSpace(const Status& why) const {
  const Result<std::vector<FolderEntry>> entries = ListRoot(at_);
  std::size_t steps = 0;
  if (entries.ok()) {
    steps = static_cast<std::size_t>(std::count_if(entries->begin(), entries->end(), [](const FolderEntry& entry) {
      return entry.directory && ParseStepName(entry.name).has_value();
    }));
  }
  return Error(StatusCode::kNoSpace,
               "{} cannot be opened for writing: {}; it holds {} checkpoints and nothing that killed runs left. Free a "
               "little on its filesystem: other files, or the folder {}/step-... of a checkpoint that nobody needs. "
               "Opening read_only needs no space",
               path(), why.message(), steps, path());
}

Result<std::unique_ptr<Root>> Root::Open(IoQueue& queue, const RootOptions& options) {
  if (options.path.empty()) return Error(StatusCode::kInvalidArgument, "the root's path is empty");
  std::error_code error;
  std::string path = std::filesystem::absolute(options.path, error).string();
  if (error) return ErrnoStatus(error.value(), "looking for " + options.path);
  while (path.size() > 1 && path.back() == '/') path.pop_back();

  std::unique_ptr<Root> root(new Root);
  root->at_ = path;
  root->file_mode_ = options.file_mode;
  root->expected_id_ = options.id;
  root->in_memory_ = options.in_memory;
  if (options.read_only || !options.coordinator) {
    CAIRN_ASSIGN_OR_RETURN(const Found found, Look(path));
    if (found == Found::kNothing && options.read_only) {
      return Error(StatusCode::kNotFound, "{}: no such directory, and the root is opened read-only", path);
    }
    if (found == Found::kDirectory && !options.read_only) CAIRN_RETURN_IF_ERROR(root->OpenDirectory(queue, path));
    return root;
  }
  CAIRN_RETURN_IF_ERROR(MakeDirectories(queue, path, options.directory_mode));
  CAIRN_RETURN_IF_ERROR(root->OpenDirectory(queue, path));
  const Status taken = root->TakeRoot(queue, options);
  if (taken.code() == StatusCode::kNoSpace) return root->ExplainNoSpace(taken);
  CAIRN_RETURN_IF_ERROR(taken);
  return root;
}

void Root::Leave() {
  if (lock_) lock_->Leave();
}

Status Root::CheckWriter() const {
  if (!lock_) return Status::Ok();
  const bool in_place = lock_->InPlace(at_);
  if (!lock_->Held()) lost_ = true;
  // By its content, not its inode: a successor on a full disk overwrites it.
  const Result<std::optional<WriterRecord>> found = ReadWriter(at_);
  if (!found.ok() && found.status().code() != StatusCode::kCorrupt) return found.status();
  // A new writer leaves a record. If somebody has removed it, the lock is enough, if locks are supported.
  const bool gone = found.ok() && !*found;
  // While this lock is held, one of a lower epoch is no successor's: an earlier writer has written its line late.
  const auto of_this = [&](const WriterRecord& one) {
    return one.id == writer_.id || (lock_->locks() && one.epoch < writer_.epoch);
  };
  const bool own = found.ok() && *found && of_this(**found);
  const bool named = in_place && (own || (gone && lock_->locks() && lock_->Named(at_)));
  if (named && !lost_) return Status::Ok();
  struct stat directory {};
  if (::fstat(directory_.get(), &directory) == 0 && directory.st_nlink == 0) {
    return Error(StatusCode::kNotFound, "{} was removed while it was open for writing", at_);
  }
  const std::string who = found.ok() && *found && !own ? (*found)->Describe() : "another process";
  const std::string what =
      lost_ ? fmt::format("the lock of {} was lost: the NFS server may have restarted; {} may have it now", at_, who)
            : fmt::format("{} was taken over by {}", at_, who);
  return Error(StatusCode::kFailedPrecondition,
               "{}: this writer, of epoch {}, no longer commits or removes anything there{}", what, writer_.epoch,
               lost_ ? "; open the root again" : "");
}

Status Root::CheckSeen(const std::string& writer_id) const {
  static_cast<void>(ForgetCachedNames(at_));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<WriterRecord> found, ReadWriter(at_));
  if (found && found->id == writer_id) return Status::Ok();
  return Error(StatusCode::kNotFound, "{}",
               found ? fmt::format("its writer is {}", found->Describe()) : "it has no writer");
}

Status Root::CheckPath() const {
  struct stat by_path {};
  struct stat by_fd {};
  if (!directory_.valid() || ::fstat(directory_.get(), &by_fd) != 0) return Status::Ok();
  const bool there = ::stat(path().c_str(), &by_path) == 0;
  if (there && by_path.st_dev == by_fd.st_dev && by_path.st_ino == by_fd.st_ino) return Status::Ok();
  std::error_code error;
  const auto now = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", directory_.get()), error);
  return Error(StatusCode::kFailedPrecondition, "{} {}: the directory that this process writes to {}", path(),
               there ? "is another directory now" : "no longer exists",
               error || by_fd.st_nlink == 0 ? "was moved or removed" : fmt::format("was moved to {}", now.string()));
}

}  // namespace cairn
