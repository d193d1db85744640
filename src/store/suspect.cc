#include "store/suspect.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "store/list.h"
#include "store/locks.h"
#include "store/names.h"

namespace cairn {
namespace {

/// Locks the folder against a removal, which would take it from under the mark. NotFound if it is not to be marked.
Status HoldSuspect(const PathAt& folder, const SuspectSteps& found, std::optional<ReadLock>& lock) {
  CAIRN_ASSIGN_OR_RETURN(ReadLock taken, ReadLock::Take(folder));
  const UniqueFd fd(::openat(folder.directory(), folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + folder.text());
  CAIRN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fd, JoinPath(folder, kManifestName).text()));
  const bool links = std::ranges::any_of(manifest.shards, [&](const auto& one) { return one.file == found.file; });
  if (!links || manifest.attempt == found.writer) return Error(StatusCode::kNotFound, "{}: no such file", folder);
  lock.emplace(std::move(taken));
  return Status::Ok();
}

IoTask<Status> MarkOne(PathAt folder, const SuspectSteps& found, unsigned file_mode) {
  std::optional<ReadLock> lock;
  Status held = co_await io::OnThread(folder.text(), [&] { return HoldSuspect(folder, found, lock); });
  if (held.code() == StatusCode::kNotFound) co_return Status::Ok();
  CAIRN_CO_RETURN_IF_ERROR(std::move(held));
  co_return co_await MarkSuspectFolder(folder, file_mode);
}

}  // namespace

bool IsSuspect(const UniqueFd& folder) {
  return ::faccessat(folder.get(), std::string(kSuspectName).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
         errno != ENOENT;
}

IoTask<Status> MarkSuspectFolder(PathAt folder, unsigned file_mode) {
  UniqueFd folder_fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(folder, /*follow=*/false, folder_fd));
  UniqueFd fd;
  const PathAt path = JoinPath(folder, kSuspectName);
  IoResult made = co_await io::Create(path, 0, file_mode, fd);
  if (made.error != EEXIST) {
    CAIRN_CO_RETURN_IF_ERROR(std::move(made));
    CAIRN_CO_RETURN_IF_ERROR(co_await io::Fsync(fd, path.text()));
    CAIRN_CO_RETURN_IF_ERROR(co_await io::Close(fd, path.text()));
  }
  co_return co_await io::Fsync(folder_fd, folder.text());
}

IoTask<Status> MarkSuspect(PathAt root, std::vector<SuspectSteps> found, std::optional<PathAt> attempt,
                           unsigned file_mode) {
  Status first;
  if (attempt) first = co_await MarkSuspectFolder(*attempt, file_mode);
  for (const SuspectSteps& one : found) {
    for (const std::uint64_t step : one.steps) {
      Status marked = co_await MarkOne(JoinPath(root, StepName(step)), one, file_mode);
      if (first.ok()) first = std::move(marked);
    }
  }
  co_return first;
}

}  // namespace cairn
