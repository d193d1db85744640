#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cairn/status.h"

namespace cairn::tools {

// What this machine is and allows, as far as saves care.

struct Memory {
  std::uint64_t total = 0;
  std::uint64_t available = 0;  ///< Without pushing anything out, as the kernel estimates.
};
/// Of the machine, or of the control group where that allows less.
[[nodiscard]] Memory FindMemory();

/// "always", "madvise" or "never"; "unknown" where the kernel does not say.
[[nodiscard]] std::string FindHugepages();

/// The release of the running kernel.
[[nodiscard]] std::string FindKernel();

struct Limits {
  std::optional<std::uint64_t> file_size;  ///< None: unlimited, in all of these.
  std::optional<std::uint64_t> open_files;
  std::optional<std::uint64_t> locked_memory;
};
[[nodiscard]] Limits FindLimits();

struct Filesystem {
  std::string type;         ///< "ext4".
  Status direct;            ///< Whether O_DIRECT opens, and why not.
  std::uint64_t alignment;  ///< Of O_DIRECT's offsets and addresses; 0: the kernel does not say.
  Status preallocation;     ///< fallocate.
  Status leases;            ///< Whether a retired file is written over here.
  Status no_replace;        ///< RENAME_NOREPLACE.
  Status exchange;          ///< RENAME_EXCHANGE, which IfExists::kReplace needs.
};
/// Tries all of it on two empty files in a folder that is removed again (named so that the next writer would).
[[nodiscard]] Result<Filesystem> TryFilesystem(const std::string& root);

}  // namespace cairn::tools
