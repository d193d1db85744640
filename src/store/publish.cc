// Publishing: moving a checkpoint to a path outside the root. Each numbered step completes before the next begins.
//
// 1. Look. Open and hold the path's directory: everything below is relative to it and to the root's directory. The path
//    has nothing; or a link, which is never followed; or a checkpoint, which is opened and its manifest locked, so that
//    nobody reads it (wait for that up to the deadline), and which must then still be at the path. Anything else is
//    left as it is.
// 2. Take. If the path has nothing, rename step-N to it without replacing; else exchange the two names. Fsync the
//    path's directory, then the root. Only now is the checkpoint durable at its path. If the filesystem cannot exchange
//    names, an occupied path is an error: between two renames the path would have nothing, and a job restarted then
//    would find no checkpoint and begin at step 0.
// 3. Retire. What the path had is now step-N. It goes like any checkpoint (step 6 in attempt.cc): rename it to
//    `.retired-<uuid>` in the root, fsync the directories, and only then unlink its files. It stays locked until then.
//    A link is unlinked.
//
// A removal is 1 and 3. After a crash, step-N in the root either has no path or is what a path had before, which may be
// another step. So nobody restores from a root whose steps are published, and the next writer removes such steps.
// Opening has already fsynced the root's parent directory (see root.cc). An exchange with a path in another directory
// is durable after the fsync of either: the journals of ext4 and XFS guarantee that.

#include "store/publish.h"

#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "store/held_entry.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
namespace {

/// The open root.
struct OpenRootDirectory {
  UniqueFd fd;
  PathAt at;

  IoTask<Status> Open(const PathAt& root) {
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(root, /*follow=*/true, fd));
    at = PathAt(fd.get(), root.text());
    co_return Status::Ok();
  }
};

/// Opens the directory of a path that must be outside the root.
IoTask<Status> OpenOutside(const PathAt& root, HeldEntry& entry) {
  CAIRN_CO_RETURN_IF_ERROR(co_await entry.Open());
  co_return co_await io::OnThread(entry.at().text(), [&root, &entry] {
    if (!IsSameFile(root, entry.fd())) return Status::Ok();
    return Error(StatusCode::kInvalidArgument, "{}: expected a path outside the root, {}", entry.at(), root);
  });
}

/// Step 3 for the old entry, which now is `target`.
IoTask<Status> RetireOld(const PathAt& root, const RemovalTarget& target, HeldEntry& entry,
                         const WriterCheck& check_writer, Leftovers& left) {
  if (entry.kind() == EntryKind::kCheckpoint) {
    const RemovalOptions options{.check_writer = check_writer, .pinned = Pinned::kGoes};
    co_return co_await RetireFolder(root, target, options, entry.TakeOld(), left);
  }
  co_return co_await io::Unlink(JoinPath(target.parent, target.name));
}

class Publication {
 public:
  Publication(const PathAt& root, std::uint64_t step, HeldEntry entry, const PublishOptions& options)
      : root_path_(root), step_(step), step_name_(StepName(step)), entry_(std::move(entry)), options_(options) {}

  [[nodiscard]] Status Run(IoQueue& queue, Leftovers& left);

 private:
  IoTask<Status> Begin();
  [[nodiscard]] Status CheckPlace() const;
  IoTask<Status> Take();
  IoTask<Status> Rename();
  IoTask<Status> Explain(IoResult renamed);
  IoTask<Status> RetireOld(Leftovers& left);

  const PathAt& root_path_;
  const std::uint64_t step_;
  const std::string step_name_;
  HeldEntry entry_;
  const PublishOptions& options_;
  OpenRootDirectory root_;
  // step-N, relative to the open root.
  PathAt staged_;
  // Locked against readers.
  HeldFolder held_;
  // What the path had, once it has been replaced.
  RemovalTarget old_;
};

Status Publication::Run(IoQueue& queue, Leftovers& left) {
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, Begin()));
  CAIRN_RETURN_IF_ERROR(entry_.WaitUntilUnread(queue, options_.deadline));
  CAIRN_RETURN_IF_ERROR(CheckPlace());
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, Take()));
  if (entry_.kind() == EntryKind::kNothing) return Status::Ok();
  // The new checkpoint is durable, so a failure here is only a leftover.
  if (const Status retired = RunTaskBlocking(queue, RetireOld(left)); !retired.ok()) left.push_back(retired.message());
  return Status::Ok();
}

IoTask<Status> Publication::Begin() {
  CAIRN_CO_RETURN_IF_ERROR(co_await root_.Open(root_path_));
  staged_ = JoinPath(root_.at, step_name_);
  CAIRN_CO_RETURN_IF_ERROR(co_await HoldFolder(staged_, held_));
  co_return co_await OpenOutside(root_path_, entry_);
}

Status Publication::CheckPlace() const {
  if (entry_.kind() != EntryKind::kOther) return Status::Ok();
  return Error(StatusCode::kAlreadyExists, "{} exists and is not a Cairn checkpoint; it is unchanged", entry_.at());
}

