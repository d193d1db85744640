#include "store/list.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "base/thread.h"
#include "store/late_name.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/suspect.h"
#include "store/writer.h"

namespace cairn {

Result<std::uint64_t> ManifestFileSize(const UniqueFd& fd, const std::string& path) {
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoStatus(errno, "stat of " + path);
  if (!S_ISREG(found.st_mode)) return Error(StatusCode::kCorrupt, "{}: expected a regular file", path);
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (size > kMaxManifestBytes) {
    return Error(StatusCode::kCorrupt, "{}: expected at most {} bytes, found {}", path, kMaxManifestBytes, size);
  }
  return size;
}

namespace {

// Opening a file takes a network filesystem about a millisecond, so several threads wait at once. A short list needs
// none.
constexpr std::size_t kLanes = 8;
constexpr std::size_t kFoldersPerThread = 4;

Result<UniqueFd> OpenFolder(const PathAt& folder, bool follow) {
  UniqueFd fd(
      ::openat(folder.directory(), folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW)));
  if (fd.valid()) return fd;
  if (errno == ENOTDIR || errno == ELOOP) return Error(StatusCode::kCorrupt, "{}: expected a directory", folder);
  return ReadErrnoStatus(errno, "opening " + folder.text());
}

}  // namespace

Result<std::string> ReadManifestText(const UniqueFd& folder, const std::string& path) {
  // O_NONBLOCK, so that a FIFO of that name does not block.
  const UniqueFd fd(
      ::openat(folder.get(), std::string(kManifestName).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno != ENOENT && errno != ELOOP) return ReadErrnoStatus(errno, "opening " + path);
    return Error(StatusCode::kCorrupt, "{}: expected a regular file, found {}", path,
                 errno == ELOOP ? "a link" : "none");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t size, ManifestFileSize(fd, path));
  std::string text(size, '\0');
  std::size_t filled = 0;
  for (int retries = 0; filled < text.size();) {
    const ssize_t got = ::pread(fd.get(), text.data() + filled, text.size() - filled, static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR && ++retries <= kMaxRetries) continue;
    if (got < 0) return ReadErrnoStatus(errno, "reading " + path);
    retries = 0;
    if (got == 0) return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", path, size, filled);
    filled += static_cast<std::size_t>(got);
  }
  return text;
}

Result<Manifest> ReadManifest(const UniqueFd& folder, const std::string& path, std::uint64_t* bytes) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadManifestText(folder, path));
  if (bytes != nullptr) *bytes = text.size();
  return DecodeManifest(text, path);
}

