// The commit protocol. On every rank, each numbered step completes before the next begins.
//
// 0. Open (root.cc). Create the root and fsync its parent. Hold a descriptor of the directory: everything below is
//    relative to it, so that moving the directory moves the writer with it. Take the writer's lock, an
//    open-file-description lock on `.lock`. Name this writer in `.writer`, which a rename replaces and which keeps the
//    root's id and line counter; on a full disk it is overwritten in place. (If that needs room too: do the next steps
//    up to the fsync of the root, remove what is retired and spare, which is no checkpoint's and which only the holder
//    of the lock may touch, and begin again.) Rename every existing attempt away. Rename each `.replaced-N-*` back to
//    step-N if there is no step-N, and retire the others. Fsync the root, so that every rename that a crash left half
//    done is either on the disk or undone before anything is removed or listed. Only then list it. The renames are the
//    fence: a late commit of an earlier writer either finds its attempt gone or came before the list. Each commit
//    checks before its rename, and each retirement before and after its rename, that `.writer` and `.lock` are still
//    this writer's, and that it still has the lock, which an NFS server may have lost. If not, it fails, and nothing is
//    removed any more; a lost lock is never taken again, because another may have been the writer meanwhile. Then only
//    the coordinator sweeps, while training starts: it names no attempt for a commit before it has swept, and without a
//    name no rank begins. Readers take no lock and never sweep.
// 1. Begin. The coordinator creates `.attempt-<uuid>/` and only then announces it, with its step. On the others the
//    call of Save for that step joins it, and opens the folder; an attempt that no call joins is refused (pairing.h).
//    If the folder is not there, the rank looks for it for a while (late_name.h): its root may be a different
//    directory, or show names late. Then it tells the coordinator, whose outcome says why if it has given the attempt
//    up. Each rank checks the free space, then creates its shard file in the folder and allocates its blocks. The file
//    is new, or a spare of this rank (see 6), whose blocks count as free. A spare is opened and claimed (a regular file
//    of this user with one name and a write lease on it, so nobody else has it open or mapped), renamed into the
//    attempt, and checked again; then its first block is zeroed and the lease released. If a check fails, or somebody
//    opened it meanwhile, it is unlinked and a new file created. Until the commit nobody reads it, like every file of
//    an attempt: its old bytes are no loss, and no old header precedes new data.
// 2. Write the chunks, each at its offset. Check every completion, because an O_DIRECT write reports its error only
//    there: a later fsync succeeds. The aligned rest of a short write is resubmitted; any other error is final. If the
//    filesystem rejects O_DIRECT, at the open or at the first write, writes are buffered, and each is followed by its
//    write-back. That consumes the descriptor's write error, so its result is checked and final too, and the fsync uses
//    the same descriptor.
// 3. Seal. Write the header last; truncate the padded tail; fsync the shard once, never retried; fsync the attempt's
//    folder, and the folder that a spare was taken from: once the step is durable, no other name refers to the file.
//    The fsyncs run in parallel, together with a check that the folder still holds this very file at its full length.
// 4. The ranks agree (see src/engine/coordination.h). Each sends the coordinator one message: prepared or failed. The
//    coordinator announces the attempt, and then the outcome or the first failure. As each message arrives, the
//    coordinator checks that rank's shard through its own descriptor of the folder (shard_check.cc): it must have the
//    length and the header digest that its rank reported; the header's contents go into the index. A shard that is not
//    there is looked for, too. Messages are only hints: a rank that is prepared and hears nothing more looks at the
//    disk. A single rank needs no messages and does 3 and 5 in one: header and manifest are written in parallel, then
//    everything is fsynced in parallel, then renamed. Nothing reads the attempt before the rename, so it does not
//    matter which of the writes survive a crash.
// 5. Commit (commit.cc), on the coordinator, only after every shard was found. A save that continues from a restore is
//    of a line that the restore began. Before anything of its commit, the line is made the counter in `.writer`, as at
//    the opening: draft, fsync, a look whether another writer has taken over, rename, fsync of the root
//    (Root::WriteLine; once for a line, see src/engine/line_record.h). So a line that has a checkpoint is never begun
//    again. A writer that was displaced between that look and the rename puts its own record back: its successor, which
//    holds the lock, knows it by its lower epoch. With several ranks the index is written first, then the manifest,
//    which names it. Both, the step's pin if it is to have one, and the attempt's folder are fsynced; the folder is
//    renamed to step-N without replacing; the root is fsynced. So no retirement sees the step before its pin. An old
//    step-N is exchanged for it, and its pin is copied; before all this the commit waits until nobody reads the old
//    one, up to a deadline, and locks readers out. If the filesystem cannot exchange names, the old one is first
//    renamed to `.replaced-N-<attempt>` and the root fsynced, so that no power cut keeps the second rename without the
//    first; leftovers of earlier replacements of the step are retired before. If the root's last fsync fails, the
//    outcome is unknown: the step is not acknowledged, and the folder is not removed. If the rename fails and the
//    attempt's name no longer refers to its folder, the coordinator looks for step-N: either it is there, or somebody
//    took the attempt away. A rank that hears nothing looks for step-N with its attempt id and fsyncs the root itself
//    (FindCommitted). After the deadline it renames the attempt to `.retired-<uuid>` and fsyncs the root
//    (AbortAttempt). Commit and abort rename the same name, so one of them wins: a rank that has renamed the folder
//    that it has open knows that the save has failed; one that comes too late looks for step-N again. The coordinator
//    gives up a failed attempt in the same way, with everything that the others have written into it, without waiting
//    for them. A save that the disk has not answered for stall_timeout is given up: not once the rename is submitted,
//    whose outcome is unknown until the disk answers, and right before it the commit looks whether it was given up.
// 6. Retire (remove.cc). Only now is the save durable, and only now may older checkpoints go. First the new step is
//    looked for by its name: if a disk has lost its rename, nothing goes, also not what it replaced, and it does not
//    count any more. Rename step-N to `.retired-<uuid>` and fsync the root. Until that returns, nothing in the folder
//    is touched, because a power cut could bring the name back. What step-N replaced is retired before it, if it still
//    exists, so that no opening writer takes it for step-N. A checkpoint that is being read has a shared lock on its
//    manifest, and stays. Then unlink its files. With recycling, shard files that nobody else has open, mapped or
//    linked are kept, and the folder is renamed to the first free of `.spare-0`, `.spare-1` and so on: for every rank,
//    files under these names belong durably to no checkpoint. Spares and attempts in flight together are one more than
//    the attempts that may be in flight, so that consecutive saves always find a spare. Spares are unlinked when the
//    disk is full, and at the end. A sweep keeps them and makes more from the attempts and removals that a killed
//    writer left, which belong to no checkpoint either. Writes that the dead process still has in flight keep its file
//    open, which the lease detects. It leaves one complete attempt (unnamed.h) until the next save is durable: a disk
//    may have lost the rename of a save that was acknowledged.

