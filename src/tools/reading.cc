#include "tools/reading.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "mirror/bucket.h"
#include "store/names.h"
#include "store/paths.h"
#include "tools/quantities.h"

namespace cairn::tools {
namespace {

constexpr std::uint64_t kChunkBytes = 4U << 20;
constexpr int kQueueDepth = 8;

bool IsOfARoot(const std::string& name) {
  return name == kLockName || name == kWriterName || IsDraft(name) || IsLeftover(name) || ParseStepName(name) ||
         ParseReplacedName(name);
}

bool HasAnyOfARoot(const std::vector<FolderEntry>& entries) {
  return std::ranges::any_of(entries, [](const FolderEntry& entry) { return IsOfARoot(entry.name); });
}

/// "; these below it are: a/cairn, a/old", or nothing.
std::string RootsBelow(const std::string& path, const std::vector<FolderEntry>& entries) {
  constexpr std::size_t kNamed = 4;
  std::vector<std::string> roots;
  for (const FolderEntry& entry : entries) {
    if (!entry.directory) continue;
    std::string below = JoinPath(path, entry.name).text();
    const Result<std::vector<FolderEntry>> its = ListRoot(below);
    if (!its.ok() || !HasAnyOfARoot(*its)) continue;
    roots.push_back(roots.size() < kNamed ? std::move(below) : "...");
    if (roots.size() > kNamed) break;
  }
  return roots.empty() ? "" : fmt::format("; below it are roots: {}", fmt::join(roots, ", "));
}

/// Root and name of a path, which may end with slashes.
std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path + "/").parent_path();
  return {folder.has_parent_path() ? folder.parent_path().string() : ".", folder.filename().string()};
}

/// What to say of a path that does not exist.
Status MissingPath(const std::string& path) {
  const auto [root, name] = SplitPath(path);
  if (const std::optional<std::uint64_t> step = ParseStepName(name)) {
    const Result<std::vector<CheckpointInfo>> list = ListInfos(root);
    if (list.ok() && !list->empty()) return NoSuchStep(root, std::to_string(*step), *list);
  }
  return ErrnoStatus(ENOENT, path);
}

}  // namespace

Reading::Reading()
    : workers_("cairn-tool", static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U))) {}

Result<std::unique_ptr<Reading>> Reading::Make(int chunks) {
  std::unique_ptr<Reading> reading(new Reading);
  CAIRN_RETURN_IF_ERROR(reading->workers_.status());
  CAIRN_ASSIGN_OR_RETURN(IoQueueChoice choice, ChooseIoQueue(IoQueueKind::kAuto, kQueueDepth));
  CAIRN_ASSIGN_OR_RETURN(reading->pool_,
                         BufferPool::Make(static_cast<std::uint64_t>(chunks) * kChunkBytes, kChunkBytes, chunks));
  reading->parts_ = {.queue = std::move(choice.factory),
                     .pool = reading->pool_.get(),
                     .workers = &reading->workers_,
                     .queue_depth = kQueueDepth};
  return reading;
}

Result<std::unique_ptr<IoQueue>> MakeQueue() {
  CAIRN_ASSIGN_OR_RETURN(const IoQueueChoice choice, ChooseIoQueue(IoQueueKind::kAuto, 1));
  return choice.factory();
}

Result<PathKind> KindOf(const std::string& path) {
  if (IsBucket(path)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: expected a directory; `cairn fetch` brings one from an object store", WithoutSettings(path));
  }
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return errno == ENOENT ? MissingPath(path) : ErrnoStatus(errno, path);
  if (!S_ISDIR(facts.st_mode)) return PathKind::kTensorFile;
  // Check the name too: a step folder without its manifest is a damaged checkpoint, not an empty root.
  if (ParseStepName(SplitPath(path).second)) return PathKind::kCheckpoint;
  if (::lstat((path + "/" + std::string(kManifestName)).c_str(), &facts) == 0) return PathKind::kCheckpoint;
  return PathKind::kRoot;
}