namespace {

// A manifest may hold any lengths.
std::uint64_t SaturatingSum(std::uint64_t a, std::uint64_t b) {
  return b > std::numeric_limits<std::uint64_t>::max() - a ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

/// Reads the manifest of an open folder. `expected` is the step in the folder's name.
Result<StoredCheckpoint> ReadOpenFolder(const UniqueFd& fd, const PathAt& folder,
                                        std::optional<std::uint64_t> expected) {
  const std::string path = JoinPath(folder, kManifestName).text();
  std::uint64_t bytes = 0;
  CAIRN_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fd, path, &bytes));
  if (expected && manifest.step != *expected) {
    return Error(StatusCode::kCorrupt, "{}: expected step {}, as in the folder's name, found {}", path, *expected,
                 manifest.step);
  }
  StoredCheckpoint checkpoint = DescribeManifest(std::move(manifest), bytes);
  CheckpointInfo& info = checkpoint.info;
  info.suspect = info.frozen == Frozen::kLinked && IsSuspect(fd);
  // If the pin cannot be checked, it counts as set.
  info.pinned = ::faccessat(fd.get(), std::string(kPinName).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
  info.path = folder.text();
  struct stat facts {};
  if (::fstatat(fd.get(), std::string(kManifestName).c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) {
    checkpoint.committed_at =
        static_cast<double>(facts.st_mtim.tv_sec) + static_cast<double>(facts.st_mtim.tv_nsec) / 1e9;
  }
  return checkpoint;
}

/// The root's id; empty if it has none, none if that cannot be read.
std::optional<std::string> RootId(const PathAt& root) {
  const Result<std::optional<WriterRecord>> writer = ReadWriter(root);
  if (!writer.ok()) return std::nullopt;
  return *writer ? (*writer)->root : std::string();
}

/// `lies_in`: the id of the root above its folder.
void MarkCopy(CheckpointInfo& info, const std::optional<std::string>& lies_in) {
  info.copy = lies_in && !info.root.empty() && info.root != *lies_in;
}

bool Verified(const StoredCheckpoint& checkpoint) { return checkpoint.info.status.ok(); }

bool Older(const StoredCheckpoint& a, const StoredCheckpoint& b) {
  const auto rank = [](const StoredCheckpoint& c) { return std::tuple(!Verified(c), c.info.line, c.info.step); };
  return rank(a) < rank(b);
}

/// A step's folder for a list; none if it vanished meanwhile.
Result<std::optional<StoredCheckpoint>> ReadListed(const PathAt& folder, std::uint64_t step) {
  for (int tries = 1;; ++tries) {
    const Result<UniqueFd> fd = OpenFolder(folder, /*follow=*/false);
    if (!fd.ok() && fd.status().code() == StatusCode::kNotFound) return std::optional<StoredCheckpoint>();
    Result<StoredCheckpoint> read = fd.ok() ? ReadOpenFolder(*fd, folder, step) : fd.status();
    if (read.ok()) return std::optional(*std::move(read));
    // A shortage in this process says nothing about the checkpoint.
    if (read.status().code() == StatusCode::kResourceExhausted) return read.status();
    // Part of it may have been removed during the read: then the name no longer refers to this folder.
    if (fd.ok() && tries <= kMaxRetries && !IsSameFile(folder, *fd)) continue;
    StoredCheckpoint damaged;
    damaged.info.step = step;
    damaged.info.path = folder.text();
    damaged.info.status = read.status();
    return std::optional(std::move(damaged));
  }
}

/// By its path: the listing may be older than what another process has made.
Result<StoredCheckpoint> ReadStep(const PathAt& root, std::uint64_t step) {
  const PathAt folder = JoinPath(root, StepName(step));
  CAIRN_ASSIGN_OR_RETURN(std::optional<StoredCheckpoint> read, ReadListed(folder, step));
  if (!read) {
    static_cast<void>(ForgetCachedNames(root));
    CAIRN_ASSIGN_OR_RETURN(read, ReadListed(folder, step));
  }
  if (!read) return NoSuchStep(root, step);
  MarkCopy(read->info, RootId(root));
  return *std::move(read);
}

Status CheckShardFile(const UniqueFd& folder, const std::string& path, const ManifestShard& shard) {
  struct stat found {};
  if (::fstatat(folder.get(), shard.file.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno != ENOENT) return ReadErrnoStatus(errno, "stat of " + path);
    return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found no file", path, shard.length);
  }
  if (!S_ISREG(found.st_mode)) return Error(StatusCode::kCorrupt, "{}: expected a regular file", path);
  if (static_cast<std::uint64_t>(found.st_size) != shard.length) {
    return Error(StatusCode::kCorrupt, "{}: expected {} bytes, found {}", path, shard.length, found.st_size);
  }
  return Status::Ok();
}

struct Listed {
  std::uint64_t step = 0;
  std::string name;
  Result<std::optional<StoredCheckpoint>> read = std::optional<StoredCheckpoint>();
};

void ReadNext(const PathAt& root, std::vector<Listed>& all, std::atomic<std::size_t>& next) {
  for (std::size_t i = next++; i < all.size(); i = next++) {
    try {
      all[i].read = ReadListed(JoinPath(root, all[i].name), all[i].step);
    } catch (const std::bad_alloc&) {
      // Nothing else would catch it on a thread started here.
      all[i].read = Status(StatusCode::kResourceExhausted, all[i].name + ": out of memory for its manifest");
    }
  }
}

void ReadAll(const PathAt& root, std::vector<Listed>& all) {
  std::atomic<std::size_t> next = 0;
  const std::size_t lanes = std::clamp(all.size() / kFoldersPerThread, std::size_t{1}, kLanes);
  std::vector<std::thread> others;
  others.reserve(lanes);
  while (others.size() + 1 < lanes) {
    Result<std::thread> thread = StartThread("cairn-list", [&] { ReadNext(root, all, next); });
    if (!thread.ok()) break;  // Fewer threads are only slower.
    others.push_back(*std::move(thread));
  }
  ReadNext(root, all, next);
  for (std::thread& other : others) other.join();
}

}  // namespace

StoredCheckpoint DescribeManifest(Manifest manifest, std::uint64_t bytes) {
  StoredCheckpoint checkpoint;
  CheckpointInfo& info = checkpoint.info;
  info.bytes = bytes;
  for (const ManifestShard& shard : manifest.shards) info.bytes = SaturatingSum(info.bytes, shard.length);
  if (manifest.index) info.bytes = SaturatingSum(info.bytes, manifest.index->length);
  info.step = manifest.step;
  info.line = manifest.line;
  info.root = manifest.root;
  info.attempt = manifest.attempt;
  if (manifest.parent) info.parent = manifest.parent->step;
  info.world = manifest.world;
  info.nonfinite = WorstOf(manifest.shards);
  info.frozen = FrozenIn(manifest.shards, manifest.attempt);
  checkpoint.manifest = std::move(manifest);
  return checkpoint;
}

Result<StoredCheckpoint> ReadCheckpointFolder(const std::string& folder) {
  std::string path = folder;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFolder(path, /*follow=*/true));
  CAIRN_ASSIGN_OR_RETURN(StoredCheckpoint read,
                         ReadOpenFolder(fd, path, ParseStepName(std::filesystem::path(path).filename().string())));
  MarkCopy(read.info, RootId(JoinPath(PathAt(fd.get(), path), "..")));
  return read;
}

