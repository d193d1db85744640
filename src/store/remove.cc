// Step 6 of the commit protocol (see attempt.cc).

#include "store/remove.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "format/manifest.h"
#include "store/hold.h"
#include "store/list.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/pins.h"
#include "store/space.h"

namespace cairn {
namespace {

class FolderRemoval {
 public:
  FolderRemoval(PathAt root, PathAt folder, const SparePolicy& policy, Leftovers& left)
      : root_(std::move(root)), folder_(std::move(folder)), policy_(policy), left_(left) {}

  IoTask<Status> Run();

 private:
  [[nodiscard]] Status Look();
  [[nodiscard]] PathAt FindPlace() const;
  void PickSpares();
  IoTask<Status> UnlinkFiles();

  const PathAt root_;  // Empty without spares.
  const PathAt folder_;
  const SparePolicy& policy_;
  Leftovers& left_;
  std::vector<std::string> files_;
  // Files to keep, if all others can be unlinked.
  std::vector<std::string> spares_;
  // The spare folder that this folder becomes.
  PathAt place_;
  // Something in the folder cannot be removed.
  bool stays_ = false;
};

Status FolderRemoval::Look() {
  CAIRN_ASSIGN_OR_RETURN(std::vector<FolderEntry> entries, ListFolder(folder_));
  for (FolderEntry& entry : entries) {
    const PathAt path = JoinPath(folder_, entry.name);
    if (!entry.directory) {
      files_.push_back(std::move(entry.name));
      continue;
    }
    left_.push_back(
        fmt::format("{} is a directory that is not part of a checkpoint; it and {} were left alone", path, folder_));
    stays_ = true;
  }
  if (!stays_) PickSpares();
  return Status::Ok();
}

PathAt FolderRemoval::FindPlace() const {
  PathAt free;
  for (std::uint64_t number = 0; number < policy_.folders; ++number) {
    PathAt one = JoinPath(root_, SpareName(number));
    if (one == folder_) return one;
    const auto there = ListFolder(one);
    // A rename replaces an empty folder.
    const bool taken = there.ok() ? !there->empty() : there.status().code() != StatusCode::kNotFound;
    if (free.empty() && !taken) free = std::move(one);
  }
  return free;
}

void FolderRemoval::PickSpares() {
  std::set<std::string> wanted;
  for (std::uint64_t shard = 0; shard < policy_.shards; ++shard) wanted.insert(ShardName(shard));
  if (wanted.empty()) return;
  place_ = FindPlace();
  if (place_.empty()) return;
  std::erase_if(files_, [&](const std::string& name) {
    if (!wanted.contains(name)) return false;
    // In memory the other ranks have theirs mapped, and check them when they take them.
    const bool own = policy_.mapped == nullptr || name == ShardName(0);
    const Status status =
        own ? CheckRecyclable(JoinPath(folder_, name), policy_.file_mode, policy_.mapped) : Status::Ok();
    if (status.ok()) {
      spares_.push_back(name);
    } else if (policy_.not_recycled) {
      policy_.not_recycled(status.message());
    }
    return status.ok();
  });
}

IoTask<Status> FolderRemoval::UnlinkFiles() {
  for (const std::string& name : std::exchange(files_, {})) {
    IoResult unlinked = co_await io::Unlink(JoinPath(folder_, name));
    if (unlinked.ok() || unlinked.error == ENOENT) continue;
    left_.push_back(unlinked.status.message());
    stays_ = true;
  }
  co_return Status::Ok();
}

IoTask<Status> FolderRemoval::Run() {
  const Status looked = co_await io::OnThread(folder_.text(), [this] { return Look(); });
  if (!looked.ok()) {
    if (looked.code() != StatusCode::kNotFound) left_.push_back(looked.message());
    co_return Status::Ok();
  }
  static_cast<void>(co_await UnlinkFiles());
  if (!spares_.empty() && !stays_) {
    // If it already is that spare folder, this renames it to itself and does nothing.
    IoResult kept = co_await io::Rename(folder_, place_, RenameMode::kPlain);
    if (kept.ok()) co_return Status::Ok();
  }
  files_ = std::move(spares_);
  static_cast<void>(co_await UnlinkFiles());
  if (stays_) co_return Status::Ok();
  IoResult removed = co_await io::RemoveDirectory(folder_);
  if (!removed.ok() && removed.error != ENOENT) left_.push_back(removed.status.message());
  co_return Status::Ok();
}

IoTask<Status> List(const PathAt& root, std::vector<FolderEntry>& found) {
  co_return co_await io::OnThread(root.text(), [&root, &found]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(found, ListRoot(root));
    return Status::Ok();
  });
}

IoTask<Status> FindUnnamed(const PathAt& root, const std::vector<FolderEntry>& entries, const MemoryPlace& memory,
                           Swept& swept) {
  return io::OnThread(root.text(), [&root, &entries, &memory, &swept] {
    swept.unnamed = FindUnnamedAttempt(root, entries, memory);
    return Status::Ok();
  });
}

/// Whether the unnamed attempt may stay, after all else has gone.
Status KeepUnnamed(const PathAt& root, Swept& swept) {
  const UnnamedAttempt& found = *swept.unnamed;
  const PathAt path = JoinPath(root, found.folder);
  const std::string what = fmt::format(
      "nothing to do: training {}, because step {} was written, but not yet committed when its writer was killed (or "
      "the disk has lost its name)",
      found.newest ? fmt::format("resumes from step {}", *found.newest) : "begins anew", found.step);
  const Status room = CheckFreeSpace(root, path.text(), found.bytes);
  if (room.ok()) {
    swept.left.push_back(
        fmt::format("{}. {} stays until the next save is durable; to use it, end the job and rename it to {}", what,
                    path, StepName(found.step)));
  } else {
    swept.left.push_back(
        fmt::format("{}. {} is removed, because the next save needs its space: {}", what, path, room.message()));
    swept.unnamed.reset();
  }
  return Status::Ok();
}

/// Renames one folder, as it was found and locked, to `.retired-<uuid>` in the root, durably.
class Retirement {
 public:
  Retirement(const PathAt& root, const RemovalTarget& target, const RemovalOptions& options, HeldFolder held)
      : root_(root),
        target_(target),
        options_(options),
        folder_(JoinPath(target.parent, target.name)),
        held_(std::move(held)),
        retired_(JoinPath(root, RetiredName(MakeUuid()))) {}

