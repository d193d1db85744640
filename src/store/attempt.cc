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
//    opened it meanwhile, it is unlinked and a new file created. Forked children close it: one that lives long would
//    keep it from being a spare again. Until the commit nobody reads it, like every file of
//    an attempt: its old bytes are no loss, and no old header precedes new data. What has not changed since a
//    committed checkpoint is in a second file of the rank, the kept file. It is linked from a descriptor of
//    that checkpoint's file, which this process holds, so it is that very file whatever its names have become. Where it
//    cannot be linked it is copied from that descriptor, never from the tensors, which may have changed since. Nobody
//    writes into a kept file again, and it never becomes a spare. Where nobody counts writes into what is frozen, a
//    save links the file too, and compares its chunks with the file's checksums instead of writing them. At the first
//    one that differs it takes the link away and makes a file of its own. The chunks that were equal are gone by then,
//    so they are copied from that descriptor, against their checksums; the others are written as in 2.
// 2. Write the chunks, each at its offset. Check every completion, because an O_DIRECT write reports its error only
//    there: a later fsync succeeds. The aligned rest of a short write is resubmitted; any other error is final. If the
//    filesystem rejects O_DIRECT, at the open or at the first write, writes are buffered, and each is followed by its
//    write-back. That consumes the descriptor's write error, so its result is checked and final too, and the fsync uses
//    the same descriptor.
// 3. Seal. Write the header last; truncate the padded tail; fsync the shard once, never retried; fsync the attempt's
//    folder, and the folder that a spare was taken from: once the step is durable, no other name refers to the file.
//    The fsyncs run in parallel, together with a check that the folder still holds this very file at its full length.
//    A kept file that was linked needs no fsync of its own: the folder's makes its name durable. A rank that has
//    written one anew, and finds by its sums that what is frozen has changed unseen, first marks the checkpoints that
//    link the one before, durably (suspect.h): once this step is the newest, nothing else tells.
// 4. The ranks agree (see src/engine/coordination.h). Each sends the coordinator one message: prepared or failed. The
//    coordinator announces the attempt, and then the outcome or the first failure. As each message arrives, the
//    coordinator checks that rank's shard through its own descriptor of the folder (shard_check.cc): it must have the
//    length and the header digest that its rank reported; the header's contents go into the index. A shard that is not
//    there is looked for, too. Messages are only hints: a rank that is prepared and hears nothing more looks at the
//    disk. A single rank needs no messages and does 3 and 5 in one: header and manifest are written in parallel, then
//    everything is fsynced in parallel, then renamed. Nothing reads the attempt before the rename, so it does not
//    matter which of the writes survive a crash.
// 5. Commit (commit.cc), on the coordinator, only after every shard was found. The first save after a later
//    restore is of a line that `.writer` has not. Before anything of its commit, the line is made the counter there, as
//    at the opening: draft, fsync, a look whether another writer has taken over, rename, fsync of the root
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
//    may have lost the rename of a save that was acknowledged. In memory, where all slots are allocated at once, what a
//    commit has replaced is recycled, too.

#include "store/attempt.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
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

// It is gone, or filesystem, system, mount or policy permit no (further) name: there are many words for that. After
// these others a copy would fare no better.
bool CannotLink(int error) {
  return error != 0 && error != EEXIST && error != EIO && error != ENOSPC && error != EDQUOT && error != EROFS;
}

}  // namespace

Attempt::Attempt(IoQueue& queue, AttemptSpec spec)
    : queue_(queue),
      spec_(std::move(spec)),
      spare_(root(), spec_.spare_folders, ShardName(spec_.shard), spec_.file_mode, spec_.not_recycled, spec_.mapped,
             spec_.file_bytes),
      shard_(FileSpec(ShardName(spec_.shard), spec_.file_bytes)) {
  if (spec_.kept) kept_.emplace(FileSpec(spec_.kept->name, spec_.kept->bytes));
}