Status CheckShardFiles(const StoredCheckpoint& checkpoint) {
  const PathAt path = checkpoint.info.path;
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd folder, OpenFolder(path, /*follow=*/true));
  for (const ManifestShard& shard : checkpoint.manifest.shards) {
    CAIRN_RETURN_IF_ERROR(CheckShardFile(folder, JoinPath(path, shard.file).text(), shard));
  }
  return Status::Ok();
}

Result<std::vector<StoredCheckpoint>> ListCheckpoints(const PathAt& root) {
  std::map<std::uint64_t, StoredCheckpoint> found;
  bool vanished = true;
  // If a checkpoint vanished, the one that replaced it may have come too late for this listing.
  for (int tries = 0; vanished && tries <= kMaxRetries; ++tries) {
    static_cast<void>(ForgetCachedNames(root));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, ListRoot(root));
    vanished = false;
    std::vector<Listed> all;
    for (const FolderEntry& entry : entries) {
      const std::optional<std::uint64_t> step = ParseStepName(entry.name);
      if (step && !found.contains(*step)) all.push_back({.step = *step, .name = entry.name});
    }
    ReadAll(root, all);
    for (Listed& one : all) {
      CAIRN_ASSIGN_OR_RETURN(std::optional<StoredCheckpoint> checkpoint, std::move(one.read));
      vanished = vanished || !checkpoint;
      if (checkpoint) found.emplace(one.step, *std::move(checkpoint));
    }
  }
  const std::optional<std::string> id = RootId(root);
  std::vector<StoredCheckpoint> list;
  for (auto& [step, checkpoint] : found) {
    MarkCopy(checkpoint.info, id);
    list.push_back(std::move(checkpoint));
  }
  std::ranges::sort(list, Older);
  return list;
}

std::string AttemptSaid(const CheckpointInfo& damaged) {
  constexpr std::string_view kBefore = "\"attempt\":\"";  // The parent's comes later.
  constexpr std::size_t kIdLength = 36;
  std::string text(4096, '\0');
  std::ifstream file(damaged.path + "/" + std::string(kManifestName), std::ios::binary);
  text.resize(static_cast<std::size_t>(file.read(text.data(), static_cast<std::streamsize>(text.size())).gcount()));
  const std::size_t at = text.find(kBefore);
  return at == std::string::npos ? "" : text.substr(at + kBefore.size(), kIdLength);
}

