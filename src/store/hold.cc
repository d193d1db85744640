#include "store/hold.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "store/mirrors.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
namespace {

constexpr unsigned kHoldMode = 0755;

/// Locks the folder, against a removal that would take its files from under the links, and reads its manifest.
Status LockFolder(const PathAt& folder, HeldCheckpoint& held, UniqueFd& fd) {
  CAIRN_ASSIGN_OR_RETURN(ReadLock lock, ReadLock::Take(folder));
  fd = UniqueFd(::openat(folder.directory(), folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ReadErrnoStatus(errno, "opening " + folder.text());
  const std::string path = JoinPath(folder, kManifestName).text();
  CAIRN_ASSIGN_OR_RETURN(held.manifest, ReadManifestText(fd, path));
  CAIRN_ASSIGN_OR_RETURN(const Manifest found, DecodeManifest(held.manifest, path));
  const CheckpointInfo& wanted = held.checkpoint.info;
  if (found.attempt != wanted.attempt) {
    return Error(StatusCode::kNotFound, "step {} was replaced: expected attempt {}, found {}", wanted.step,
                 wanted.attempt, found.attempt);
  }
  // Without an index the checkpoint is just as good.
  struct stat index {};
  held.index = found.index && ::fstatat(fd.get(), found.index->file.c_str(), &index, AT_SYMLINK_NOFOLLOW) == 0 &&
               S_ISREG(index.st_mode) && static_cast<std::uint64_t>(index.st_size) == found.index->length;
  held.lock.emplace(std::move(lock));
  return Status::Ok();
}

/// Gives one file of the open folder a second name. Its error is one of the link; `missing` is one of the file.
IoTask<Status> LinkOne(const PathAt& from, const PathAt& to, std::string name, Status& missing) {
  const PathAt path = JoinPath(from, name);
  UniqueFd fd;
  IoResult opened = co_await io::Open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, fd);
  if (opened.error == ENOENT || opened.error == ELOOP) {
    missing = Error(StatusCode::kCorrupt, "{}: expected a regular file, found {}", path,
                    opened.error == ELOOP ? "a link" : "none");
  } else if (!opened.ok()) {
    missing = ReadErrnoStatus(opened.error, "opening " + path.text());
  }
  if (!opened.ok()) co_return Status::Ok();
  co_return co_await io::Link(fd, path.text(), JoinPath(to, name));
}

IoTask<Status> LinkFiles(const PathAt& from, const PathAt& to, const HeldCheckpoint& held, Status& missing) {
  const Manifest& manifest = held.checkpoint.manifest;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::MakeDirectory(to, kHoldMode));
  for (const ManifestShard& shard : manifest.shards) {
    CAIRN_CO_RETURN_IF_ERROR(co_await LinkOne(from, to, shard.file, missing));
    if (!missing.ok()) co_return Status::Ok();
  }
  if (!held.index) co_return Status::Ok();
  co_return co_await LinkOne(from, to, manifest.index->file, missing);
}

IoTask<Status> ListIfThere(const PathAt& folder, std::vector<FolderEntry>& found, Leftovers& left) {
  const Status listed = co_await io::OnThread(folder.text(), [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(found, ListFolder(folder));
    return Status::Ok();
  });
  if (!listed.ok() && listed.code() != StatusCode::kNotFound) left.push_back(listed.message());
  co_return Status::Ok();
}

}  // namespace

IoTask<Status> HoldCheckpoint(PathAt root, PathAt holds, StoredCheckpoint wanted, HeldCheckpoint& held) {
  const std::string name = StepName(wanted.info.step);
  const PathAt folder = JoinPath(root, name);
  held = {};
  held.checkpoint = std::move(wanted);
  held.checkpoint.info.path = folder.text();
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OnThread(folder.text(), [&] { return LockFolder(folder, held, fd); }));
  const PathAt links = JoinPath(holds, name);
  Status missing;
  held.not_linked = co_await LinkFiles(PathAt(fd.get(), folder.text()), links, held, missing);
  CAIRN_CO_RETURN_IF_ERROR(std::move(missing));
  if (held.not_linked.ok()) {
    held.checkpoint.info.path = links.text();
    held.lock.reset();
    co_return Status::Ok();
  }
  // Some filesystems and mounts have no hard links, and a full disk has no room for one more name.
  Leftovers left;
  co_return co_await DropHolds(holds, left);
}

IoTask<Status> DropHolds(PathAt holds, Leftovers& left) {
  std::vector<FolderEntry> found;
  CAIRN_CO_RETURN_IF_ERROR(co_await ListIfThere(holds, found, left));
  for (const FolderEntry& entry : found) {
    if (entry.directory) CAIRN_CO_RETURN_IF_ERROR(co_await RemoveFolder(JoinPath(holds, entry.name), left));
  }
  co_return Status::Ok();
}

IoTask<Status> DropStaleHolds(PathAt root, Leftovers& left) {
  const PathAt mirrors = JoinPath(root, kMirrorsName);
  std::vector<FolderEntry> found;
  CAIRN_CO_RETURN_IF_ERROR(co_await ListIfThere(mirrors, found, left));
  for (const FolderEntry& entry : found) {
    const PathAt holds = JoinPath(mirrors, entry.name);
    std::optional<WriterLock> lock;
    if (!entry.directory) continue;
    const Status locked = co_await io::OnThread(holds.text(), [&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(std::optional<WriterLock> taken, WriterLock::TryTake(holds, kMirrorFileMode));
      if (taken) lock.emplace(*std::move(taken));
      return Status::Ok();
    });
    // Without locks nobody can tell whether it was killed.
    if (!locked.ok() || !lock || !lock->locks()) continue;
    CAIRN_CO_RETURN_IF_ERROR(co_await DropHolds(holds, left));
  }
  co_return Status::Ok();
}

}  // namespace cairn
