#include "store/commit.h"

#include <fcntl.h>

#include <cerrno>
#include <new>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "store/late_name.h"
#include "store/list.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/pins.h"
#include "store/space.h"

namespace cairn {
namespace {

Status UnknownCommit(std::uint64_t step, const std::string& uuid, const Status& why) {
  return Error(StatusCode::kUnknownOutcome, "cannot tell whether step {} of attempt {} is committed: {}", step, uuid,
               why.message());
}

IoTask<Status> LookTask(PathAt root, std::uint64_t step, std::string uuid, UniqueFd& root_fd) {
  const auto unknown = [step, &uuid](const Status& why) { return UnknownCommit(step, uuid, why); };
  const auto other = [step, &uuid](const std::string& found) {
    return Error(StatusCode::kNotFound, "step {} of attempt {} is not committed: {}", step, uuid, found);
  };
  const PathAt path = JoinPath(JoinPath(root, StepName(step)), kManifestName);
  UniqueFd manifest_fd;
  IoResult opened = co_await io::OpenDirectory(root, /*follow=*/true, root_fd);
  if (!opened.ok()) co_return unknown(opened.status);
  const Status fresh = co_await io::OnThread(root.text(), [&root] { return ForgetCachedNames(root); });
  if (!fresh.ok()) co_return unknown(fresh);
  opened = co_await io::Open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, manifest_fd);
  if (opened.error == ENOENT) co_return other(opened.status.message());
  if (!opened.ok()) co_return unknown(opened.status);
  std::string text;
  const Status sized = co_await io::OnThread(path.text(), [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t size, ManifestFileSize(manifest_fd, path.text()));
    text.resize(size);
    return Status::Ok();
  });
  if (!sized.ok()) co_return unknown(sized);
  IoResult read = co_await io::Read(manifest_fd, path.text(), text);
  if (!read.ok()) co_return unknown(read.status);
  text.resize(static_cast<std::size_t>(read.value));
  const Result<Manifest> manifest = DecodeManifest(text, path.text());
  if (!manifest.ok()) co_return unknown(manifest.status());
  if (manifest->attempt != uuid || manifest->step != step) {
    co_return other(fmt::format("{} is attempt {}", path, manifest->attempt));
  }
  co_return Status::Ok();
}

IoTask<Status> FindTask(PathAt root, std::uint64_t step, std::string uuid) {
  UniqueFd root_fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await LookTask(root, step, uuid, root_fd));
  IoResult durable = co_await io::Fsync(root_fd, root.text());
  if (!durable.ok()) co_return UnknownCommit(step, uuid, durable.status);
  co_return Status::Ok();
}

IoTask<Status> AbortTask(std::shared_ptr<AttemptFolder> folder, std::uint64_t step) {
  using Taken = AttemptFolder::Taken;
  const PathAt& root = folder->root();
  const std::string& uuid = folder->uuid();
  Leftovers left;  // The next sweep removes them.
  Status why;
  const Taken taken = co_await folder->RenameToRetired(why);
  if (taken == Taken::kStays) co_return UnknownCommit(step, uuid, why);
  if (taken == Taken::kGone) {
    Status found = co_await FindTask(root, step, uuid);
    // If the commit exchanged the names meanwhile, RenameToRetired may have renamed the old checkpoint instead.
    if (found.ok()) static_cast<void>(co_await RemoveFolder(folder->retired(), left));
    if (found.code() != StatusCode::kNotFound) co_return found;
    // It may have been committed and then removed by retention, or published. Only the mark proves that it was not.
    const bool given_up = co_await folder->IsGivenUp();
    if (!given_up) co_return UnknownCommit(step, uuid, found);
  }
  // Whoever renamed it: no power cut may restore the name while a slow coordinator could still use it.
  UniqueFd root_fd;
  IoResult done = co_await io::OpenDirectory(root, /*follow=*/true, root_fd);
  if (done.ok()) done = co_await io::Fsync(root_fd, root.text());
  if (!done.ok()) co_return UnknownCommit(step, uuid, done.status);
  if (taken == Taken::kHere) {
    static_cast<void>(co_await folder->MarkGivenUp());
    static_cast<void>(co_await RemoveFolder(folder->retired(), left));
  }
  co_return Error(StatusCode::kCancelled, "step {}: attempt {} was given up before it was committed", step, uuid);
}

}  // namespace

FolderCommit::FolderCommit(CommitSpec spec, const UniqueFd& folder, bool& in_place)
    : spec_(std::move(spec)),
      folder_fd_(folder),
      in_place_(in_place),
      target_(JoinPath(spec_.root, StepName(spec_.manifest.step))),
      replaced_path_(JoinPath(spec_.root, ReplacedName(spec_.manifest.step, spec_.manifest.attempt))),
      path_(JoinPath(spec_.folder, kManifestName)),
      index_path_(JoinPath(spec_.folder, kIndexName)),
      pin_path_(JoinPath(spec_.folder, kPinName)) {}

IoTask<Status> FolderCommit::Begin() {
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(spec_.root, /*follow=*/true, root_fd_));
  if (spec_.replace) CAIRN_CO_RETURN_IF_ERROR(co_await LockOld());
  co_return co_await WritePin();
}

