#include "store/memory_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <linux/magic.h>
#include <mntent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/human.h"
#include "base/memory_limit.h"
#include "base/status_macros.h"
#include "base/uuid.h"
#include "io/io_task.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/remove.h"
#include "store/space.h"

namespace cairn {
namespace {

constexpr mode_t kSlotMode = 0600;
constexpr mode_t kOwnMode = 0700;
constexpr std::uint64_t kBlockOfStat = 512;  // The unit of st_blocks.

Status CheckOwn(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return ErrnoStatus(errno, "looking at " + path);
  if (S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & 077U) == 0) return Status::Ok();
  return Error(StatusCode::kFailedPrecondition,
               "memory_root: expected {} to be a folder of user {} with mode 0700, found {} of user {} with mode {:#o}",
               path, ::geteuid(), S_ISDIR(found.st_mode) ? "a folder" : "something else", found.st_uid,
               found.st_mode & 07777U);
}

std::string FolderIn(const std::string& memory_root, const std::string& root_id) {
  return memory_root + (memory_root.ends_with('/') ? "" : "/") + "cairn-" + root_id;
}

struct Slot {
  // Its folder, and the shard in it.
  PathAt folder;
  PathAt path;
  // Of no checkpoint: it may be removed.
  bool spare = false;
  // Its length is the wanted one, and all its blocks are allocated.
  bool fits = false;
};

Result<std::vector<Slot>> FindSlots(const PathAt& root, std::uint64_t rank, std::uint64_t bytes) {
  std::vector<Slot> slots;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, ListRoot(root));
  for (const FolderEntry& entry : entries) {
    if (!entry.directory || (!IsSpareName(entry.name) && !ParseStepName(entry.name))) continue;
    const PathAt folder = JoinPath(root, entry.name);
    const PathAt path = JoinPath(folder, ShardName(rank));
    struct stat found {};
    if (::fstatat(path.directory(), path.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const auto size = static_cast<std::uint64_t>(found.st_size);
    const bool allocated = static_cast<std::uint64_t>(found.st_blocks) * kBlockOfStat >= bytes;
    slots.push_back({.folder = folder,
                     .path = path,
                     .spare = IsSpareName(entry.name),
                     .fits = S_ISREG(found.st_mode) && allocated && IsSlotFor(size, bytes)});
  }
  return slots;
}

/// Of memory that is free, some stays free: training needs more than it has at this moment.
Status CheckMemory(const PathAt& root, std::uint64_t slots, std::uint64_t bytes, std::uint64_t missing) {
  const std::string needs =
      fmt::format("{} slots of {} in memory need {} more", slots, HumanBytes(bytes), HumanBytes(missing));
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> free, FindFreeSpace(root));
  if (free && *free < missing) {
    return Error(StatusCode::kNoSpace, "{}, and the tmpfs of {} has {}: a larger one is needed", needs, root,
                 HumanBytes(*free));
  }
  const std::uint64_t available = FindMemory().available;
  if (available == 0 || missing <= available - available / 16) return Status::Ok();
  const std::optional<MemoryLimit> limit = FindMemoryLimit();
  const bool of_group = limit && limit->available <= available;
  return Error(StatusCode::kNoSpace, "{}, and {} has {} available, of which a sixteenth stays free", needs,
               of_group ? limit->file : "the machine", HumanBytes(available));
}

Status MakeFile(const PathAt& path, std::uint64_t bytes) {
  constexpr int kFlags = O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
  const UniqueFd fd(::openat(path.directory(), path.c_str(), kFlags, kSlotMode));
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + path.text());
  int error = 0;
  do {
    error = ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error == 0 ? Status::Ok() : ErrnoStatus(error, fmt::format("allocating {} bytes of {}", bytes, path));
}

/// Of a spare: false if another process has it open, one of an earlier run that has not ended.
bool IsOwn(const PathAt& path, const MappedFiles& mapped) {
  if (mapped.Open(path).valid()) return true;
  const UniqueFd fd(::openat(path.directory(), path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid() || !TakeLease(fd, path.text()).ok()) return false;
  ReleaseLease(fd);
  return true;
}

Status RemoveSlot(const PathAt& folder, std::uint64_t rank) {
  const PathAt path = JoinPath(folder, ShardName(rank));
  if (::unlinkat(path.directory(), path.c_str(), 0) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, "removing " + path.text());
  }
  ::unlinkat(folder.directory(), folder.c_str(), AT_REMOVEDIR);  // Unless it has another rank's.
  return Status::Ok();
}

Status MakeSlot(const PathAt& folder, std::uint64_t rank, std::uint64_t bytes) {
  if (::mkdirat(folder.directory(), folder.c_str(), kOwnMode) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, "creating " + folder.text());
  }
  Status made = MakeFile(JoinPath(folder, ShardName(rank)), bytes);
  if (!made.ok()) static_cast<void>(RemoveSlot(folder, rank));
  return made;
}

Result<std::vector<PathAt>> AllocateMissing(const PathAt& root, std::uint64_t rank, std::uint64_t slots,
                                            std::uint64_t bytes, const MappedFiles& mapped) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Slot> found, FindSlots(root, rank, bytes));
  std::vector<PathAt> paths;
  std::set<std::string> taken;
  for (const Slot& slot : found) {
    const bool fits = slot.fits && (!slot.spare || IsOwn(slot.path, mapped));
    if (!fits && slot.spare) CAIRN_RETURN_IF_ERROR(RemoveSlot(slot.folder, rank));
    if (!fits) continue;
    taken.insert(slot.path.text());
    paths.push_back(slot.path);
  }
  const std::uint64_t missing = slots - std::min<std::uint64_t>(slots, paths.size());
  CAIRN_RETURN_IF_ERROR(CheckMemory(root, slots, bytes, missing * AlignUp(bytes, kBlock)));
  std::vector<PathAt> made;
  Status status;
  for (std::uint64_t number = 0; status.ok() && paths.size() < slots && number < slots; ++number) {
    const PathAt folder = JoinPath(root, SpareName(number));
    const PathAt path = JoinPath(folder, ShardName(rank));
    if (taken.contains(path.text())) continue;
    status = MakeSlot(folder, rank, bytes);
    if (!status.ok()) continue;
    made.push_back(folder);
    paths.push_back(path);
  }
  if (status.ok()) return paths;
  for (const PathAt& folder : made) static_cast<void>(RemoveSlot(folder, rank));
  return status;
}

