#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cairn/status.h"

namespace cairn::tools {

// Properties of this machine that matter for saves.

/// "always", "madvise" or "never"; "unknown" if the kernel does not report it.
[[nodiscard]] std::string FindHugepages();

[[nodiscard]] std::string FindKernel();

/// Whether there is an NVIDIA GPU on the PCI bus, with or without a driver for it, or behind WSL2.
[[nodiscard]] bool HasNvidiaGpu();

/// None: unlimited.
struct Limits {
  std::optional<std::uint64_t> file_size;
  std::optional<std::uint64_t> open_files;
  std::optional<std::uint64_t> locked_memory;
};
[[nodiscard]] Limits FindLimits();

/// /dev/shm, where a root in memory usually is.
struct SharedMemory {
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};
/// None if it is no tmpfs.
[[nodiscard]] std::optional<SharedMemory> FindSharedMemory();
/// Whether systemd removes what a user has there, once the user has no session left: "RemoveIPC" is not off, and it is
/// no system user.
[[nodiscard]] bool IsIpcRemoved();

struct Filesystem {
  /// "ext4".
  std::string type;
  /// Whether O_DIRECT opens, and why not.
  Status direct;
  /// Of O_DIRECT's offsets and addresses; 0 if the kernel does not report it.
  std::uint64_t alignment;
  /// fallocate.
  Status preallocation;
  /// Whether retired files can be overwritten.
  Status leases;
  /// RENAME_NOREPLACE.
  Status no_replace;
  /// RENAME_EXCHANGE, which IfExists::kReplace needs.
  Status exchange;
};
/// Tries all of this on two empty files in a temporary folder (named so that the next writer would remove it).
[[nodiscard]] Result<Filesystem> TryFilesystem(const std::string& root);

}  // namespace cairn::tools
