// The commit protocol. What stands in front of a number happens before what stands behind it, on every rank.
//
// 0. Open (root.cc): make the root, fsync its parent; hold a descriptor of the directory, to which everything below is
//    relative, so that whoever moves it moves the writer with it; take the writer's lock, an open-file-description lock
//    on `.lock`; name this writer in `.writer`, which a rename replaces; rename every attempt that is there away; give
//    each `.replaced-N-*` the name step-N back, where nothing has that, and retire the others; fsync the root, so that
//    every rename a crash left half done is on the disk, or is not there, before anything is removed or listed. Only
//    then is it listed. The renames are the fence: a late commit of the writer before finds its attempt
//    gone, or came before the list. Before its rename each commit, and before and behind its own each retirement, asks
//    whether `.writer` and `.lock` are still this writer's; where they are not, it fails, and nothing is removed any
//    more. Then the coordinator alone sweeps, beside the start of training: it names no attempt that it may commit
//    before it has swept, and without a name no rank begins. Readers take no lock and never sweep.
// 1. Begin: the coordinator makes `.attempt-<uuid>/` and only then announces it; the others open it, and where it is
//    not there their root is another. Each checks the space; then it makes its shard file in it, its blocks laid out.
//    The file is new, or a spare of this rank (see 6), whose blocks count as free: it is opened and claimed (a regular
//    file of ours with one name and a write lease on it: nobody else has it open or mapped), renamed into the attempt,
//    looked at again, its first block zeroed, and the lease given back. Whatever refuses it, or has come for it
//    meanwhile, has it unlinked and a new one made. Until the commit it is a file that is never read, as every other of
//    an attempt: nothing is lost with its old bytes, and no old header stands before new ones.
// 2. Write: the chunks, each at its place. Every completion is checked, because an O_DIRECT write's error shows there
//    alone: a later fsync returns success. The aligned remainder of a short write is resubmitted; any other error is
//    final. Where the filesystem refuses O_DIRECT, at the open or at the first write, writes are buffered, and each is
//    followed by its write-back; that consumes the descriptor's write error, so its result is checked and final too,
//    and the fsync uses the same descriptor.
// 3. Seal: the header is written last; the padded tail is cut; one fsync of the shard, never tried again; fsync of the
//    attempt's folder, and of the one that a spare was taken from: once the step is durable, no other name leads to it.
//    The fsyncs run side by side, and beside them a look: the folder must still hold this very file, as long as it
//    should be.
// 4. The ranks agree (not here, but in src/engine/coordination.cc): each sends the coordinator one word, that it is
//    prepared or that it fails, and the coordinator announces the attempt, and then the outcome or the first failure.
//    As each word comes the coordinator looks for that rank's shard through its own descriptor of the folder
//    (shard_check.cc): it must have the length and the header's digest that its rank has told; what is in the header
//    goes into the index. Words only hint: who is
//    prepared and hears nothing more looks on the disk. A rank that is alone knows, and does 3 and 5 in one: header and
//    manifest are written side by side, then all is fsynced side by side, then renamed. Nothing reads the attempt
//    before the rename, so that it is no matter which of them a crash lets through.
// 5. Commit (commit.cc), on the coordinator, only once every shard was found: the index is written, where there are
//    several ranks, then the manifest, which names it; then both and the attempt's folder are fsynced; the folder
//    renamed to step-N without replacing; the root fsynced. An old step-N is exchanged for it. Where the filesystem
//    exchanges no names the old one is first renamed to `.replaced-N-<attempt>` and the root fsynced, so that no power
//    cut keeps the second rename and not the first; what an earlier replacement left under such a name is retired
//    before. If the root's last fsync fails the outcome is unknown: the step is not acknowledged, and the folder is not
//    removed. Where the rename fails and the attempt's name no longer leads to its folder, step-N is looked for: it is
//    there, or somebody took the attempt away. A rank that hears nothing looks for step-N with its attempt id and
//    fsyncs the root itself (FindCommitted). After the deadline it takes the attempt's name away, renaming it to
//    `.retired-<uuid>`, and fsyncs the root (AbortAttempt). Commit and abort take the same name away, so one of them
//    wins: who renamed the folder that it has open knows that the save has failed; who comes too late looks for step-N
//    again. The coordinator gives a failed attempt up in the same way, with all that the others have written into it,
//    and need not wait for them.
// 6. Only now is the save durable, and only now may older ones go (remove.cc): step-N is renamed to `.retired-<uuid>`,
//    the root fsynced; before that has returned nothing in the folder is touched, as a power cut would bring the name
//    back. What step-N replaced is retired before, if it is still there: no opening writer may take it for step-N. A
//    checkpoint that somebody reads has a shared lock on its manifest, and stays. Then its files are unlinked. Where
//    files are recycled, the ranks' shard files that nobody else has open, mapped or linked stay, and the folder is
//    renamed to the first free one of `.spare-0`, `.spare-1` and so on: what is found under these names is no
//    checkpoint's, durably, for every rank. There are so many that with the attempts in flight they come to one more
//    than those may be, so that saves one behind the other always find one; they are unlinked where the disk is full,
//    and at the end. A sweep leaves them, and makes more of what a killed writer's attempts and removals left: no
//    checkpoint's files either. Writes that the dead process has under way hold its file open, which the lease sees.

#include "store/attempt.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "store/commit.h"
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