AttemptFile::Spec Attempt::FileSpec(const std::string& name, std::uint64_t bytes) {
  return {.path = JoinPath(folder().path(), name),
          .bytes = bytes,
          .mode = spec_.file_mode,
          .seen_late = spec_.shard != 0,
          .room = &spare_.room(),
          .stop = &status_};
}

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
  const bool many = wanted == Stage::kWriting && stage_ == Stage::kWriting &&
                    (std::string_view(call) == "Write" || std::string_view(call) == "RenewKept");
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
  if (refusal.ok()) refusal = shard_.CheckRange(offset, memory);
  Run(std::move(refusal), shard_.Write(offset, memory), Stage::kWriting, std::move(done));
}

Result<std::shared_ptr<MappedFile>> Attempt::MapShard() {
  CAIRN_RETURN_IF_ERROR(Admit(Stage::kWriting, "MapShard"));
  return spec_.mapped->Map(shard_.path(), shard_.fd(), shard_.laid_out());
}

void Attempt::WriteKept(std::uint64_t offset, Bytes memory, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "Write");
  if (refusal.ok()) refusal = kept_->CheckRange(offset, memory);
  Run(std::move(refusal), kept_->Write(offset, memory), Stage::kWriting, std::move(done));
}

void Attempt::RenewKept(KeptSpec kept, KeptCopy copy, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "RenewKept");
  if (!refusal.ok()) return RunTask(queue_, Refused(std::move(refusal)), std::move(done));
  ++in_flight_;
  RunTask(queue_, Explain(RenewKeptTask(std::move(kept), std::move(copy))),
          [this, done = std::move(done)](Status status) {
            --in_flight_;
            if (status_.ok() && status.code() != StatusCode::kNoSpace) status_ = status;
            done(std::move(status));
          });
}

void Attempt::Seal(Bytes header, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "Seal");
  if (refusal.ok()) refusal = shard_.CheckRange(0, header);
  Run(std::move(refusal), SealTask(header), Stage::kSealed, std::move(done));
}

void Attempt::Commit(const Manifest& manifest, std::vector<std::string> index_runs, bool replace, StatusDone done) {
  Status refusal = Admit(Stage::kSealed, "Commit");
  if (refusal.ok()) refusal = CheckManifest(manifest);
  Run(std::move(refusal), CommitTask(manifest, std::move(index_runs), replace, {}), Stage::kCommitted, std::move(done));
}

void Attempt::SealAndCommit(Bytes header, const Manifest& manifest, bool replace, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "SealAndCommit");
  if (refusal.ok()) refusal = shard_.CheckRange(0, header);
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

Status Attempt::CheckRoom() const {
  if (begun()) return CheckFreeSpace(root(), kept_->path().text(), kept_->laid_out(), spec_.free_bytes);
  const std::uint64_t needed = shard_.laid_out() - std::min(spare_.allocated(), shard_.laid_out());
  const bool writes_kept = kept_ && spec_.kept->linked == nullptr;
  const std::string what =
      writes_kept ? fmt::format("{}, with {},", kept_->path(), ShardName(spec_.shard)) : shard_.path().text();
  return CheckFreeSpace(root(), what, needed + (writes_kept ? kept_->laid_out() : 0), spec_.free_bytes);
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
  Status begun = co_await MakeFiles();
  if (begun.code() != StatusCode::kNoSpace) co_return begun;
  static_cast<void>(co_await shard_.Remove());
  if (kept_) static_cast<void>(co_await kept_->Remove());
  co_return begun;
}