  IoTask<Status> Run();
  [[nodiscard]] const PathAt& retired() const { return retired_; }

 private:
  [[nodiscard]] Status CheckBeforeRename() const;
  [[nodiscard]] Status CheckAfterRename() const;
  IoTask<Status> Rename();
  IoTask<Status> FsyncDirectories();

  const PathAt& root_;
  const RemovalTarget& target_;
  const RemovalOptions& options_;
  const PathAt folder_;
  HeldFolder held_;
  const PathAt retired_;
  UniqueFd root_fd_;
  UniqueFd parent_fd_;
};

// Readers are locked out, and pinning takes a reader's lock, so nobody pins it from here on.
Status Retirement::CheckBeforeRename() const {
  if (options_.check_writer) CAIRN_RETURN_IF_ERROR(options_.check_writer());
  if (options_.pinned == Pinned::kStays && IsPinned(folder_)) {
    return Error(StatusCode::kFailedPrecondition, "{} is pinned", target_.called);
  }
  if (options_.attempt.empty()) return Status::Ok();
  const std::string path = JoinPath(folder_, kManifestName).text();
  CAIRN_ASSIGN_OR_RETURN(const Manifest found, ReadManifest(held_.fd, path));
  if (found.attempt == options_.attempt) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "{}: expected attempt {}, found {}, which this writer does not know",
               path, options_.attempt, found.attempt);
}

