#pragma once

#include <cstdint>
#include <optional>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_queue.h"
#include "io/io_task.h"
#include "io/path_at.h"

namespace cairn {

/// Who has pinned a checkpoint: keep_best, whose pin holds the text "best\n", or a user, whose pin holds anything else.
/// Cairn writes a user's pin empty.
enum class PinOwner : std::uint8_t { kUser, kBest };

/// Whether step-N exists, and whether it is pinned, according to the disk. True if the disk cannot be read.
[[nodiscard]] bool StepExists(const PathAt& root, std::uint64_t step);
[[nodiscard]] bool IsPinned(const PathAt& root, std::uint64_t step);
[[nodiscard]] bool IsPinned(const PathAt& folder);
/// Whose pin the checkpoint in this folder has. A user's if it cannot be read.
[[nodiscard]] std::optional<PinOwner> FindPin(const PathAt& folder);

/// Creates a pin at `path` and writes its text. The caller fsyncs and closes `fd`, and fsyncs the folder.
IoTask<Status> CreatePin(const PathAt& path, PinOwner owner, unsigned file_mode, Room* room, UniqueFd& fd);

/// Makes the pin of step-N this owner's, or removes it if there is none, durably. A crash at any point leaves the old
/// pin or the new one. A pin that is the owner's already keeps its text. The new one is a draft in the root first,
/// which the next writer removes if this process is killed. Blocking; needs exclusive use of the queue.
[[nodiscard]] Status SetPin(IoQueue& queue, const PathAt& root, std::uint64_t step, std::optional<PinOwner> owner,
                            unsigned file_mode);

}  // namespace cairn
