#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cairn/status.h"

namespace cairn::bench {

struct Resources {
  std::uint64_t disk_bytes = 0;
  std::uint64_t memory_bytes = 0;
};

/// Free disk space under the directory, and free memory for this process (by /proc/meminfo and its cgroup).
[[nodiscard]] Result<Resources> FreeResources(const std::string& directory);
/// NoSpace or ResourceExhausted where a run needs more than there is, with the scale and the state that would fit.
/// A twentieth is left free. `need` grows with the state; `scale` is what it was scaled by already.
Status CheckFits(const Resources& need, const Resources& free, std::uint64_t state_bytes, double scale);

/// What this process has used so far, and the most memory it has held since ResetPeak. Bytes; zero where the kernel
/// does not say. Pages of mapped files count as memory. With `other`, a process that works for this one and shares
/// memory with it, which then counts once, what that has used counts, too.
struct Usage {
  std::uint64_t bytes_written = 0;  ///< Given to the filesystems, or dirtied in their pages.
  std::uint64_t peak_rss = 0;
  double cpu_seconds = 0;
};
[[nodiscard]] Usage UsageSoFar(std::optional<pid_t> other = std::nullopt);
void ResetPeak();

/// Memory at this moment. Bytes; zero where the kernel does not say. `other` as above.
struct HostMemory {
  std::uint64_t anonymous = 0;  ///< The processes' own, huge pages and shared memory, too.
  std::uint64_t mapped = 0;     ///< Pages of files that they have mapped.
  std::uint64_t dirty = 0;      ///< Pages of files, the whole machine's, that the disk does not have yet.
};
[[nodiscard]] HostMemory HostMemoryNow(std::optional<pid_t> other = std::nullopt);

/// Makes the kernel drop the clean pages of the files under the directory from its cache.
void DropCache(const std::string& directory);

}  // namespace cairn::bench
