#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cairn/status.h"
#include "io/io_queue.h"
#include "io/path_at.h"
#include "store/list.h"
#include "store/mapped_file.h"

namespace cairn {

// A memory root is a root like any other, but on tmpfs, in a folder of its own in Options::memory_root: "cairn-<id>",
// with the id of the root on the disk. It is this user's alone. Its shard files are its slots: as many as can be in use
// at once are allocated together, and recycled from then on.

/// InvalidArgument if it is no folder on tmpfs.
[[nodiscard]] Status CheckMemoryRoot(const std::string& memory_root);

/// Makes the folder, unless it is there. FailedPrecondition if what is there is not a folder of this user alone.
/// Returns its path. Blocking.
[[nodiscard]] Result<std::string> MakeMemoryFolder(const std::string& memory_root, const std::string& root_id);

/// The path of that folder, which rank 0 has made. Errors as before; NotFound if there is none. Blocking.
[[nodiscard]] Result<std::string> FindMemoryFolder(const std::string& memory_root, const std::string& root_id);

/// Removes the folder with all that is in it; IoError says what is left. What is in it loses its name first, in one
/// step each, so that whoever is killed meanwhile leaves nothing that looks damaged: the next writer takes the rest for
/// leftovers. Blocking; needs exclusive use of the queue.
[[nodiscard]] Status RemoveMemoryFolder(IoQueue& queue, const std::string& path);

/// Where the saves of the root with that record are kept in `memory_root`, for who does not open it. Empty if this user
/// has no such folder. Blocking.
[[nodiscard]] MemoryPlace FindMemoryPlace(const std::string& memory_root, const WriterRecord& root);
/// The same, if it lies directly in a mounted tmpfs.
[[nodiscard]] MemoryPlace FindMemoryPlace(const WriterRecord& root);

/// Allocates what is missing, so that there are `slots` shard files of the rank of exactly `bytes` each, those of
/// checkpoints and spares counted, and returns their paths. A slot never gets another length, because it may be pinned:
/// spares of another one are removed, and those of checkpoints do not count. NoSpace if the tmpfs, the machine's memory
/// or that of the control group has less, and says what is missing: then what this call has made is gone again.
/// Meanwhile no save of this rank may be in flight; of several ranks in this call one allocates after the other. A
/// spare that another process than this (`mapped`) has open is of an earlier run that has not ended: it is removed, and
/// another one made. Blocking.
[[nodiscard]] Result<std::vector<PathAt>> AllocateSlots(const PathAt& root, std::uint64_t rank, std::uint64_t slots,
                                                        std::uint64_t bytes, const MappedFiles& mapped);
/// Whether a slot of `bytes` takes a file of so many: its blocks are those that the file would have.
[[nodiscard]] constexpr bool IsSlotFor(std::uint64_t bytes, std::uint64_t file_bytes) {
  return AlignUp(bytes, kBlock) == AlignUp(file_bytes, kBlock);
}
/// Removes those of them that are spares, also of earlier runs.
void FreeSlots(const PathAt& root, std::uint64_t rank);

}  // namespace cairn
