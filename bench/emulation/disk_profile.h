#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cairn/status.h"

namespace cairn::bench {

/// What Google's pd-ssd of 1 TB writes, the disk of PCcheck's evaluation: 0.48 MB/s a GB.
inline constexpr std::uint64_t kPdSsdBytesPerSecond = 480'000'000;

/// Limits the rate of this process's writes to a disk, by a cgroup of its own (v2's io.max, or v1's blkio.throttle),
/// until destroyed: the machine's disk behaves as a slower one. Under v1 the kernel's own flusher escapes the limit,
/// which favours strategies that write through the page cache.
class DiskLimit {
 public:
  /// For the disk under `directory`. Unsupported, with the reason, where no cgroup can be made or none limits writes.
  [[nodiscard]] static Result<std::unique_ptr<DiskLimit>> Make(const std::string& directory,
                                                               std::uint64_t bytes_per_second);
  ~DiskLimit();
  DiskLimit(const DiskLimit&) = delete;
  DiskLimit& operator=(const DiskLimit&) = delete;

 private:
  DiskLimit(std::string group, std::string before) : group_(std::move(group)), before_(std::move(before)) {}

  const std::string group_;   // The cgroup's directory.
  const std::string before_;  // The one to go back to.
};

}  // namespace cairn::bench