IoTask<Status> Attempt::MakeFiles() {
  CAIRN_CO_RETURN_IF_ERROR(co_await spare_.Claim(shard_.fd()));
  if (spec_.only_spares && !spare_.claimed()) {
    co_return Error(StatusCode::kNoSpace, "{}: no slot is free under {}", shard_.path(), root());
  }
  CAIRN_CO_RETURN_IF_ERROR(shard_.CheckSize());
  if (kept_) CAIRN_CO_RETURN_IF_ERROR(kept_->CheckSize());
  CAIRN_CO_RETURN_IF_ERROR(co_await MakeRoom());
  CAIRN_CO_RETURN_IF_ERROR(co_await spec_.folder->Make());
  if (spare_.claimed()) shard_.MayExist();
  CAIRN_CO_RETURN_IF_ERROR(co_await spare_.TakeOver(shard_.fd(), shard_.path()));
  if (!recycled()) CAIRN_CO_RETURN_IF_ERROR(co_await shard_.Make());
  shard_.HideFromChildren();
  if (recycled()) {
    CAIRN_CO_RETURN_IF_ERROR(co_await shard_.WriteAt(0, kZeros));
    ReleaseLease(shard_.fd());
  }
  // A slot keeps its length: its pages may be pinned.
  if (recycled() && spec_.mapped != nullptr) {
    shard_.HasLength(spare_.length());
  } else {
    CAIRN_CO_RETURN_IF_ERROR(co_await Allocate(shard_));
  }
  if (kept_) {
    Status begun = co_await BeginKept();
    kept_failed_ = spec_.kept->linked != nullptr && !begun.ok();
    co_return begun;
  }
  co_return Status::Ok();
}

IoTask<Status> Attempt::Allocate(AttemptFile& file) {
  IoResult laid_out = co_await file.Allocate();
  if (laid_out.ok() || laid_out.error == EOPNOTSUPP) co_return Status::Ok();
  // Other writers may have used the space since the first check.
  if (laid_out.error == ENOSPC) {
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(root().text(), [this, &file] {
      return &file == &shard_ ? CheckRoom() : CheckFreeSpace(root(), file.path().text(), file.laid_out());
    }));
  }
  co_return laid_out.status;
}

IoTask<Status> Attempt::BeginKept() {
  const std::shared_ptr<const UniqueFd>& linked = spec_.kept->linked;
  Status no_link;
  if (linked != nullptr) {
    no_link = co_await LinkKept(*linked);
    if (no_link.code() != StatusCode::kNotFound) co_return no_link;
  }
  CAIRN_CO_RETURN_IF_ERROR(co_await kept_->Make());
  CAIRN_CO_RETURN_IF_ERROR(co_await Allocate(*kept_));
  if (linked != nullptr) {
    CAIRN_CO_RETURN_IF_ERROR(co_await kept_->CopyFrom(*linked));
    if (spec_.kept->on_copy && !kept_gone_) spec_.kept->on_copy(no_link);
  }
  co_return co_await OpenKept();
}

IoTask<Status> Attempt::RenewKeptTask(KeptSpec kept, KeptCopy copy) {
  kept_fd_.reset();
  kept_linked_ = false;
  CAIRN_CO_RETURN_IF_ERROR(co_await kept_->Remove());
  spec_.kept = std::move(kept);
  kept_.emplace(FileSpec(spec_.kept->name, spec_.kept->bytes));
  Status made = co_await MakeKept(std::move(copy));
  if (made.code() == StatusCode::kNoSpace) static_cast<void>(co_await kept_->Remove());
  co_return made;
}

IoTask<Status> Attempt::MakeKept(KeptCopy copy) {
  CAIRN_CO_RETURN_IF_ERROR(kept_->CheckSize());
  CAIRN_CO_RETURN_IF_ERROR(co_await MakeRoom());
  CAIRN_CO_RETURN_IF_ERROR(co_await kept_->Make());
  CAIRN_CO_RETURN_IF_ERROR(co_await Allocate(*kept_));
  for (const KeptCopy::Piece& piece : copy.pieces) {
    CAIRN_CO_RETURN_IF_ERROR(co_await kept_->Copy(*copy.file, piece.from, piece.to, piece.bytes, piece.sums));
  }
  co_return co_await OpenKept();
}