// The renamed folder must be the one that was checked, and no new writer may have listed it meanwhile.
Status Retirement::CheckAfterRename() const {
  if (options_.check_writer) CAIRN_RETURN_IF_ERROR(options_.check_writer());
  if (IsSameFile(retired_, held_.fd)) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition, "{} was replaced while it was being retired", folder_);
}

IoTask<Status> Retirement::Rename() {
  IoResult renamed = co_await io::Rename(folder_, retired_, RenameMode::kPlain);
  if (renamed.error == EXDEV) {
    co_return Error(StatusCode::kUnsupported,
                    "{}; the folder is on another filesystem than {}, or in a lower layer of an overlay, which cannot "
                    "rename it: put the root on its own volume, or mount the overlay with redirect_dir=on",
                    renamed.status.message(), root_);
  }
  if (!renamed.ok()) {
    // A broken queue may still carry it out.
    const bool still = renamed.error != kBrokenQueue && co_await IsStillSameFile(folder_, held_.fd);
    if (still) co_return renamed.status;
    co_return Error(StatusCode::kUnknownOutcome, "removal of {}: {}", target_.called, renamed.status.message());
  }
  const Status checked = co_await io::OnThread(folder_.text(), [this] { return CheckAfterRename(); });
  if (checked.ok()) co_return checked;
  IoResult undone = co_await RenameToNew(retired_, folder_);
  if (undone.ok()) co_return checked;
  co_return Error(StatusCode::kUnknownOutcome, "removal of {}: {}; {}", target_.called, checked.message(),
                  undone.status.message());
}

IoTask<Status> Retirement::FsyncDirectories() {
  // The directory with the new name first, so that no power cut leaves the folder in neither.
  IoResult durable = co_await io::Fsync(root_fd_, root_.text());
  if (durable.ok() && parent_fd_.valid()) durable = co_await io::Fsync(parent_fd_, target_.parent.text());
  if (durable.ok()) co_return Status::Ok();
  // Until the rename is on the disk, a power cut may bring the name back: nothing in the folder may be touched.
  co_return Error(StatusCode::kUnknownOutcome, "removal of {}: {}; a power cut may bring it back", target_.called,
                  durable.status.message());
}

IoTask<Status> Retirement::Run() {
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(root_, /*follow=*/true, root_fd_));
  if (target_.parent != root_) {
    CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(target_.parent, /*follow=*/true, parent_fd_));
  }
  if (!held_.fd.valid()) CAIRN_CO_RETURN_IF_ERROR(co_await HoldFolder(folder_, held_));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(folder_.text(), [this] { return CheckBeforeRename(); }));
  const std::optional<std::uint64_t> step = target_.parent == root_ ? ParseStepName(target_.name) : std::nullopt;
  if (step) CAIRN_CO_RETURN_IF_ERROR(co_await RemoveReplaced(root_, *step, options_.check_writer));
  CAIRN_CO_RETURN_IF_ERROR(co_await Rename());
  co_return co_await FsyncDirectories();
}

IoTask<Status> RetireStep(PathAt root, std::uint64_t step, RemovalOptions options) {
  const RemovalTarget target{.parent = root, .name = StepName(step), .called = fmt::format("step {}", step)};
  HeldFolder held;
  Leftovers left;
  CAIRN_CO_RETURN_IF_ERROR(co_await RetireFolder(root, target, options, std::move(held), left));
  if (left.empty()) co_return Status::Ok();
  co_return Error(StatusCode::kIoError, "step {} is removed, but some of its files are left: {}", step,
                  fmt::join(left, "; "));
}

IoTask<Status> RemovalTask(PathAt root, std::uint64_t step, RemovalOptions options, std::shared_ptr<Removal> removal) {
  removal->status = co_await RetireStep(root, step, std::move(options));
  removal->gone = removal->status.ok();
  if (removal->gone) co_return Status::Ok();
  // If the disk cannot be read, it counts as present and pinned.
  static_cast<void>(co_await io::OnThread(root.text(), [&root, step, &removal] {
    removal->gone = !StepExists(root, step);
    removal->pinned = !removal->gone && IsPinned(root, step);
    return Status::Ok();
  }));
  co_return Status::Ok();
}