IoTask<Status> Publication::Take() {
  CAIRN_CO_RETURN_IF_ERROR(co_await CheckWriter(root_path_, options_.check_writer));
  CAIRN_CO_RETURN_IF_ERROR(co_await RemoveReplaced(root_path_, step_, options_.check_writer));
  CAIRN_CO_RETURN_IF_ERROR(co_await Rename());
  Status durable = co_await entry_.Fsync();
  if (durable.ok()) durable = co_await io::Fsync(root_.fd, root_.at.text());
  if (durable.ok()) co_return durable;
  co_return Error(StatusCode::kUnknownOutcome, "{} was renamed to {}, but {}", staged_, entry_.at(), durable.message());
}

IoTask<Status> Publication::Rename() {
  const bool replaces = entry_.kind() != EntryKind::kNothing;
  IoResult renamed;
  if (replaces) {
    renamed = co_await io::Rename(staged_, entry_.at(), RenameMode::kExchange);
    if (RefusesFlags(renamed)) {
      co_return Error(StatusCode::kUnsupported,
                      "{} cannot be replaced: this filesystem cannot exchange names; give each save a different name",
                      entry_.at());
    }
  } else {
    renamed = co_await RenameToNew(staged_, entry_.at());
  }
  if (!renamed.ok()) CAIRN_CO_RETURN_IF_ERROR(co_await Explain(std::move(renamed)));
  if (!replaces) co_return Status::Ok();
  old_.parent = root_path_;
  old_.name = step_name_;
  const bool as_found = co_await entry_.Has(staged_);
  if (as_found) co_return Status::Ok();
  const Status why = Error(StatusCode::kFailedPrecondition, "{} was replaced by something else meanwhile", entry_.at());
  IoResult undone = co_await io::Rename(staged_, entry_.at(), RenameMode::kExchange);
  if (undone.ok()) co_return why;
  co_return Error(StatusCode::kUnknownOutcome, "{}; {}", why.message(), undone.status.message());
}

// A rename of step-N failed, or its reply was lost; in that case Ok.
IoTask<Status> Publication::Explain(IoResult renamed) {
  const bool broken = renamed.error == kBrokenQueue;  // It may still carry the rename out.
  const bool still = !broken && co_await IsStillSameFile(staged_, held_.fd);
  if (still) {
    switch (renamed.error) {
      case EEXIST:
      case ENOTEMPTY:
      case ENOTDIR:
        co_return Error(StatusCode::kAlreadyExists, "{} was taken by something else meanwhile", entry_.at());
      case EXDEV:
        co_return Error(StatusCode::kUnsupported, "{}: {} is on another filesystem, or a lower layer of an overlay",
                        renamed.status.message(), entry_.at());
      default:
        co_return renamed.status;
    }
  }
  const bool there = !broken && co_await IsStillSameFile(entry_.at(), held_.fd);
  if (there) co_return Status::Ok();
  co_return Error(StatusCode::kUnknownOutcome, "{}: {}", entry_.at(), renamed.status.message());
}

IoTask<Status> Publication::RetireOld(Leftovers& left) {
  old_.called = fmt::format("what {} had before", entry_.at());
  co_return co_await cairn::RetireOld(root_path_, old_, entry_, options_.check_writer, left);
}

IoTask<Status> RemoveTask(const PathAt& root, HeldEntry& entry, const WriterCheck& check_writer, Leftovers& left) {
  CAIRN_CO_RETURN_IF_ERROR(co_await CheckWriter(root, check_writer));
  const RemovalTarget target{.parent = entry.parent(), .name = entry.name(), .called = entry.at().text()};
  CAIRN_CO_RETURN_IF_ERROR(co_await RetireOld(root, target, entry, check_writer, left));
  if (entry.kind() != EntryKind::kLink) co_return Status::Ok();
  const Status durable = co_await entry.Fsync();
  if (durable.ok()) co_return durable;
  co_return Error(StatusCode::kUnknownOutcome, "{} was unlinked, but {}", entry.at(), durable.message());
}

}  // namespace

Status Publish(IoQueue& queue, const PathAt& root, std::uint64_t step, const std::string& path,
               const PublishOptions& options, Leftovers& left) {
  CAIRN_ASSIGN_OR_RETURN(HeldEntry entry, MakeHeldEntry(path));
  return Publication(root, step, std::move(entry), options).Run(queue, left);
}

Status RemovePublished(IoQueue& queue, const PathAt& root, const std::string& path, const PublishOptions& options,
                       Leftovers& left) {
  CAIRN_ASSIGN_OR_RETURN(HeldEntry entry, MakeHeldEntry(path));
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, OpenOutside(root, entry)));
  CAIRN_RETURN_IF_ERROR(entry.WaitUntilUnread(queue, options.deadline));
  if (entry.kind() == EntryKind::kNothing) return Error(StatusCode::kNotFound, "{}: no checkpoint there", path);
  if (entry.kind() == EntryKind::kOther) {
    return Error(StatusCode::kInvalidArgument, "{} is not a Cairn checkpoint; it is unchanged", path);
  }
  return RunTaskBlocking(queue, RemoveTask(root, entry, options.check_writer, left));
}

}  // namespace cairn