// NotFound if there can be no link.
IoTask<Status> Attempt::LinkKept(const UniqueFd& file) {
  IoResult linked = co_await io::Link(file, spec_.kept->name, kept_->path());
  // The reply to an NFS client's first request was lost.
  if (linked.error == EEXIST && co_await IsStillSameFile(kept_->path(), file)) linked = {};
  if (linked.error != EEXIST) kept_->MayExist();
  kept_gone_ = linked.error == ENOENT;
  if (CannotLink(linked.error)) co_return Error(StatusCode::kNotFound, "{}", linked.status.message());
  CAIRN_CO_RETURN_IF_ERROR(std::move(linked));
  kept_linked_ = true;
  co_return co_await OpenKept();
}

// Opened anew for each attempt: NFS keeps the folder of a name that is open.
IoTask<Status> Attempt::OpenKept() {
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Open(kept_->path(), O_RDONLY | O_NOFOLLOW, fd));
  kept_fd_ = HideFromChildren(std::move(fd));
  co_return Status::Ok();
}

// Step 3

Status Attempt::CheckKept() {
  struct stat found {};
  kept_failed_ = true;
  if (!IsSameFile(kept_->path(), *kept_fd_)) {
    return Error(StatusCode::kCorrupt, "{}: removed or replaced after it was linked", kept_->path());
  }
  if (::fstat(kept_fd_->get(), &found) != 0) return ErrnoStatus(errno, "stat of " + kept_->path().text());
  if (static_cast<std::uint64_t>(found.st_size) != spec_.kept->bytes) {
    return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", kept_->path(), spec_.kept->bytes,
                 found.st_size);
  }
  kept_failed_ = false;
  return Status::Ok();
}

void Attempt::AddHeaderTasks(Bytes header, std::vector<IoTask<Status>>& tasks) {
  tasks.push_back(shard_.WriteHeader(header));
  if (kept_ && spec_.kept->linked == nullptr) tasks.push_back(kept_->WriteHeader(kept_header_));
}

std::vector<IoTask<Status>> Attempt::FsyncTasks() {
  std::vector<IoTask<Status>> tasks;
  tasks.push_back(shard_.Fsync());
  if (kept_linked_) {
    // Its bytes are on the disk since its first checkpoint.
    tasks.push_back(io::OnThread(kept_->path().text(), [this] { return CheckKept(); }));
  } else if (kept_) {
    tasks.push_back(kept_->Fsync());
  }
  if (recycled()) tasks.push_back(io::FsyncTask(spare_.folder_fd(), spare_.folder().text()));
  return tasks;
}

IoTask<Status> Attempt::SealTask(Bytes header) {
  std::vector<IoTask<Status>> headers;
  AddHeaderTasks(header, headers);
  CAIRN_CO_RETURN_IF_ERROR(co_await WhenAll(std::move(headers)));
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
                       .spares = spec_.replaced,
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
  if (!header.empty()) AddHeaderTasks(header, writes);
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
  kept_fd_.reset();
  if (in_place_ || stage_ == Stage::kCommitted) {
    Status closed = co_await shard_.Close();
    if (kept_ && closed.ok()) closed = co_await kept_->Close();
    co_return closed;
  }
  // A slot is for the next save, as long as there are to be slots: nothing writes into it any more.
  const bool is_slot = recycled() && spec_.mapped != nullptr && spec_.mapped->Open(shard_.path()).valid();
  for (std::size_t i = 0; is_slot && i < spare_.room().paths.size(); ++i) {
    if ((co_await io::Rename(shard_.path(), spare_.room().paths[i], RenameMode::kNoReplace)).ok()) break;
  }
  Status first = co_await shard_.Remove();
  if (kept_) {
    Status unlinked = co_await kept_->Remove();
    if (first.ok()) first = std::move(unlinked);
  }
  Status removed = co_await spec_.folder->Remove();
  co_return first.ok() ? std::move(removed) : std::move(first);
}

}  // namespace cairn