/// The next sweep removes what is left.
IoTask<Status> RemoveRetired(const PathAt& root, const PathAt& retired) {
  UniqueFd root_fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(root, /*follow=*/true, root_fd));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(root_fd, root.text()));
  Leftovers left;
  co_return co_await RemoveFolder(retired, left);
}

}  // namespace

IoTask<Status> RemoveFolder(const PathAt& folder, Leftovers& left) {
  const SparePolicy none;
  FolderRemoval removal(PathAt(), folder, none, left);
  co_return co_await removal.Run();
}

IoTask<Status> RemoveUnnamed(PathAt folder) {
  Leftovers left;  // The next sweep removes them.
  co_return co_await RemoveFolder(folder, left);
}

IoTask<Status> RemoveRecycling(const PathAt& root, const PathAt& folder, const SparePolicy& policy, Leftovers& left) {
  FolderRemoval removal(root, folder, policy, left);
  co_return co_await removal.Run();
}

IoTask<Status> RemoveReplaced(const PathAt& root, std::uint64_t step, WriterCheck check_writer) {
  std::vector<FolderEntry> entries;
  CAIRN_CO_RETURN_IF_ERROR(co_await List(root, entries));
  for (const FolderEntry& entry : entries) {
    if (!entry.directory || ParseReplacedName(entry.name) != step) continue;
    const PathAt path = JoinPath(root, entry.name);
    const PathAt retired = JoinPath(root, RetiredName(MakeUuid()));
    CAIRN_CO_RETURN_IF_ERROR(co_await CheckWriter(root, check_writer));
    CAIRN_CO_RETURN_IF_ERROR(co_await io::Rename(path, retired, RenameMode::kPlain));
    Status displaced = co_await CheckWriter(root, check_writer);
    if (!displaced.ok()) {
      static_cast<void>(co_await RenameToNew(retired, path));
      co_return displaced;
    }
    CAIRN_CO_RETURN_IF_ERROR(co_await RemoveRetired(root, retired));
  }
  co_return Status::Ok();
}

IoTask<Status> RemoveReplacedFolder(const PathAt& root, const PathAt& replaced) {
  const PathAt retired = JoinPath(root, RetiredName(MakeUuid()));
  CAIRN_CO_RETURN_IF_ERROR(co_await io::Rename(replaced, retired, RenameMode::kPlain));
  co_return co_await RemoveRetired(root, retired);
}

IoTask<Status> LockOutReaders(const PathAt& folder, std::optional<Flock>& lock) {
  const PathAt path = JoinPath(folder, kManifestName);
  UniqueFd manifest;
  // Read-write if permitted: NFS grants an exclusive lock only on such descriptors.
  IoResult opened = co_await io::Open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, manifest);
  if (opened.error == EACCES) opened = co_await io::Open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, manifest);
  if (opened.error == ENOENT || opened.error == ELOOP || opened.error == EISDIR) co_return Status::Ok();
  CAIRN_CO_RETURN_IF_ERROR(std::move(opened));
  co_return co_await io::OnThread(folder.text(), [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(lock, Flock::TryTake(std::move(manifest), Flock::Kind::kExclusive, folder.text()));
    return Status::Ok();
  });
}

Status StillRead(const PathAt& folder, std::chrono::nanoseconds waited) {
  return Error(StatusCode::kDeadlineExceeded,
               "{} cannot be replaced or removed: it was still being read after {:.3g} s by {}; it is unchanged",
               folder, std::chrono::duration<double>(waited).count(), DescribeHolders(JoinPath(folder, kManifestName)));
}

IoTask<Status> HoldFolder(const PathAt& folder, HeldFolder& held) {
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(folder, /*follow=*/false, held.fd));
  co_return co_await LockOutReaders(PathAt(held.fd.get(), folder.text()), held.lock);
}