std::vector<std::uint64_t> Steps(const std::vector<CheckpointInfo>& infos) {
  std::vector<std::uint64_t> steps;
  steps.reserve(infos.size());
  for (const CheckpointInfo& info : infos) steps.push_back(info.step);
  return steps;
}

Status NoSuchStep(const std::string& root, const std::string& word, const std::vector<CheckpointInfo>& list) {
  return Error(StatusCode::kNotFound, "there is no step {} under {}; there {}", word, root,
               list.empty() ? "is none" : (list.size() == 1 ? "is " : "are ") + DescribeSteps(Steps(list)));
}

std::string WithStepsZeros(const std::string& path) {
  constexpr std::string_view kBefore = "step-";
  const auto [root, name] = SplitPath(path);
  std::error_code unknown;  // Then opening it says what is wrong.
  if (!name.starts_with(kBefore) || std::filesystem::exists(path, unknown)) return path;
  const std::optional<std::uint64_t> step = ParseStep(std::string_view(name).substr(kBefore.size()));
  return step ? JoinPath(root, StepName(*step)).text() : path;
}

bool IsOfFilesystem(const FolderEntry& entry) { return entry.directory && entry.name == "lost+found"; }

Status CheckRoot(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const PathKind kind, KindOf(path));
  if (kind != PathKind::kRoot) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a directory of checkpoints, found a {}", path,
                 kind == PathKind::kCheckpoint ? "checkpoint's folder" : "file");
  }
  CAIRN_ASSIGN_OR_RETURN(std::vector<FolderEntry> entries, ListRoot(path));
  std::erase_if(entries, IsOfFilesystem);
  if (entries.empty() || HasAnyOfARoot(entries)) return Status::Ok();
  return Error(StatusCode::kInvalidArgument,
               "{} is not a directory of Cairn's checkpoints: it has no step-* and no {}{}", path, kWriterName,
               RootsBelow(path, entries));
}

Result<StoredCheckpoint> FindCheckpoint(const std::string& path, const std::optional<std::uint64_t>& step) {
  CAIRN_ASSIGN_OR_RETURN(const PathKind kind, KindOf(path));
  if (kind == PathKind::kTensorFile) {
    return Error(StatusCode::kInvalidArgument, "{}: expected a root or a checkpoint's folder, found a file", path);
  }
  if (kind == PathKind::kCheckpoint) {
    if (step) return Error(StatusCode::kInvalidArgument, "{}: a checkpoint's folder takes no step", path);
    return ReadCheckpointFolder(path);
  }
  CAIRN_RETURN_IF_ERROR(CheckRoot(path));
  Result<std::vector<StoredCheckpoint>> chosen = ChooseCheckpoints(path, step ? Step(*step) : Latest());
  if (step && chosen.status().code() == StatusCode::kNotFound) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> list, ListInfos(path));
    return NoSuchStep(path, std::to_string(*step), list);
  }
  CAIRN_RETURN_IF_ERROR(chosen.status());
  if (chosen->empty()) return Error(StatusCode::kNotFound, "there is no checkpoint under {}", path);
  return std::move(chosen->front());
}

Result<TensorSource> OpenSource(const Reading& reading, const std::string& path,
                                const std::optional<std::uint64_t>& step) {
  CAIRN_ASSIGN_OR_RETURN(const PathKind kind, KindOf(path));
  if (kind == PathKind::kTensorFile && !step) return TensorSource::OpenFile(reading.parts(), path);
  // If retention removes the newest before it is locked, choose again.
  Status gone;
  for (int times = 0;; ++times) {
    CAIRN_RETURN_IF_ERROR(PauseBeforeChoice(times, gone));
    CAIRN_ASSIGN_OR_RETURN(const StoredCheckpoint checkpoint, FindCheckpoint(path, step));
    Result<TensorSource> source = TensorSource::OpenCheckpoint(checkpoint);
    if (source.status().code() != StatusCode::kNotFound || kind != PathKind::kRoot) return source;
    gone = source.status();
  }
}

}  // namespace cairn::tools