namespace {

/// An older copy of the root was put back since.
bool IsOfAnotherLine(const CheckpointInfo& kept, const MemoryPlace& memory) {
  return !memory.openings.empty() && !memory.root_openings.empty() &&
         !IsLineOf(memory.root_openings, memory.openings, kept.line);
}

/// Leaves those of this root. Damaged manifests only where the disk does not have the same checkpoint whole.
void LeaveOwn(std::vector<StoredCheckpoint>& list, const MemoryPlace& memory,
              const std::vector<StoredCheckpoint>& on_disk) {
  std::erase_if(list, [&](const StoredCheckpoint& one) {
    if (Verified(one)) return one.info.root != memory.root || IsOfAnotherLine(one.info, memory);
    const std::string attempt = AttemptSaid(one.info);
    return std::ranges::any_of(on_disk, [&](const auto& other) {
      return Verified(other) && other.info.step == one.info.step && other.info.attempt == attempt;
    });
  });
}

/// Those of both, newest first; of the same checkpoint the copy in memory first.
Result<std::vector<StoredCheckpoint>> ListBoth(const PathAt& root, const MemoryPlace& memory) {
  // Before the disk: what leaves it meanwhile, the disk has by then.
  Result<std::vector<StoredCheckpoint>> listed = ListCheckpoints(memory.path);
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> list, ListCheckpoints(root));
  std::vector<StoredCheckpoint> in_memory;
  if (listed.ok()) in_memory = *std::move(listed);
  LeaveOwn(in_memory, memory, list);
  // Behind those of the disk, and then reversed.
  list.insert(list.end(), std::make_move_iterator(in_memory.begin()), std::make_move_iterator(in_memory.end()));
  std::ranges::stable_sort(list, Older);
  std::ranges::reverse(list);
  return list;
}

Result<std::vector<StoredCheckpoint>> ChooseOfBoth(const PathAt& root, const Selector& selector,
                                                   const MemoryPlace& memory) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> list, ListBoth(root, memory));
  if (selector.step()) {
    const auto wanted = [&](const StoredCheckpoint& one) { return one.info.step == *selector.step(); };
    const auto whole = std::ranges::find_if(list, [&](const auto& one) { return wanted(one) && Verified(one); });
    const auto first = whole != list.end() ? whole : std::ranges::find_if(list, wanted);
    if (first == list.end()) return NoSuchStep(root, *selector.step());
    // Only the step of a damaged checkpoint is known.
    const StoredCheckpoint from = *first;
    std::erase_if(list, [&](const StoredCheckpoint& one) {
      if (wanted(one)) return one.info.attempt != from.info.attempt;
      return Verified(one) && Verified(from) ? !Older(one, from) : one.info.step > from.info.step;
    });
    std::stable_partition(list.begin(), list.end(), wanted);
  }
  if (list.empty()) return Error(StatusCode::kNotFound, "there is no checkpoint under {}", root);
  if (selector.fall_back()) return list;
  if (!Verified(list.front())) return list.front().info.status;
  std::erase_if(list, [attempt = list.front().info.attempt](const auto& one) { return one.info.attempt != attempt; });
  return list;
}

}  // namespace

Result<std::vector<StoredCheckpoint>> ListCheckpoints(const PathAt& root, const MemoryPlace& memory) {
  if (memory.path.empty()) return ListCheckpoints(root);
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> both, ListBoth(root, memory));
  std::ranges::reverse(both);
  std::vector<StoredCheckpoint> list;
  for (StoredCheckpoint& one : both) {
    // The disk's comes first.
    const bool twice = Verified(one) && std::ranges::any_of(list, [&](const StoredCheckpoint& other) {
                         return other.info.step == one.info.step && other.info.attempt == one.info.attempt;
                       });
    if (!twice) list.push_back(std::move(one));
  }
  return list;
}

Result<std::vector<CheckpointInfo>> ListInfos(const PathAt& root, const MemoryPlace& memory) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored, ListCheckpoints(root, memory));
  std::vector<CheckpointInfo> infos;
  for (StoredCheckpoint& one : stored) infos.push_back(std::move(one.info));
  return infos;
}