IoTask<Status> FolderCommit::LockOld() {
  const auto begun = Deadline::Clock::now();
  while (true) {
    UniqueFd old_folder;
    IoResult opened = co_await io::OpenDirectory(target_, /*follow=*/false, old_folder);
    if (opened.error == ENOENT) co_return Status::Ok();
    CAIRN_CO_RETURN_IF_ERROR(std::move(opened));
    Status locked = co_await LockOutReaders(target_, old_lock_);
    if (locked.ok()) break;
    if (locked.code() != StatusCode::kFailedPrecondition) co_return locked;
    const auto waited = Deadline::Clock::now() - begun;
    if (waited >= spec_.readers.timeout || spec_.readers.ended()) co_return StillRead(target_, waited);
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(target_.text(), [] {
      std::this_thread::sleep_for(kLockInterval);
      return Status::Ok();
    }));
  }
  old_ = Old::kThere;
  co_return Status::Ok();
}

// In the attempt, so that the step is never without it.
IoTask<Status> FolderCommit::WritePin() {
  std::optional<PinOwner> owner;
  if (spec_.pin) {
    owner = PinOwner::kUser;
  } else if (old_ == Old::kThere) {
    // A pin belongs to the step, not to the attempt. Nobody can change it while the old one is locked.
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(target_.text(), [this, &owner] {
      owner = FindPin(target_);
      return Status::Ok();
    }));
  }
  if (!owner) co_return Status::Ok();
  co_return co_await CreatePin(pin_path_, *owner, spec_.file_mode, spec_.room, pin_fd_);
}

IoTask<Status> FolderCommit::FsyncPin() {
  if (!pin_fd_.valid()) co_return Status::Ok();
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(pin_fd_, pin_path_.text()));
  co_return co_await io::Close(pin_fd_, pin_path_.text());
}

// A checkpoint without an index is just as good, so a failure to build it is ignored.
IoTask<Status> FolderCommit::WriteIndex() {
  std::optional<BuiltIndex> built;
  const auto build = [this, &built] {
    try {
      built = BuildIndex(spec_.index_runs);
    } catch (const std::bad_alloc&) {  // The index grows with the number of ranks; training must not end for it.
      built.reset();
    }
    return Status::Ok();
  };
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(index_path_.text(), build));
  spec_.index_runs.clear();
  if (!built || !CheckFileSizeLimit(index_path_.text(), built->bytes.size()).ok()) co_return Status::Ok();
  index_ = *std::move(built);
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(index_path_, 0, spec_.file_mode, index_fd_, spec_.room));
  const io::WriteOptions options{.room = spec_.room};
  CAIRN_CO_RETURN_IF_ERROR(co_await io::WriteAll(index_fd_, index_path_.text(), 0,
                                                 std::as_bytes(std::span(index_.bytes)), /*alignment=*/1, options));
  spec_.manifest.index = ManifestIndex{.file = std::string(kIndexName),
                                       .length = index_.bytes.size(),
                                       .head = index_.head_bytes,
                                       .digest = index_.head_digest};
  co_return Status::Ok();
}

IoTask<Status> FolderCommit::WriteManifest() {
  if (!spec_.index_runs.empty()) CAIRN_CO_RETURN_IF_ERROR(co_await WriteIndex());
  text_ = spec_.text.empty() ? EncodeManifest(spec_.manifest) : spec_.text;
  CAIRN_CO_RETURN_IF_ERROR(CheckFileSizeLimit(path_.text(), text_.size()));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Create(path_, 0, spec_.file_mode, manifest_fd_, spec_.room));
  const io::WriteOptions options{.room = spec_.room};
  co_return co_await io::WriteAll(manifest_fd_, path_.text(), 0, std::as_bytes(std::span(text_)), /*alignment=*/1,
                                  options);
}

IoTask<Status> FolderCommit::FsyncIndex() {
  if (!index_fd_.valid()) co_return Status::Ok();
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(index_fd_, index_path_.text()));
  co_return co_await io::Close(index_fd_, index_path_.text());
}

IoTask<Status> FolderCommit::FsyncManifest() {
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(manifest_fd_, path_.text()));
  co_return co_await io::Close(manifest_fd_, path_.text());
}

