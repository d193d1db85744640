#include "base/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/closed_streams.h"

namespace cairn {
namespace {

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

bool ContainsItem(const std::string& comma_separated, const std::string& word) {
  return ("," + comma_separated + ",").find("," + word + ",") != std::string::npos;
}

/// Where a hierarchy is mounted, and the group at the root of that mount.
struct Mount {
  std::string group;
  std::string point;
};

/// "36 35 0:31 /docker/1 /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory".
std::optional<Mount> FindMount(const std::vector<std::string>& mounts, const std::string& controller, bool version2) {
  for (const std::string& line : mounts) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line);
    std::istringstream after(line.substr(dash + 3));
    std::string skipped;
    Mount mount;
    std::string type;
    std::string options;
    before >> skipped >> skipped >> skipped >> mount.group >> mount.point;
    after >> type >> skipped >> options;
    if (version2 ? type == "cgroup2" : type == "cgroup" && ContainsItem(options, controller)) return mount;
  }
  return std::nullopt;
}

/// The group's folder below the mount, and its parents. If the mount does not contain the group (in a container /proc
/// names it as the host does), the mount's root is the group.
void AppendFolders(const Mount& mount, std::string group, std::vector<std::string>& folders) {
  if (mount.group != "/") {
    const bool shown = group == mount.group || group.starts_with(mount.group + "/");
    group = shown ? group.substr(mount.group.size()) : std::string();
  }
  if (group.find("/..") != std::string::npos) group.clear();
  for (; group.size() > 1; group.resize(group.rfind('/'))) folders.push_back(mount.point + group);
  folders.push_back(mount.point);
}

std::optional<std::uint64_t> ReadNumber(const std::string& path) {
  std::uint64_t number = 0;
  // "max", which is not a number, means no limit.
  return std::ifstream(path) >> number ? std::optional(number) : std::nullopt;
}

/// What the kernel can reclaim under pressure. Swap is not counted.
std::uint64_t Reclaimable(const std::string& folder, bool version2) {
  std::uint64_t sum = 0;
  std::ifstream file(folder + "/memory.stat");
  std::string name;
  for (std::uint64_t bytes = 0; file >> name >> bytes;) {
    const std::string plain = version2 ? name : name.starts_with("total_") ? name.substr(6) : "";
    if (plain == "active_file" || plain == "inactive_file" || plain == "slab_reclaimable") sum += bytes;
  }
  return sum;
}

std::optional<MemoryLimit> ReadLimit(const std::string& folder) {
  for (const bool version2 : {true, false}) {
    const std::string file = folder + (version2 ? "/memory.max" : "/memory.limit_in_bytes");
    const std::optional<std::uint64_t> limit = ReadNumber(file);
    // Version 1 expresses no limit as a number larger than any machine's memory.
    if (!limit || *limit >= std::uint64_t{1} << 60) continue;
    const std::uint64_t used =
        ReadNumber(folder + (version2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
    const std::uint64_t held = used - std::min(used, Reclaimable(folder, version2));
    return MemoryLimit{.file = file, .bytes = *limit, .held = held, .available = *limit - std::min(*limit, held)};
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> MemoryGroupFolders(const std::string& root) { return GroupFolders("memory", root); }

std::vector<std::string> GroupFolders(const std::string& controller, const std::string& root) {
  std::vector<std::string> folders;
  const std::vector<std::string> mounts = Lines(root + "/proc/self/mountinfo");
  for (const std::string& line : Lines(root + "/proc/self/cgroup")) {
    // "4:memory:/docker/1" and, of version 2, "0::/user.slice".
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = line.starts_with("0::");
    if (!version2 && !ContainsItem(controllers, controller)) continue;
    if (const std::optional<Mount> mount = FindMount(mounts, controller, version2)) {
      AppendFolders({.group = mount->group, .point = root + mount->point}, line.substr(second + 1), folders);
    }
  }
  return folders;
}

std::optional<MemoryLimit> FindMemoryLimit(const std::string& root) {
  std::optional<MemoryLimit> tightest;
  for (const std::string& folder : MemoryGroupFolders(root)) {
    std::optional<MemoryLimit> limit = ReadLimit(folder);
    if (limit && (!tightest || limit->available < tightest->available)) tightest = std::move(limit);
  }
  return tightest;
}

Memory FindMemory(const std::string& root) {
  TakeClosedStreams();  // Else a file that is only read here could hide from others that its descriptor will be free.
  Memory memory;
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  std::uint64_t kib = 0;
  for (std::string unit; file >> name >> kib && std::getline(file, unit);) {
    if (name == "MemTotal:") memory.total = kib * 1024;
    if (name == "MemAvailable:") memory.available = kib * 1024;
  }
  if (const std::optional<MemoryLimit> limit = FindMemoryLimit(root)) {
    memory.total = std::min(memory.total, limit->bytes);
    memory.available = std::min(memory.available, limit->available);
  }
  return memory;
}

}  // namespace cairn