Result<std::vector<StoredCheckpoint>> ChooseCheckpoints(const PathAt& root, const Selector& selector,
                                                        const MemoryPlace& memory) {
  if (!selector.folder().empty()) {
    CAIRN_ASSIGN_OR_RETURN(StoredCheckpoint checkpoint, ReadCheckpointFolder(selector.folder()));
    return std::vector{std::move(checkpoint)};
  }
  if (!memory.path.empty()) return ChooseOfBoth(root, selector, memory);
  std::optional<StoredCheckpoint> first;
  if (selector.step()) {
    CAIRN_ASSIGN_OR_RETURN(first, ReadStep(root, *selector.step()));
    if (!selector.fall_back() && !Verified(*first)) return first->info.status;
    if (!selector.fall_back()) return std::vector{*std::move(first)};
  }
  // Newest first. Damaged ones come before the others: they may be newer.
  CAIRN_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> list, ListCheckpoints(root));
  std::reverse(list.begin(), list.end());
  if (first) {
    // Only the step of a damaged checkpoint is known, so compare by step.
    std::erase_if(list, [&first](const StoredCheckpoint& c) {
      if (c.info.step == first->info.step) return true;
      return Verified(c) && Verified(*first) ? !Older(c, *first) : c.info.step > first->info.step;
    });
    list.insert(list.begin(), *std::move(first));
  }
  if (list.empty()) return Error(StatusCode::kNotFound, "there is no checkpoint under {}", root);
  if (selector.fall_back()) return list;
  if (!Verified(list.front())) return list.front().info.status;
  list.resize(1);
  return list;
}

std::vector<std::string> CheckNewestShards(std::vector<StoredCheckpoint>& list, std::uint64_t enough,
                                           std::span<const CheckpointInfo> doomed) {
  std::vector<std::string> bad;
  std::uint64_t good = 0;
  NonFinite best = NonFinite::kNaN;
  bool origin = false;
  for (auto newest = list.rbegin(); newest != list.rend(); ++newest) {
    CheckpointInfo& info = newest->info;
    if (good >= enough && info.nonfinite >= best && (origin || info.frozen != Frozen::kWritten)) continue;
    const bool goes = std::ranges::any_of(doomed, [&info](const auto& one) { return one.step == info.step; });
    if (!info.status.ok() || goes) continue;
    info.status = CheckShardFiles(*newest);
    if (info.status.ok()) {
      ++good;
      best = std::min(best, info.nonfinite);
      origin = origin || info.frozen == Frozen::kWritten;
    } else {
      bad.push_back(fmt::format("step {} is not counted: {}", info.step, info.status.ToString()));
    }
  }
  return bad;
}

std::string DescribeSteps(std::vector<std::uint64_t> steps) {
  constexpr std::size_t kNamed = 10;
  std::ranges::sort(steps);
  if (steps.size() <= kNamed) return fmt::format("{}", fmt::join(steps, ", "));
  return fmt::format("{} steps from {} to {}", steps.size(), steps.front(), steps.back());
}

Status NoSuchStep(const PathAt& root, std::uint64_t step) {
  std::vector<std::uint64_t> steps;
  if (const Result<std::vector<FolderEntry>> entries = ListRoot(root); entries.ok()) {
    for (const FolderEntry& entry : *entries) {
      const std::optional<std::uint64_t> found = ParseStepName(entry.name);
      if (found && entry.directory) steps.push_back(*found);
    }
  }
  const std::string there =
      steps.empty() ? "" : (steps.size() == 1 ? "; there is " : "; there are ") + DescribeSteps(steps);
  return Error(StatusCode::kNotFound, "there is no step {} under {}{}", step, root, there);
}

std::vector<std::uint64_t> ChooseRetired(std::span<const CheckpointInfo* const> list, std::uint64_t keep_last,
                                         std::uint64_t keep_every) {
  std::vector<const CheckpointInfo*> verified;
  std::ranges::copy_if(list, std::back_inserter(verified), [](const auto* c) { return c->status.ok(); });
  std::vector<std::uint64_t> retired;
  if (keep_last == 0 || verified.size() <= keep_last) return retired;
  // The last one whose frozen tensors are surely those of its step, while all newer ones link what it has written.
  const auto written =
      std::find_if(verified.rbegin(), verified.rend(), [](const auto* one) { return one->frozen == Frozen::kWritten; });
  const CheckpointInfo* const origin = written == verified.rend() ? nullptr : *written;
  // Reversed, so that it is the newest of several.
  const CheckpointInfo* const best = *std::min_element(
      verified.rbegin(), verified.rend(), [](const auto* a, const auto* b) { return a->nonfinite < b->nonfinite; });
  verified.resize(verified.size() - keep_last);
  for (const CheckpointInfo* checkpoint : verified) {
    const bool milestone = keep_every != 0 && checkpoint->step % keep_every == 0;
    if (!checkpoint->pinned && !milestone && checkpoint != best && checkpoint != origin)
      retired.push_back(checkpoint->step);
  }
  return retired;
}

}  // namespace cairn