IoTask<Status> RemoveNamed(PathAt folder, Leftovers& left) {
  Result<std::vector<FolderEntry>> entries = ListRoot(folder);
  CAIRN_CO_RETURN_IF_ERROR(entries.status());
  std::erase_if(*entries, [](const FolderEntry& entry) { return !entry.directory; });
  for (FolderEntry& entry : *entries) {
    if (IsLeftover(entry.name)) continue;
    const std::string retired = RetiredName(MakeUuid());
    CAIRN_CO_RETURN_IF_ERROR(
        co_await io::Rename(JoinPath(folder, entry.name), JoinPath(folder, retired), RenameMode::kPlain));
    entry.name = retired;
  }
  for (const FolderEntry& entry : *entries) {
    CAIRN_CO_RETURN_IF_ERROR(co_await RemoveFolder(JoinPath(folder, entry.name), left));
  }
  co_return co_await RemoveFolder(folder, left);
}

}  // namespace

Status CheckMemoryRoot(const std::string& memory_root) {
  struct statfs found {};
  if (::statfs(memory_root.c_str(), &found) != 0) {
    return Error(StatusCode::kInvalidArgument,
                 "memory_root: expected a folder on tmpfs, such as /dev/shm, found {}: {}", memory_root,
                 ErrnoStatus(errno, "looking at it").message());
  }
  if (found.f_type != TMPFS_MAGIC) {
    return Error(StatusCode::kInvalidArgument,
                 "memory_root: expected a folder on tmpfs, such as /dev/shm, found {}, on another filesystem ({:#x})",
                 memory_root, found.f_type);
  }
  return Status::Ok();
}

Result<std::string> MakeMemoryFolder(const std::string& memory_root, const std::string& root_id) {
  std::string path = FolderIn(memory_root, root_id);
  if (::mkdir(path.c_str(), kOwnMode) != 0 && errno != EEXIST) return ErrnoStatus(errno, "creating " + path);
  CAIRN_RETURN_IF_ERROR(CheckOwn(path));
  return path;
}

Result<std::string> FindMemoryFolder(const std::string& memory_root, const std::string& root_id) {
  std::string path = FolderIn(memory_root, root_id);
  CAIRN_RETURN_IF_ERROR(CheckOwn(path));
  return path;
}

Status RemoveMemoryFolder(IoQueue& queue, const std::string& path) {
  Leftovers left;
  CAIRN_RETURN_IF_ERROR(RunTaskBlocking(queue, RemoveNamed(path, left)));
  return left.empty() ? Status::Ok() : Error(StatusCode::kIoError, "{}", fmt::join(left, "; "));
}

MemoryPlace FindMemoryPlace(const std::string& memory_root, const WriterRecord& root) {
  if (memory_root.empty() || root.root.empty()) return {};
  MemoryPlace place{.path = FolderIn(memory_root, root.root), .root = root.root, .root_openings = root.openings};
  if (!CheckOwn(place.path).ok()) return {};
  Result<std::optional<WriterRecord>> kept = ReadWriter(place.path);
  if (kept.ok() && *kept) place.openings = std::move((*kept)->openings);
  return place;
}

MemoryPlace FindMemoryPlace(const WriterRecord& root) {
  const std::unique_ptr<FILE, decltype(&::endmntent)> mounts(::setmntent("/proc/self/mounts", "re"), &::endmntent);
  if (root.root.empty() || mounts == nullptr) return {};
  struct mntent entry {};
  std::array<char, 4096> text{};
  while (::getmntent_r(mounts.get(), &entry, text.data(), static_cast<int>(text.size())) != nullptr) {
    if (std::string_view(entry.mnt_type) != "tmpfs") continue;
    MemoryPlace place = FindMemoryPlace(entry.mnt_dir, root);
    if (!place.path.empty()) return place;
  }
  return {};
}

Result<std::vector<PathAt>> AllocateSlots(const PathAt& root, std::uint64_t rank, std::uint64_t slots,
                                          std::uint64_t bytes, const MappedFiles& mapped) {
  const PathAt self = JoinPath(root, ".");
  const UniqueFd alone(::openat(self.directory(), self.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!alone.valid()) return ErrnoStatus(errno, "opening " + root.text());
  while (::flock(alone.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, "locking " + root.text());
  }
  while (true) {
    Result<std::vector<PathAt>> allocated = AllocateMissing(root, rank, slots, bytes, mapped);
    // Rank 0 has made a spare of a checkpoint meanwhile.
    const StatusCode code = allocated.status().code();
    const bool renamed = code == StatusCode::kNotFound || code == StatusCode::kAlreadyExists;
    if (!renamed || !IsSameFile(root, alone)) return allocated;
  }
}

void FreeSlots(const PathAt& root, std::uint64_t rank) {
  const Result<std::vector<FolderEntry>> entries = ListRoot(root);
  if (!entries.ok()) return;
  for (const FolderEntry& entry : *entries) {
    if (entry.directory && IsSpareName(entry.name)) static_cast<void>(RemoveSlot(JoinPath(root, entry.name), rank));
  }
}

}  // namespace cairn
