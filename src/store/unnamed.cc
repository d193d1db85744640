#include "store/unnamed.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "store/attempt_folder.h"
#include "store/names.h"

namespace cairn {
namespace {

std::pair<std::uint64_t, std::uint64_t> Age(const CheckpointInfo& info) { return {info.line, info.step}; }

bool GivenUp(const PathAt& folder) {
  struct stat found {};
  const int failed = ::fstatat(folder.directory(), folder.c_str(), &found, AT_SYMLINK_NOFOLLOW);
  return failed != 0 || (found.st_mode & kGivenUpMark) != 0;
}

}  // namespace

std::optional<UnnamedAttempt> FindUnnamedAttempt(const PathAt& root, const std::vector<FolderEntry>& entries,
                                                 const MemoryPlace& memory) {
  const auto named = [&entries](const std::string& name) {
    return std::ranges::any_of(entries, [&](const FolderEntry& entry) { return entry.name == name; });
  };
  std::optional<CheckpointInfo> newest;
  for (const FolderEntry& entry : entries) {
    // What retention, a removal or a publication has retired has another name than its attempt's.
    if (!entry.directory || !IsLeftover(entry.name) || IsSpareName(entry.name) || IsAttemptName(entry.name)) continue;
    const PathAt folder = JoinPath(root, entry.name);
    const Result<StoredCheckpoint> found = ReadCheckpointFolder(folder.text());
    if (!found.ok() || entry.name != RetiredName(found->info.attempt) || GivenUp(folder)) continue;
    if (named(StepName(found->info.step)) || !CheckShardFiles(*found).ok()) continue;
    if (!newest || Age(*newest) < Age(found->info)) newest = found->info;
  }
  if (!newest) return std::nullopt;
  const Result<std::vector<CheckpointInfo>> list = ListInfos(root, memory);
  if (!list.ok()) return std::nullopt;
  // The same save may be in memory.
  const bool is_newest = std::ranges::all_of(
      *list, [&newest](const CheckpointInfo& one) { return !one.status.ok() || Age(one) < Age(*newest); });
  if (!is_newest) return std::nullopt;
  UnnamedAttempt found{.folder = RetiredName(newest->attempt), .step = newest->step, .bytes = newest->bytes};
  for (const CheckpointInfo& one : *list) {
    if (one.status.ok()) found.newest = one.step;
  }
  return found;
}

}  // namespace cairn
