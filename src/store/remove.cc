#include "store/remove.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "format/manifest.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/root.h"

namespace cairn {
namespace {

struct Removal {
  std::string folder;
  std::string root;  // Where spares are wished for.
  SpareWish wish;
  std::shared_ptr<Leftovers> left;
  std::vector<std::string> files;   // Still to be unlinked, from the back.
  std::vector<std::string> spares;  // To be kept, if all others could be unlinked,
  std::string place;                // as this folder.
  bool listed = false;
  bool keep = false;  // Something in it stays, or it is not there.

  void Keep(std::string why) {
    left->push_back(std::move(why));
    keep = true;
  }
  void List();
  [[nodiscard]] std::string FindPlace() const;
  void PickSpares();
  std::optional<IoRequest> NextUnlink();
  std::optional<IoRequest> MakeSpare();
  void UnlinkSpares() { files = std::exchange(spares, {}); }
};

void Removal::List() {
  listed = true;
  Result<std::vector<FolderEntry>> entries = ListFolder(folder);
  if (!entries.ok()) {
    keep = true;
    if (entries.status().code() != StatusCode::kNotFound) Keep(entries.status().message());
    return;
  }
  for (FolderEntry& entry : *entries) {
    if (entry.directory) {
      Keep(fmt::format("{} is a directory that no checkpoint holds; it and {} were left alone",
                       JoinPath(folder, entry.name), folder));
    } else {
      files.push_back(std::move(entry.name));
    }
  }
  if (!keep) PickSpares();
}

std::string Removal::FindPlace() const {
  std::string free;
  for (std::uint64_t number = 0; number < wish.folders; ++number) {
    std::string one = JoinPath(root, SpareName(number));
    if (one == folder) return one;
    const auto there = ListFolder(one);
    // An empty folder is replaced by a rename.
    const bool taken = there.ok() ? !there->empty() : there.status().code() != StatusCode::kNotFound;
    if (free.empty() && !taken) free = std::move(one);
  }
  return free;
}

void Removal::PickSpares() {
  std::set<std::string> wanted;
  for (std::uint64_t shard = 0; shard < wish.shards; ++shard) wanted.insert(ShardName(shard));
  if (wanted.empty()) return;
  place = FindPlace();
  if (place.empty()) return;
  std::erase_if(files, [&](const std::string& name) {
    if (!wanted.contains(name)) return false;
    const Status status = CheckRecyclable(JoinPath(folder, name), wish.file_mode);
    if (status.ok()) {
      spares.push_back(name);
    } else if (wish.not_recycled) {
      wish.not_recycled(status.message());
    }
    return status.ok();
  });
}

std::optional<IoRequest> Removal::NextUnlink() {
  if (!listed) List();
  if (files.empty()) return std::nullopt;
  return IoRequest{.op = IoOp::kUnlink, .path = JoinPath(folder, files.back())};
}

std::optional<IoRequest> Removal::MakeSpare() {
  if (keep) UnlinkSpares();
  if (spares.empty()) return std::nullopt;
  // Where it is one of the spares' already, to its own name, which does nothing.
  return IoRequest{.op = IoOp::kRename, .path = folder, .path2 = place, .rename = RenameMode::kPlain};
}

IoStep UnlinkStep(const std::shared_ptr<Removal>& removal) {
  return {.make = [removal] { return removal->NextUnlink(); },
          .on_value =
              [removal](std::int64_t) {
                removal->files.pop_back();
                return Flow::kAgain;
              },
          .on_error =
              [removal](int error, const Status& plain) {
                if (error != ENOENT) removal->Keep(plain.message());
                removal->files.pop_back();
                return Flow::kAgain;
              }};
}

void AppendRemoval(std::vector<IoStep>& steps, Removal with) {
  const auto removal = std::make_shared<Removal>(std::move(with));
  steps.push_back(UnlinkStep(removal));
  steps.push_back({.make = [removal] { return removal->MakeSpare(); },
                   .on_value =
                       [removal](std::int64_t) {
                         removal->keep = true;
                         return Flow::kNext;
                       },
                   .on_error =
                       [removal](int, const Status&) {
                         removal->UnlinkSpares();
                         return Flow::kNext;
                       }});
  steps.push_back(UnlinkStep(removal));
  steps.push_back({.make = [removal]() -> std::optional<IoRequest> {
                     if (removal->keep) return std::nullopt;
                     return IoRequest{.op = IoOp::kRmdir, .path = removal->folder};
                   },
                   .on_error =
                       [removal](int error, const Status& plain) {
                         if (error != ENOENT) removal->Keep(plain.message());
                         return Flow::kNext;
                       }});
}

}  // namespace

void AppendFolderRemoval(std::vector<IoStep>& steps, const std::string& folder, std::shared_ptr<Leftovers> left) {
  AppendRemoval(steps, {.folder = folder, .left = std::move(left)});
}

void AppendRecyclingRemoval(std::vector<IoStep>& steps, const std::string& root, const std::string& name,
                            SpareWish wish, std::shared_ptr<Leftovers> left) {
  AppendRemoval(steps,
                {.folder = JoinPath(root, name), .root = root, .wish = std::move(wish), .left = std::move(left)});
}

void AppendReaderLockout(std::vector<IoStep>& steps, const std::string& folder, UniqueFd& manifest,
                         std::optional<Flock>& lock) {
  const std::string path = JoinPath(folder, kManifestName);
  // For writing where that is allowed: NFS grants exclusive locks on no other descriptors.
  const auto access = std::make_shared<int>(O_RDWR);
  steps.push_back({.make =
                       [path, access] {
                         return IoRequest{.op = IoOp::kOpen, .path = path, .flags = *access | O_NOFOLLOW | O_NONBLOCK};
                       },
                   .on_value =
                       [&manifest](std::int64_t value) {
                         manifest = UniqueFd(static_cast<int>(value));
                         return Flow::kNext;
                       },
                   .on_error = [access](int error, Status plain) -> Result<Flow> {
                     if (error == ENOENT || error == ELOOP || error == EISDIR) return Flow::kNext;
                     if (error != EACCES || *access == O_RDONLY) return plain;
                     *access = O_RDONLY;
                     return Flow::kAgain;
                   }});
  steps.push_back({.check = [folder, &manifest, &lock] {
    if (!manifest.valid()) return Status::Ok();
    CAIRN_ASSIGN_OR_RETURN(lock, Flock::TryTake(std::move(manifest), Flock::Kind::kExclusive, folder));
    return Status::Ok();
  }});
}

bool HoldsStep(const std::string& root, std::uint64_t step) {
  return ::access(JoinPath(root, StepName(step)).c_str(), F_OK) == 0;
}

bool IsPinned(const std::string& root, std::uint64_t step) {
  return ::access(JoinPath(JoinPath(root, StepName(step)), kPinName).c_str(), F_OK) == 0;
}

// Step 6 of the commit protocol, whose prose heads attempt.cc.
void RemoveCheckpoint(IoQueue& queue, const std::string& root, std::uint64_t step, RemovalOptions options,
                      StatusDone done) {
  struct Work {
    std::string folder;
    std::string retired;
    UniqueFd root_fd;
    UniqueFd folder_fd;
    UniqueFd manifest_fd;
    std::optional<Flock> lock;
    std::shared_ptr<Leftovers> left = std::make_shared<Leftovers>();
  };
  const auto state = std::make_shared<Work>();
  state->folder = JoinPath(root, StepName(step));
  const std::string retired = RetiredName(MakeUuid());
  state->retired = JoinPath(root, retired);

  std::vector<IoStep> steps;
  steps.push_back(OpenDirectoryStep(root, /*follow=*/true, state->root_fd));
  steps.push_back(OpenDirectoryStep(state->folder, /*follow=*/false, state->folder_fd));
  AppendReaderLockout(steps, state->folder, state->manifest_fd, state->lock);
  // Whoever pins holds a reader's lock meanwhile: from here on nobody does.
  steps.push_back({.check = [root, step, pinned = options.pinned] {
    if (pinned == Pinned::kGoes || !IsPinned(root, step)) return Status::Ok();
    return Error(StatusCode::kFailedPrecondition, "step {} is pinned", step);
  }});
  steps.push_back(
      {.make =
           [state] {
             return IoRequest{
                 .op = IoOp::kRename, .path = state->folder, .path2 = state->retired, .rename = RenameMode::kPlain};
           },
       .on_error = [state, step](int, Status plain) -> Result<Flow> {
         if (LeadsTo(state->folder, state->folder_fd)) return plain;
         return Error(StatusCode::kUnknownOutcome, "removal of step {}: {}", step, plain.message());
       }});
  IoStep fsync = FsyncStep(state->root_fd, root);
  // Until the rename is known to be on the disk a power cut may bring step-N back: nothing in it may be touched.
  fsync.on_error = [state, step](int, const Status& plain) -> Result<Flow> {
    return Error(StatusCode::kUnknownOutcome, "removal of step {}: {}; a power cut may bring it back", step,
                 plain.message());
  };
  steps.push_back(std::move(fsync));
  AppendRecyclingRemoval(steps, root, retired, std::move(options.spares), state->left);
  RunSteps(queue, std::move(steps), [state, step, done = std::move(done)](const Status& status) {
    if (!status.ok() || state->left->empty()) return done(status);
    done(Error(StatusCode::kIoError, "step {} is no longer a checkpoint, but not all of it could be removed: {}", step,
               fmt::join(*state->left, "; ")));
  });
}

void RemoveSpares(IoQueue& queue, const std::string& root) {
  std::error_code error;
  const auto entries = ListFolder(std::filesystem::canonical(root, error).string());
  if (error || !entries.ok()) return;
  std::vector<IoStep> steps;
  for (const FolderEntry& entry : *entries) {
    if (!IsSpareName(entry.name)) continue;
    AppendFolderRemoval(steps, JoinPath(root, entry.name), std::make_shared<Leftovers>());
  }
  static_cast<void>(RunStepsBlocking(queue, std::move(steps)));
}

}  // namespace cairn