IoTask<Status> FolderCommit::RenameIntoPlace() {
  const std::uint64_t step = spec_.manifest.step;
  CAIRN_CO_RETURN_IF_ERROR(co_await CheckWriter(spec_.root, spec_.check_writer));
  CAIRN_CO_RETURN_IF_ERROR(PassGate());
  IoResult renamed;
  if (old_ == Old::kThere) {
    renamed = co_await io::Rename(spec_.folder, target_, RenameMode::kExchange);
    if (!RefusesFlags(renamed)) {
      old_ = Old::kExchanged;
    } else {
      CAIRN_CO_RETURN_IF_ERROR(co_await MoveOldAside());
    }
  }
  if (old_ != Old::kExchanged) renamed = co_await RenameToNew(spec_.folder, target_);
  if (renamed.error == EEXIST || renamed.error == ENOTEMPTY) {
    co_return Error(StatusCode::kAlreadyExists, StatusDetail::kStepCommitted, "step {} is committed already, as {}",
                    step, target_);
  }
  if (!renamed.ok()) {
    // The rename may have happened anyway: a lost reply, an interrupted wait. A broken queue may even carry it out
    // later.
    const bool still = renamed.error != kBrokenQueue && co_await IsStillSameFile(spec_.folder, folder_fd_);
    if (still) co_return co_await PutOldBack(renamed.status);
    in_place_ = true;
    co_return co_await ResolveFailedRename(std::move(renamed));
  }
  in_place_ = true;
  IoResult durable = co_await io::Fsync(root_fd_, spec_.root.text());
  if (spec_.gate != nullptr) spec_.gate->durable = durable.ok();
  if (durable.ok()) co_return Status::Ok();
  co_return Error(StatusCode::kUnknownOutcome, "step {} was renamed into place, but {}", step,
                  durable.status.message());
}

Status FolderCommit::PassGate() {
  if (spec_.gate == nullptr) return Status::Ok();
  spec_.gate->passed = spec_.gate->given_up.ok();
  return spec_.gate->given_up;
}

// Until the next rename there is no step-N; an opening writer would put the old one back. The fsync comes before the
// new one takes the name: otherwise a power cut could keep only the second rename.
IoTask<Status> FolderCommit::MoveOldAside() {
  CAIRN_CO_RETURN_IF_ERROR(co_await RemoveReplaced(spec_.root, spec_.manifest.step, spec_.check_writer));
  IoResult moved = co_await RenameToNew(target_, replaced_path_);
  old_ = Old::kAside;
  if (!moved.ok()) co_return co_await PutOldBack(moved.status);
  IoResult durable = co_await io::Fsync(root_fd_, spec_.root.text());
  if (durable.ok()) co_return Status::Ok();
  // A power cut may leave it under either name; an opening writer takes both for step-N.
  co_return co_await PutOldBack(durable.status);
}

IoTask<Status> FolderCommit::PutOldBack(Status why) {
  if (old_ != Old::kAside) co_return why;
  IoResult back = co_await RenameToNew(replaced_path_, target_);
  // ENOENT: it was never moved, or a writer that took over has put it back.
  if (back.ok() || back.error == ENOENT) co_return why;
  co_return Error(StatusCode::kUnknownOutcome, "step {}: {}; its old checkpoint remains as {}: {}", spec_.manifest.step,
                  why.message(), replaced_path_, back.status.message());
}

// The attempt's name no longer refers to its folder.
IoTask<Status> FolderCommit::ResolveFailedRename(IoResult renamed) {
  const std::uint64_t step = spec_.manifest.step;
  const Status found = co_await FindTask(spec_.root, step, spec_.manifest.attempt);
  if (found.ok()) co_return found;  // The reply was lost.
  if (found.code() == StatusCode::kNotFound && renamed.error == ENOENT) {
    Status gone =
        Error(StatusCode::kFailedPrecondition, "step {}: its attempt was given up before it was committed: {}", step,
              renamed.status.message());
    co_return co_await PutOldBack(std::move(gone));
  }
  co_return Error(StatusCode::kUnknownOutcome, "step {}: {}", step, renamed.status.message());
}

IoTask<Status> FolderCommit::RemoveOld() {
  old_lock_.reset();  // NFS would rename an open file instead of removing it, and keep the folder.
  if (old_ != Old::kExchanged && old_ != Old::kAside) co_return Status::Ok();
  const std::uint64_t step = spec_.manifest.step;
  const Status there = co_await LookForStep(spec_.root, step, spec_.manifest.attempt);
  if (there.code() == StatusCode::kNotFound) {
    co_return Error(StatusCode::kUnknownOutcome,
                    "step {}: its rename into place succeeded, but {}; its old checkpoint stays", step,
                    there.message());
  }
  // Nobody could look, but it is durable. The next opening, or a removal of the step, removes the old one.
  if (!there.ok()) co_return Status::Ok();
  Leftovers left;
  if (old_ == Old::kExchanged)
    static_cast<void>(co_await RemoveRecycling(spec_.root, spec_.folder, spec_.spares, left));
  // Only this commit's: a writer that has taken over may be replacing the step again.
  if (old_ == Old::kAside) static_cast<void>(co_await RemoveReplacedFolder(spec_.root, replaced_path_));
  co_return Status::Ok();
}

IoTask<Status> LookForStep(PathAt root, std::uint64_t step, std::string uuid) {
  UniqueFd root_fd;
  co_return co_await LookTask(std::move(root), step, std::move(uuid), root_fd);
}

void FindCommitted(IoQueue& queue, const PathAt& root, std::uint64_t step, const std::string& uuid, StatusDone done) {
  RunTask(queue, FindTask(root, step, uuid), std::move(done));
}

void AbortAttempt(IoQueue& queue, std::shared_ptr<AttemptFolder> folder, std::uint64_t step, StatusDone done) {
  RunTask(queue, AbortTask(std::move(folder), step), std::move(done));
}

}  // namespace cairn