#include "store/attempt.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/space.h"

namespace cairn {
namespace {

alignas(kBlock) constexpr std::array<std::byte, kBlock> kZeros{};

IoTask<Status> Refused(Status why) { co_return why; }

}  // namespace

Attempt::Attempt(IoQueue& queue, AttemptSpec spec)
    : queue_(queue),
      spec_(std::move(spec)),
      shard_(JoinPath(folder().path(), ShardName(spec_.shard))),
      laid_out_(AlignUp(spec_.file_bytes, kBlock)),
      spare_(root(), spec_.spare_folders, ShardName(spec_.shard), spec_.file_mode, spec_.not_recycled) {}

const char* Attempt::StageName(Stage stage) {
  switch (stage) {
    case Stage::kNew:
      return "new";
    case Stage::kWriting:
      return "being written";
    case Stage::kSealed:
      return "sealed";
    case Stage::kCommitted:
      return "committed";
    case Stage::kAbandoned:
      return "abandoned";
  }
  return "?";
}

Status Attempt::Admit(Stage wanted, const char* call) const {
  if (!status_.ok()) return status_;
  const bool many = wanted == Stage::kWriting && stage_ == Stage::kWriting && std::string_view(call) == "Write";
  if (stage_ == wanted && (in_flight_ == 0 || many)) return Status::Ok();
  return Error(StatusCode::kInternal, "{} of an attempt at step {} that is {}, with {} calls in flight", call,
               spec_.step, StageName(stage_), in_flight_);
}

void Attempt::Run(Status refusal, IoTask<Status> task, Stage then, StatusDone done) {
  if (!refusal.ok()) return RunTask(queue_, Refused(std::move(refusal)), std::move(done));
  ++in_flight_;
  RunTask(queue_, Explain(std::move(task)), [this, then, done = std::move(done)](Status status) {
    --in_flight_;
    if (status.ok()) stage_ = then;
    if (status_.ok()) status_ = status;
    done(std::move(status));
  });
}

IoTask<Status> Attempt::Explain(IoTask<Status> task) {
  Status status = co_await task;
  const bool vanished = status.code() == StatusCode::kNotFound || status.code() == StatusCode::kCorrupt;
  if (!vanished) co_return status;
  CAIRN_CO_RETURN_IF_ERROR(co_await CheckWriter(root(), spec_.check_writer));
  if (folder().open()) CAIRN_CO_RETURN_IF_ERROR(co_await spec_.folder->CheckThere(status));
  co_return status;
}

void Attempt::Begin(StatusDone done) {
  Run(Admit(Stage::kNew, "Begin"), BeginTask(), Stage::kWriting, std::move(done));
}

void Attempt::Write(std::uint64_t offset, Bytes memory, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "Write");
  if (refusal.ok()) refusal = CheckRange(offset, memory);
  Run(std::move(refusal), WriteTask(offset, memory), Stage::kWriting, std::move(done));
}

