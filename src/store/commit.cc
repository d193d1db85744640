#include "store/commit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "store/flock.h"
#include "store/io_steps.h"
#include "store/manifest_file.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/remove.h"
#include "store/root.h"
#include "store/space.h"
#include "store/spare.h"

namespace cairn {
namespace {

struct Commit {
  CommitSpec spec;
  std::string target;  // <root>/step-N
  std::string path;    // The manifest's, in the attempt.
  std::string text;
  RenameMode mode = RenameMode::kNoReplace;
  bool in_place = false;
  UniqueFd root_fd;
  UniqueFd manifest_fd;
  UniqueFd pin_fd;
  UniqueFd old_folder_fd;
  UniqueFd old_manifest_fd;
  std::optional<Flock> old_lock;

  [[nodiscard]] Result<Flow> JudgeRename(int error, Status plain);
};

Result<Flow> Commit::JudgeRename(int error, Status plain) {
  const bool refused = error == EINVAL || error == ENOSYS;
  if (refused && mode == RenameMode::kExchange) {
    return Error(StatusCode::kUnsupported, "step {} cannot be replaced: this filesystem does not exchange names ({})",
                 spec.manifest.step, plain.message());
  }
  if (refused && mode == RenameMode::kNoReplace) {
    // NFS and some FUSE know no flags. The plain call does not replace a folder that holds anything either.
    mode = RenameMode::kPlain;
    return Flow::kAgain;
  }
  if (error == EEXIST || error == ENOTEMPTY) {
    return Error(StatusCode::kAlreadyExists, "step {} is committed already, as {}", spec.manifest.step, target);
  }
  // An error need not mean that nothing happened: a lost answer, an interrupted wait. Nor, from a broken queue, that
  // nothing will yet.
  if (error != kBrokenQueue && LeadsTo(spec.folder, *spec.folder_fd)) return plain;
  in_place = true;
  return Error(StatusCode::kUnknownOutcome, "step {}: {}", spec.manifest.step, plain.message());
}

void AppendManifest(std::vector<IoStep>& steps, Commit& commit) {
  std::vector<IoStep> manifest;
  manifest.push_back({.check = [&commit] { return CheckFileSizeLimit(commit.path, commit.text.size()); }});
  manifest.push_back(CreateFileStep(commit.path, 0, commit.spec.file_mode, commit.manifest_fd));
  manifest.push_back(
      WriteStep(commit.manifest_fd, commit.path, 0, std::as_bytes(std::span(commit.text)), /*alignment=*/1));
  FreeSparesWhenFull(manifest, commit.spec.spares);
  std::vector<std::vector<IoStep>> written;
  written.push_back(std::move(manifest));
  if (!commit.spec.written_beside.empty()) written.push_back(std::move(commit.spec.written_beside));
  steps.push_back({.together = std::move(written)});
  // Only now, when nothing is missing any more: a filesystem with a journal commits it once for all.
  std::vector<std::vector<IoStep>> fsyncs = std::move(commit.spec.fsynced_beside);
  fsyncs.push_back({FsyncStep(commit.manifest_fd, commit.path), CloseStep(commit.manifest_fd, commit.path)});
  fsyncs.push_back({FsyncStep(*commit.spec.folder_fd, commit.spec.folder)});
  steps.push_back({.together = std::move(fsyncs)});
}

/// The old step-N, if there is one, is locked against readers; then, and not before, the rename is an exchange.
void AppendLockOfOld(std::vector<IoStep>& steps, Commit& commit) {
  IoStep open = OpenDirectoryStep(commit.target, /*follow=*/false, commit.old_folder_fd);
  open.on_error = [](int error, Status plain) -> Result<Flow> {
    if (error == ENOENT) return Flow::kNext;
    return plain;
  };
  steps.push_back(std::move(open));
  AppendReaderLockout(steps, commit.target, commit.old_manifest_fd, commit.old_lock);
  steps.push_back({.check = [&commit] {
    if (commit.old_folder_fd.valid()) commit.mode = RenameMode::kExchange;
    return Status::Ok();
  }});
}

/// A pin is the step's, not the attempt's; nobody sets or takes it while the old one is locked.
void AppendPinOfOld(std::vector<IoStep>& steps, Commit& commit) {
  IoStep pin = CreateFileStep(JoinPath(commit.spec.folder, kPinName), 0, commit.spec.file_mode, commit.pin_fd);
  pin.make = [&commit, make = std::move(pin.make)]() -> std::optional<IoRequest> {
    if (!IsPinned(commit.spec.root, commit.spec.manifest.step)) return std::nullopt;
    return make();
  };
  steps.push_back(std::move(pin));
}

void AppendRename(std::vector<IoStep>& steps, Commit& commit) {
  steps.push_back(
      {.make =
           [&commit] {
             return IoRequest{
                 .op = IoOp::kRename, .path = commit.spec.folder, .path2 = commit.target, .rename = commit.mode};
           },
       .on_value =
           [&commit](std::int64_t) {
             commit.in_place = true;
             return Flow::kNext;
           },
       .on_error = [&commit](int error, Status plain) { return commit.JudgeRename(error, std::move(plain)); }});
  IoStep fsync = FsyncStep(commit.root_fd, commit.spec.root);
  fsync.on_error = [&commit](int, const Status& plain) -> Result<Flow> {
    return Error(StatusCode::kUnknownOutcome, "step {} was renamed into place, but {}", commit.spec.manifest.step,
                 plain.message());
  };
  steps.push_back(std::move(fsync));
}

/// After an exchange the old checkpoint has the attempt's name. Its removal is no part of the new one's fate: what
/// stays is the next sweep's.
void AppendRemovalOfOld(std::vector<IoStep>& steps, Commit& commit) {
  std::vector<IoStep> removal;
  AppendFolderRemoval(removal, commit.spec.folder, std::make_shared<Leftovers>());
  for (IoStep& step : removal) {
    step.make = [&commit, make = std::move(step.make)]() -> std::optional<IoRequest> {
      if (commit.mode != RenameMode::kExchange) return std::nullopt;
      return make();
    };
    steps.push_back(std::move(step));
  }
}

}  // namespace

void CommitFolder(IoQueue& queue, CommitSpec spec, CommitDone done) {
  const auto commit = std::make_shared<Commit>();
  commit->target = JoinPath(spec.root, StepName(spec.manifest.step));
  commit->path = JoinPath(spec.folder, kManifestName);
  commit->text = EncodeManifest(spec.manifest);
  commit->spec = std::move(spec);

  std::vector<IoStep> steps;
  // The root is opened first, so that nothing but its fsync can fail once the rename is done.
  steps.push_back(OpenDirectoryStep(commit->spec.root, /*follow=*/true, commit->root_fd));
  if (commit->spec.replace) AppendLockOfOld(steps, *commit);
  if (commit->spec.replace) AppendPinOfOld(steps, *commit);
  AppendManifest(steps, *commit);
  AppendRename(steps, *commit);
  if (commit->spec.replace) AppendRemovalOfOld(steps, *commit);
  FreeSparesWhenFull(steps, commit->spec.spares);
  RunSteps(queue, std::move(steps),
           [commit, done = std::move(done)](Status status) { done(std::move(status), commit->in_place); });
}

void FindCommitted(IoQueue& queue, const std::string& root, std::uint64_t step, const std::string& uuid,
                   StatusDone done) {
  struct Search {
    std::string path;
    UniqueFd root_fd;
    UniqueFd manifest_fd;
    std::string text;
  };
  const auto search = std::make_shared<Search>();
  search->path = JoinPath(JoinPath(root, StepName(step)), kManifestName);
  const auto unknown = [step, uuid](const std::string& why) {
    return Error(StatusCode::kUnknownOutcome, "whether step {} of attempt {} is committed: {}", step, uuid, why);
  };
  const auto other = [step, uuid](const std::string& found) {
    return Error(StatusCode::kNotFound, "step {} of attempt {} is not committed: {}", step, uuid, found);
  };
  const auto no_answer = [unknown](int, const Status& plain) -> Result<Flow> { return unknown(plain.message()); };

  std::vector<IoStep> steps;
  steps.push_back(OpenDirectoryStep(root, /*follow=*/true, search->root_fd));
  steps.back().on_error = no_answer;
  steps.push_back({.make =
                       [search] {
                         return IoRequest{
                             .op = IoOp::kOpen, .path = search->path, .flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK};
                       },
                   .on_value = [search, unknown](std::int64_t value) -> Result<Flow> {
                     search->manifest_fd = UniqueFd(static_cast<int>(value));
                     const Result<std::uint64_t> size = ManifestFileSize(search->manifest_fd, search->path);
                     if (!size.ok()) return unknown(size.status().message());
                     search->text.resize(*size);
                     return Flow::kNext;
                   },
                   .on_error = [other, unknown](int error, const Status& plain) -> Result<Flow> {
                     return error == ENOENT ? other(plain.message()) : unknown(plain.message());
                   }});
  steps.push_back({.make =
                       [search] {
                         return IoRequest{.op = IoOp::kRead,
                                          .fd = search->manifest_fd.get(),
                                          .buffer = search->text.data(),
                                          .length = search->text.size()};
                       },
                   .name = search->path,
                   .on_value = [search, step, uuid, other, unknown](std::int64_t value) -> Result<Flow> {
                     search->text.resize(static_cast<std::size_t>(value));
                     const Result<Manifest> manifest = DecodeManifest(search->text, search->path);
                     if (!manifest.ok()) return unknown(manifest.status().message());
                     if (manifest->attempt == uuid && manifest->step == step) return Flow::kNext;
                     return other(fmt::format("{} is attempt {}", search->path, manifest->attempt));
                   },
                   .on_error = no_answer});
  steps.push_back(FsyncStep(search->root_fd, root));
  steps.back().on_error = no_answer;
  RunSteps(queue, std::move(steps), [search, done = std::move(done)](Status status) { done(std::move(status)); });
}

}  // namespace cairn
