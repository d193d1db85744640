// Step 0 of the commit protocol, whose prose heads attempt.cc.

#include "store/root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "store/io_steps.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/remove.h"
#include "store/writer_lock.h"

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
Status FsyncParent(IoQueue& queue, const std::string& path, bool made) {
  const std::string parent = Parent(path);
  // A parent that nothing was made in, and that may not be opened or cannot be synced, is none of ours.
  const auto judge = [made](int error, Status plain) -> Result<Flow> {
    const bool foreign = error == EACCES || error == EPERM || error == EROFS || error == EINVAL;
    if (foreign && !made) return Flow::kNext;
    return plain;
  };
  UniqueFd fd;
  std::vector<IoStep> steps;
  steps.push_back(OpenDirectoryStep(parent, /*follow=*/true, fd));
  steps.back().on_error = judge;
  steps.push_back({.make = [&fd]() -> std::optional<IoRequest> {
                     if (!fd.valid()) return std::nullopt;
                     return IoRequest{.op = IoOp::kFsync, .fd = fd.get()};
                   },
                   .name = parent,
                   .on_error = judge});
  return RunStepsBlocking(queue, std::move(steps));
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
  CAIRN_RETURN_IF_ERROR(FsyncParent(queue, existing, /*made=*/false));
  for (auto directory = missing.rbegin(); directory != missing.rend(); ++directory) {
    std::vector<IoStep> steps;
    steps.push_back(
        {.make = [directory, mode] { return IoRequest{.op = IoOp::kMkdir, .path = *directory, .mode = mode}; },
         .on_error = [](int error, Status plain) -> Result<Flow> {
           if (error == EEXIST) return Flow::kNext;  // Another process was first.
           return plain;
         }});
    CAIRN_RETURN_IF_ERROR(RunStepsBlocking(queue, std::move(steps)));
    CAIRN_RETURN_IF_ERROR(FsyncParent(queue, *directory, /*made=*/true));
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
Status FsyncRoot(IoQueue& queue, const std::string& root) {
  UniqueFd root_fd;
  std::vector<IoStep> steps;
  steps.push_back(OpenDirectoryStep(root, /*follow=*/true, root_fd));
  steps.push_back(FsyncStep(root_fd, root));
  return RunStepsBlocking(queue, std::move(steps));
}

class RootDirectory final : public Root {
 public:
  RootDirectory(std::string path, std::optional<WriterLock> lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  [[nodiscard]] const std::string& path() const override { return path_; }
  void ForgetAfterFork() override {
    if (lock_) lock_->ForgetAfterFork();
  }

 private:
  const std::string path_;
  std::optional<WriterLock> lock_;
};

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
    return std::unique_ptr<Root>(std::make_unique<RootDirectory>(std::move(path), std::nullopt));
  }
  CAIRN_RETURN_IF_ERROR(MakeDirectories(queue, path, options.directory_mode));
  CAIRN_RETURN_IF_ERROR(CheckWritable(path));
  CAIRN_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Take(path, options.file_mode));
  CAIRN_RETURN_IF_ERROR(FsyncRoot(queue, path));
  return std::unique_ptr<Root>(std::make_unique<RootDirectory>(std::move(path), std::move(lock)));
}

void Sweep(IoQueue& queue, const std::string& root, const SpareWish& spares, SweepDone done) {
  const auto left = std::make_shared<Leftovers>();
  std::error_code error;
  const std::string real = std::filesystem::canonical(root, error).string();
  Result<std::vector<FolderEntry>> entries = error ? ErrnoStatus(error.value(), "listing " + root) : ListFolder(real);
  if (!entries.ok()) left->push_back(entries.status().message());
  std::vector<FolderEntry> found = entries.ok() ? *std::move(entries) : std::vector<FolderEntry>();
  std::erase_if(found, [](const FolderEntry& entry) { return !IsLeftover(entry.name); });
  // What is a spare already keeps its place.
  std::stable_partition(found.begin(), found.end(), [](const FolderEntry& entry) { return IsSpareName(entry.name); });
  std::vector<IoStep> steps;
  for (const FolderEntry& entry : found) {
    if (entry.directory) {
      AppendRecyclingRemoval(steps, root, entry.name, spares, left);
    } else {
      left->push_back(fmt::format("{} is not a directory and was left alone", JoinPath(root, entry.name)));
    }
  }
  RunSteps(queue, std::move(steps), [left, done = std::move(done)](const Status& status) {
    if (!status.ok()) left->push_back(status.message());
    done(std::move(*left));
  });
}

}  // namespace cairn