void Attempt::Seal(Bytes header, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "Seal");
  if (refusal.ok()) refusal = CheckRange(0, header);
  Run(std::move(refusal), SealTask(header), Stage::kSealed, std::move(done));
}

void Attempt::Commit(const Manifest& manifest, std::vector<std::string> index_runs, bool replace, StatusDone done) {
  Status refusal = Admit(Stage::kSealed, "Commit");
  if (refusal.ok()) refusal = CheckManifest(manifest);
  Run(std::move(refusal), CommitTask(manifest, std::move(index_runs), replace, {}), Stage::kCommitted, std::move(done));
}

void Attempt::SealAndCommit(Bytes header, const Manifest& manifest, bool replace, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "SealAndCommit");
  if (refusal.ok()) refusal = CheckRange(0, header);
  if (refusal.ok()) refusal = CheckManifest(manifest);
  Run(std::move(refusal), CommitTask(manifest, {}, replace, header), Stage::kCommitted, std::move(done));
}

bool Attempt::GiveUp(const Status& why) {
  if (gate_.passed) return false;
  gate_.given_up = why;
  if (status_.ok()) status_ = why;
  return true;
}

void Attempt::Abandon(StatusDone done) {
  if (in_flight_ != 0) {
    return RunTask(
        queue_,
        Refused(Error(StatusCode::kInternal, "Abandon of step {} with {} calls in flight", spec_.step, in_flight_)),
        std::move(done));
  }
  const Stage then = stage_ == Stage::kCommitted ? Stage::kCommitted : Stage::kAbandoned;
  Status abandoned = Error(StatusCode::kCancelled, "step {} was abandoned", spec_.step);
  if (status_.ok() && then == Stage::kAbandoned) status_ = std::move(abandoned);
  ++in_flight_;
  RunInBackground(queue_, AbandonTask(), [this, then, done = std::move(done)](Status status) {
    --in_flight_;
    stage_ = then;
    done(std::move(status));
  });
}

// Step 1

Status Attempt::CheckSize() const {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (spec_.file_bytes == 0 || spec_.file_bytes > AlignDown(kLargest, kBlock)) {
    return Error(StatusCode::kInvalidArgument, "{}: a shard of {} bytes", shard_, spec_.file_bytes);
  }
  return CheckFileSizeLimit(shard_.text(), laid_out_);
}

Status Attempt::CheckRoom() const {
  return CheckFreeSpace(root(), shard_.text(), laid_out_ - std::min(spare_.allocated(), laid_out_));
}

IoTask<Status> Attempt::CheckRoomTask() {
  return io::OnThread(root().text(), [this] { return CheckRoom(); });
}

IoTask<Status> Attempt::MakeRoom() {
  for (const PathAt& path : spare_.room().paths) {
    if ((co_await CheckRoomTask()).ok()) co_return Status::Ok();
    if (!spare_.claimed() || !(path == spare_.path())) static_cast<void>(co_await io::Unlink(path));
  }
  co_return co_await CheckRoomTask();
}