// Calls

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
  if (stage_ == wanted && (under_way_ == 0 || many)) return Status::Ok();
  return Error(StatusCode::kInternal, "{} of an attempt at step {} that is {}, with {} calls under way", call,
               spec_.step, StageName(stage_), under_way_);
}

void Attempt::Run(Status refusal, IoTask<Status> task, Stage then, StatusDone done) {
  if (!refusal.ok()) return RunTask(queue_, Refused(std::move(refusal)), std::move(done));
  ++under_way_;
  RunTask(queue_, Explain(std::move(task)), [this, then, done = std::move(done)](Status status) {
    --under_way_;
    if (status.ok()) stage_ = then;
    if (status_.ok()) status_ = status;
    done(std::move(status));
  });
}

IoTask<Status> Attempt::Explain(IoTask<Status> task) {
  Status status = co_await task;
  const bool vanished = status.code() == StatusCode::kNotFound || status.code() == StatusCode::kCorrupt;
  if (!vanished) co_return status;
  CAIRN_CO_RETURN_IF_ERROR(co_await CheckWriter(root(), spec_.still_writer));
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

void Attempt::Abandon(StatusDone done) {
  if (under_way_ != 0) {
    return RunTask(
        queue_,
        Refused(Error(StatusCode::kInternal, "Abandon of step {} with {} calls under way", spec_.step, under_way_)),
        std::move(done));
  }
  const Stage then = stage_ == Stage::kCommitted ? Stage::kCommitted : Stage::kAbandoned;
  Status abandoned = Error(StatusCode::kCancelled, "step {} was abandoned", spec_.step);
  if (status_.ok() && then == Stage::kAbandoned) status_ = std::move(abandoned);
  ++under_way_;
  RunTask(queue_, AbandonTask(), [this, then, done = std::move(done)](Status status) {
    --under_way_;
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
    GiveBackLease(shard_fd_);
  } else {
    CAIRN_CO_RETURN_IF_ERROR(co_await MakeShard());
  }
  IoResult laid_out = co_await io::Allocate(shard_fd_, shard_.text(), laid_out_, &spare_.room());
  if (laid_out.ok() || laid_out.error == EOPNOTSUPP) co_return Status::Ok();
  // Other writers may have been faster than the first look.
  if (laid_out.error == ENOSPC) CAIRN_CO_RETURN_IF_ERROR(co_await CheckRoomTask());
  co_return laid_out.status;
}

IoTask<Status> Attempt::MakeShard() {
  shard_made_ = true;
  IoResult made = co_await io::Create(shard_, O_DIRECT, spec_.file_mode, shard_fd_);
  if (made.error == EINVAL) {
    direct_ = Direct::kRefused;
    // The kernel makes the file first and refuses O_DIRECT afterwards.
    IoResult removed = co_await io::Unlink(shard_);
    if (!removed.ok() && removed.error != ENOENT) co_return removed.status;
    made = co_await io::Create(shard_, 0, spec_.file_mode, shard_fd_);
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
  // Remainders of an attempt that has failed meanwhile are not written.
  const io::WriteOptions options{.room = &spare_.room(), .stop = &status_};
  const bool direct = this->direct();
  IoResult written = co_await io::WriteAll(shard_fd_, shard_.text(), offset, memory, kBlock, options);
  if (written.ok() && direct && direct_ == Direct::kUntried) direct_ = Direct::kTaken;
  if (written.error != EINVAL || !direct || direct_ == Direct::kTaken) co_return written.status;
  // The filesystem opens files for O_DIRECT and refuses the writes; several may find out at once. A limit on the file's
  // size says EINVAL too, and ends the process where a buffered write passes it.
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
  if (!there || named.st_dev != written.st_dev || named.st_ino != written.st_ino) {
    return Error(StatusCode::kCorrupt, "{}: {} while it was written", shard_, there ? "replaced" : "removed");
  }
  if (static_cast<std::uint64_t>(written.st_size) == spec_.file_bytes) return Status::Ok();
  return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", shard_, spec_.file_bytes, written.st_size);
}

IoTask<Status> Attempt::FsyncShard() {
  std::vector<IoTask<Status>> tasks;
  tasks.push_back(io::FsyncTask(shard_fd_, shard_.text()));
  tasks.push_back(io::OnThread(shard_.text(), [this] { return CheckShard(); }));
  CAIRN_CO_RETURN_IF_ERROR(co_await Together(std::move(tasks)));
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
  co_return co_await Together(std::move(fsyncs));
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
                       .file_mode = spec_.file_mode,
                       .still_writer = spec_.still_writer,
                       .room = &spare_.room()},
                      folder().fd(), in_place_);
  CAIRN_CO_RETURN_IF_ERROR(co_await commit.Begin());
  std::vector<IoTask<Status>> writes;
  writes.push_back(commit.WriteManifest());
  if (!header.empty()) writes.push_back(WriteHeader(header));
  CAIRN_CO_RETURN_IF_ERROR(co_await Together(std::move(writes)));
  // Only now, when nothing is missing any more: a filesystem with a journal commits it once for all.
  std::vector<IoTask<Status>> fsyncs;
  if (!header.empty()) fsyncs = FsyncTasks();
  fsyncs.push_back(commit.FsyncIndex());
  fsyncs.push_back(commit.FsyncManifest());
  fsyncs.push_back(io::FsyncTask(folder().fd(), folder().path().text()));
  CAIRN_CO_RETURN_IF_ERROR(co_await Together(std::move(fsyncs)));
  CAIRN_CO_RETURN_IF_ERROR(co_await commit.RenameIntoPlace());
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