IoTask<Status> RetireFolder(const PathAt& root, const RemovalTarget& target, const RemovalOptions& options,
                            HeldFolder held, Leftovers& left) {
  PathAt retired;
  {
    // Close the descriptors first: NFS would rename an open file instead of removing it, and keep the folder.
    Retirement retirement(root, target, options, std::move(held));
    CAIRN_CO_RETURN_IF_ERROR(co_await retirement.Run());
    retired = retirement.retired();
  }
  FolderRemoval removal(root, retired, options.spares, left);
  co_return co_await removal.Run();
}

void RemoveCheckpoint(IoQueue& queue, const PathAt& root, std::uint64_t step, RemovalOptions options,
                      std::function<void(const Removal&)> done) {
  const auto removal = std::make_shared<Removal>();
  RunInBackground(queue, RemovalTask(root, step, std::move(options), removal),
                  [removal, done = std::move(done)](const Status&) { done(*removal); });
}

Removal RemoveCheckpointBlocking(IoQueue& queue, const PathAt& root, std::uint64_t step, RemovalOptions options) {
  const auto removal = std::make_shared<Removal>();
  const Status ran = RunTaskBlocking(queue, RemovalTask(root, step, std::move(options), removal));
  if (!ran.ok()) removal->status = ran;
  return *removal;
}

IoTask<Status> SweepTask(PathAt root, SparePolicy spares, MemoryPlace memory, Swept& swept) {
  std::vector<FolderEntry> found;
  CAIRN_CO_RETURN_IF_ERROR(co_await List(root, found));
  // In memory no rename is lost.
  if (spares.mapped == nullptr) CAIRN_CO_RETURN_IF_ERROR(co_await FindUnnamed(root, found, memory, swept));
  const std::string unnamed = swept.unnamed ? swept.unnamed->folder : std::string();
  std::erase_if(found, [&](const FolderEntry& entry) { return !IsLeftover(entry.name) || entry.name == unnamed; });
  // Spares first, so that they keep their folders.
  std::stable_partition(found.begin(), found.end(), [](const FolderEntry& entry) { return IsSpareName(entry.name); });
  for (const FolderEntry& entry : found) {
    if (entry.directory && IsAttemptName(entry.name)) continue;  // Of a save in flight.
    if (entry.directory) {
      static_cast<void>(co_await RemoveRecycling(root, JoinPath(root, entry.name), spares, swept.left));
    } else {
      swept.left.push_back(fmt::format("{} is not a directory and was left alone", JoinPath(root, entry.name)));
    }
  }
  CAIRN_CO_RETURN_IF_ERROR(co_await DropStaleHolds(root, swept.left));
  if (unnamed.empty()) co_return Status::Ok();
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(root.text(), [&] { return KeepUnnamed(root, swept); }));
  if (!swept.unnamed) co_return co_await RemoveRecycling(root, JoinPath(root, unnamed), spares, swept.left);
  co_return Status::Ok();
}

void Sweep(IoQueue& queue, const PathAt& root, const SparePolicy& spares, const MemoryPlace& memory, SweepDone done) {
  const auto swept = std::make_shared<Swept>();
  RunInBackground(queue, SweepTask(root, spares, memory, *swept),
                  [swept, done = std::move(done)](const Status& status) {
                    if (!status.ok()) swept->left.push_back(status.message());
                    done(std::move(*swept));
                  });
}

IoTask<Status> RemoveSparesTask(PathAt root, WriterCheck check_writer) {
  CAIRN_CO_RETURN_IF_ERROR(co_await CheckWriter(root, check_writer));
  std::vector<FolderEntry> entries;
  CAIRN_CO_RETURN_IF_ERROR(co_await List(root, entries));
  Leftovers left;
  for (const FolderEntry& entry : entries) {
    if (IsSpareName(entry.name)) static_cast<void>(co_await RemoveFolder(JoinPath(root, entry.name), left));
  }
  co_return Status::Ok();
}

}  // namespace cairn