IoTask<Status> Attempt::BeginTask() {
  CAIRN_CO_RETURN_IF_ERROR(co_await spare_.Claim(shard_fd_));
  CAIRN_CO_RETURN_IF_ERROR(CheckSize());
  CAIRN_CO_RETURN_IF_ERROR(co_await MakeRoom());
  CAIRN_CO_RETURN_IF_ERROR(co_await spec_.folder->Make());
  shard_made_ = spare_.claimed();
  CAIRN_CO_RETURN_IF_ERROR(co_await spare_.TakeOver(shard_fd_, shard_));
  if (recycled()) {
    CAIRN_CO_RETURN_IF_ERROR(co_await WriteAt(0, kZeros));
    ReleaseLease(shard_fd_);
  } else {
    CAIRN_CO_RETURN_IF_ERROR(co_await MakeShard());
  }
  IoResult laid_out = co_await io::Allocate(shard_fd_, shard_.text(), laid_out_, &spare_.room());
  if (laid_out.ok() || laid_out.error == EOPNOTSUPP) co_return Status::Ok();
  // Other writers may have used the space since the first check.
  if (laid_out.error == ENOSPC) CAIRN_CO_RETURN_IF_ERROR(co_await CheckRoomTask());
  co_return laid_out.status;
}

IoTask<Status> Attempt::MakeShard() {
  shard_made_ = true;
  IoResult made = co_await io::Create(shard_, O_DIRECT, spec_.file_mode, shard_fd_, &spare_.room());
  if (made.error == EINVAL) {
    direct_ = Direct::kRefused;
    // The kernel creates the file before it rejects O_DIRECT.
    IoResult removed = co_await io::Unlink(shard_);
    if (!removed.ok() && removed.error != ENOENT) co_return removed.status;
    made = co_await io::Create(shard_, 0, spec_.file_mode, shard_fd_, &spare_.room());
  }
  if (made.error != EEXIST) co_return made.status;
  shard_made_ = false;
  co_return Error(StatusCode::kInternal, "{} is there already: two ranks write the same shard", shard_);
}

// Step 2

Status Attempt::CheckRange(std::uint64_t offset, Bytes memory) const {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (offset % kBlock == 0 && memory.size() % kBlock == 0 && address % kBlock == 0 && !memory.empty() &&
      memory.size() <= laid_out_ && offset <= laid_out_ - memory.size()) {
    return Status::Ok();
  }
  return Error(StatusCode::kInternal, "write of {} bytes at {} from {:#x} to {}: expected multiples of {} within {}",
               memory.size(), offset, address, shard_, kBlock, laid_out_);
}

IoTask<Status> Attempt::WriteAt(std::uint64_t offset, Bytes memory) {
  // A short write of an attempt that has failed meanwhile is not resumed.
  const io::WriteOptions options{.room = &spare_.room(), .stop = &status_};
  const bool direct = this->direct();
  IoResult written = co_await io::WriteAll(shard_fd_, shard_.text(), offset, memory, kBlock, options);
  if (written.ok() && direct && direct_ == Direct::kUntried) direct_ = Direct::kTaken;
  if (written.error != EINVAL || !direct || direct_ == Direct::kTaken) co_return written.status;
  // The filesystem accepts O_DIRECT at open but rejects the writes; several writes may find out at once. A file size
  // limit also gives EINVAL, and kills the process if a buffered write exceeds it.
  CAIRN_CO_RETURN_IF_ERROR(CheckFileSizeLimit(shard_.text(), laid_out_));
  direct_ = Direct::kRefused;
  ::fcntl(shard_fd_.get(), F_SETFL, 0);
  co_return co_await io::WriteAll(shard_fd_, shard_.text(), offset, memory, kBlock, options);
}

IoTask<Status> Attempt::WriteTask(std::uint64_t offset, Bytes memory) {
  CAIRN_CO_RETURN_IF_ERROR(co_await WriteAt(offset, memory));
  if (!direct()) CAIRN_CO_RETURN_IF_ERROR(co_await io::SyncRange(shard_fd_, shard_.text(), offset, memory.size()));
  bytes_written_ += memory.size();
  co_return Status::Ok();
}

// Step 3

IoTask<Status> Attempt::WriteHeader(Bytes header) {
  CAIRN_CO_RETURN_IF_ERROR(co_await WriteAt(0, header));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Truncate(shard_fd_, shard_.text(), spec_.file_bytes));
  bytes_written_ += header.size();
  co_return Status::Ok();
}

