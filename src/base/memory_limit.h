#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// Memory of the machine and of control groups (cgroup v1 and v2). `root` replaces "/" in tests.

/// The folders of this process's memory control group and of its visible parents, innermost first.
[[nodiscard]] std::vector<std::string> MemoryGroupFolders(const std::string& root = {});

/// The same of another controller ("cpu"). In version 2 the folders are the same for all, whether they have it or not.
[[nodiscard]] std::vector<std::string> GroupFolders(const std::string& controller, const std::string& root = {});

/// What the tightest of these groups allows.
struct MemoryLimit {
  /// The file that sets the limit.
  std::string file;
  std::uint64_t bytes = 0;
  /// In use by the group and not reclaimable; the page cache is reclaimable.
  std::uint64_t held = 0;
  std::uint64_t available = 0;
};
/// None if there is no limit, or none can be read.
[[nodiscard]] std::optional<MemoryLimit> FindMemoryLimit(const std::string& root = {});

/// Of the machine, or of the control group if that has less. 0 where it cannot be read.
struct Memory {
  std::uint64_t total = 0;
  /// Without evicting anything, by the kernel's estimate.
  std::uint64_t available = 0;
};
[[nodiscard]] Memory FindMemory(const std::string& root = {});

}  // namespace cairn
