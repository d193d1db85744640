// Step 0 of the commit protocol, whose prose heads attempt.cc.

#include "store/root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "io/io_task.h"

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

/// Makes the entry of `path` in its parent durable.
IoTask<Status> FsyncParent(std::string parent, bool made) {
  UniqueFd fd;
  IoResult result = co_await io::OpenDirectory(parent, /*follow=*/true, fd);
  if (result.ok()) result = co_await io::Fsync(fd, parent);
  // A parent that nothing was made in, and that may not be opened or cannot be synced, is none of ours.
  const bool foreign =
      result.error == EACCES || result.error == EPERM || result.error == EROFS || result.error == EINVAL;
  if (foreign && !made) co_return Status::Ok();
  co_return result.status;
}

IoTask<Status> MakeDirectory(std::string path, unsigned mode) {
  IoResult made = co_await io::MakeDirectory(path, mode);
  if (!made.ok() && made.error != EEXIST) co_return made.status;  // It is there where another process was first.
  co_return co_await FsyncParent(Parent(path), /*made=*/true);
}

/// Makes the directory and its missing parents, from the top, each durable before the next is made in it. What is there
/// already may be from a process that was killed between making it and its fsync: its parent is fsynced too.
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
  return Error(StatusCode::kFailedPrecondition, "{}: it was made and is not there", path);
}

Status CheckWritable(const std::string& path) {
  if (::faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return Status::Ok();
  return ErrnoStatus(errno, "writing into " + path);
}

/// A rename that was cut short by a kill may not be on the disk yet: what it renamed must not be listed, nor touched,
/// before it is.
IoTask<Status> FsyncRoot(std::string root) {
  UniqueFd fd;
  CAIRN_CO_RETURN_IF_ERROR(co_await io::OpenDirectory(root, /*follow=*/true, fd));
  co_return co_await io::Fsync(fd, root);
}

}  // namespace

Result<std::unique_ptr<Root>> Root::Open(IoQueue& queue, const RootOptions& options) {
  if (options.path.empty()) return Error(StatusCode::kInvalidArgument, "the root's path is empty");
  std::error_code error;
  std::string path = std::filesystem::absolute(options.path, error).string();
  if (error) return ErrnoStatus(error.value(), "looking for " + options.path);
  while (path.size() > 1 && path.back() == '/') path.pop_back();

  if (options.read_only || !options.coordinator) {
    CAIRN_ASSIGN_OR_RETURN(const Found found, Look(path));
    if (found == Found::kNothing && options.read_only) {
      return Error(StatusCode::kNotFound, "{}: no such directory, and it is to be read only", path);
    }
    if (found == Found::kDirectory && !options.read_only) CAIRN_RETURN_IF_ERROR(CheckWritable(path));
    return std::unique_ptr<Root>(new Root(std::move(path), std::nullopt));
  }
  CAIRN_RETURN_IF_ERROR(MakeDirectories(queue, path, options.directory_mode));
  CAIRN_RETURN_IF_ERROR(CheckWritable(path));
  CAIRN_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Take(path, options.file_mode));
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, FsyncRoot(path)));
  return std::unique_ptr<Root>(new Root(std::move(path), std::move(lock)));
}

}  // namespace cairn