Status Attempt::CheckShard() const {
  struct stat written {};
  struct stat named {};
  if (::fstat(shard_fd_.get(), &written) != 0) return ErrnoStatus(errno, "stat of " + shard_.text());
  const bool there = ::fstatat(shard_.directory(), shard_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0;
  if (!there && errno != ENOENT) return ErrnoStatus(errno, "stat of " + shard_.text());
  // Another rank's shard that still has a name is looked for by rank 0, which waits for names that are seen late.
  const bool late = !there && spec_.shard != 0 && written.st_nlink != 0;
  if (!late && (!there || named.st_dev != written.st_dev || named.st_ino != written.st_ino)) {
    return Error(StatusCode::kCorrupt, "{}: {} while it was written", shard_, there ? "replaced" : "removed");
  }
  if (static_cast<std::uint64_t>(written.st_size) == spec_.file_bytes) return Status::Ok();
  return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", shard_, spec_.file_bytes, written.st_size);
}

IoTask<Status> Attempt::FsyncShard() {
  std::vector<IoTask<Status>> tasks;
  tasks.push_back(io::FsyncTask(shard_fd_, shard_.text()));
  tasks.push_back(io::OnThread(shard_.text(), [this] { return CheckShard(); }));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(tasks)));
  co_return co_await io::Close(shard_fd_, shard_.text());
}

std::vector<IoTask<Status>> Attempt::FsyncTasks() {
  std::vector<IoTask<Status>> tasks;
  tasks.push_back(FsyncShard());
  if (recycled()) tasks.push_back(io::FsyncTask(spare_.folder_fd(), spare_.folder().text()));
  return tasks;
}

IoTask<Status> Attempt::SealTask(Bytes header) {
  CAIRN_CO_RETURN_IF_ERROR(co_await WriteHeader(header));
  std::vector<IoTask<Status>> fsyncs = FsyncTasks();
  fsyncs.push_back(io::FsyncTask(folder().fd(), folder().path().text()));
  co_return co_await WhenAll(std::move(fsyncs));
}

// Step 5

Status Attempt::CheckManifest(const Manifest& manifest) const {
  if (manifest.step == spec_.step && manifest.attempt == folder().uuid()) return Status::Ok();
  return Error(StatusCode::kInternal, "manifest of step {}, attempt {}, in attempt {} at step {}", manifest.step,
               manifest.attempt, folder().uuid(), spec_.step);
}

IoTask<Status> Attempt::CommitTask(Manifest manifest, std::vector<std::string> index_runs, bool replace, Bytes header) {
  FolderCommit commit({.root = root(),
                       .folder = folder().path(),
                       .manifest = manifest,
                       .index_runs = std::move(index_runs),
                       .replace = replace,
                       .pin = spec_.pin,
                       .readers = {.timeout = spec_.reader_timeout, .hurry = &hurry_},
                       .file_mode = spec_.file_mode,
                       .check_writer = spec_.check_writer,
                       .gate = &gate_,
                       .room = &spare_.room()},
                      folder().fd(), in_place_);
  CAIRN_CO_RETURN_IF_ERROR(co_await commit.Begin());
  std::vector<IoTask<Status>> writes;
  writes.push_back(commit.WriteManifest());
  if (!header.empty()) writes.push_back(WriteHeader(header));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(writes)));
  // Only after all writes: a journaling filesystem then commits its journal once for all fsyncs.
  std::vector<IoTask<Status>> fsyncs;
  if (!header.empty()) fsyncs = FsyncTasks();
  fsyncs.push_back(commit.FsyncPin());
  fsyncs.push_back(commit.FsyncIndex());
  fsyncs.push_back(commit.FsyncManifest());
  fsyncs.push_back(io::FsyncTask(folder().fd(), folder().path().text()));
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(fsyncs)));
  CAIRN_CO_RETURN_IF_ERROR(co_await commit.RenameIntoPlace());
  co_await InBackground();  // It is durable.
  co_return co_await commit.RemoveOld();
}

IoTask<Status> Attempt::AbandonTask() {
  Status first = co_await io::Close(shard_fd_, shard_.text());
  if (in_place_ || stage_ == Stage::kCommitted) co_return first;
  if (shard_made_) {
    IoResult removed = co_await io::Unlink(shard_);
    if (first.ok() && removed.error != ENOENT) first = removed.status;
  }
  Status removed = co_await spec_.folder->Remove();
  co_return first.ok() ? std::move(removed) : std::move(first);
}

}  // namespace cairn
