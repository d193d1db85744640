#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// Memory control groups (cgroup v1 and v2). `root` is the folder that stands for "/": tests have trees of their own.

/// The folders of this process's memory control group and of its parents as far as they are visible, innermost first.
[[nodiscard]] std::vector<std::string> MemoryGroupFolders(const std::string& root = {});

/// What the tightest of these groups allows.
struct MemoryLimit {
  std::string file;             ///< Where the limit stands.
  std::uint64_t bytes = 0;      ///< The limit.
  std::uint64_t held = 0;       ///< In use by whoever is in the group, and not to be had back: the page cache is.
  std::uint64_t available = 0;  ///< The rest.
};
/// None where nothing is limited, or nothing is said.
[[nodiscard]] std::optional<MemoryLimit> FindMemoryLimit(const std::string& root = {});

}  // namespace cairn
