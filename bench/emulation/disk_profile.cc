#include "bench/emulation/disk_profile.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "cairn-bench-";

// A cgroup hierarchy that can limit a disk's writes.
struct Hierarchy {
  std::string root;         // Where it is mounted.
  std::string controllers;  // As /proc/self/cgroup names it: "blkio", or nothing for v2.
  std::string limit_file;
  std::string limit_format;  // Of a line in it: {0} the device, {1} the bytes per second.
};

bool Writable(const std::string& path) { return ::access(path.c_str(), W_OK) == 0; }

Status WriteLine(const std::string& path, const std::string& line) {
  std::ofstream file(path);
  file << line << std::flush;
  return file.good() ? Status::Ok() : Error(StatusCode::kUnsupported, "writing \"{}\" to {} was refused", line, path);
}

Result<Hierarchy> FindHierarchy() {
  const std::string v1 = "/sys/fs/cgroup/blkio";
  if (Writable(v1 + "/cgroup.procs")) {
    return Hierarchy{
        .root = v1, .controllers = "blkio", .limit_file = "blkio.throttle.write_bps_device", .limit_format = "{0} {1}"};
  }
  const std::string v2 = "/sys/fs/cgroup";
  if (Writable(v2 + "/cgroup.subtree_control")) {
    CAIRN_RETURN_IF_ERROR(WriteLine(v2 + "/cgroup.subtree_control", "+io"));
    return Hierarchy{.root = v2, .controllers = "", .limit_file = "io.max", .limit_format = "{0} wbps={1}"};
  }
  return Error(StatusCode::kUnsupported,
               "a limit on a disk's writes needs a writable cgroup hierarchy, v1's blkio or v2; found neither under {}",
               v2);
}

// The group that this process is in: its directory.
Result<std::string> CurrentGroup(const Hierarchy& hierarchy) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos || line.substr(first + 1, second - first - 1) != hierarchy.controllers) continue;
    return hierarchy.root + line.substr(second + 1);
  }
  return Error(StatusCode::kUnsupported, "/proc/self/cgroup does not say where this process is under {}",
               hierarchy.root);
}

// "major:minor" of the whole disk that the directory is on: a partition cannot have a limit.
Result<std::string> DiskOf(const std::string& directory) {
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0) return ErrnoStatus(errno, "looking at " + directory);
  const std::string name = fmt::format("{}:{}", major(found.st_dev), minor(found.st_dev));
  std::error_code error;
  const fs::path device = fs::canonical("/sys/dev/block/" + name, error);
  if (error) return Error(StatusCode::kUnsupported, "{} is on no block device (device {})", directory, name);
  if (!fs::exists(device / "partition", error)) return name;
  std::string disk;
  std::ifstream(device.parent_path() / "dev") >> disk;
  return disk;
}

// A killed run leaves its group behind, empty.
void RemoveEmptyGroups(const std::string& root) {
  std::error_code ignored;
  std::vector<std::string> groups;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored)) {
    if (entry.path().filename().string().starts_with(kPrefix)) groups.push_back(entry.path().string());
  }
  for (const std::string& group : groups) ::rmdir(group.c_str());  // Not one that a process is in.
}

}  // namespace

Result<std::unique_ptr<DiskLimit>> DiskLimit::Make(const std::string& directory, std::uint64_t bytes_per_second) {
  CAIRN_ASSIGN_OR_RETURN(const std::string disk, DiskOf(directory));
  CAIRN_ASSIGN_OR_RETURN(const Hierarchy hierarchy, FindHierarchy());
  CAIRN_ASSIGN_OR_RETURN(std::string before, CurrentGroup(hierarchy));
  RemoveEmptyGroups(hierarchy.root);
  const std::string group = fmt::format("{}/{}{}", hierarchy.root, kPrefix, ::getpid());
  if (::mkdir(group.c_str(), 0755) != 0) {
    return Error(StatusCode::kUnsupported, "making the cgroup {}: {}", group, ErrnoStatus(errno, "mkdir").message());
  }
  std::unique_ptr<DiskLimit> limit(new DiskLimit(group, std::move(before)));
  CAIRN_RETURN_IF_ERROR(WriteLine(group + "/" + hierarchy.limit_file,
                                  fmt::format(fmt::runtime(hierarchy.limit_format), disk, bytes_per_second)));
  CAIRN_RETURN_IF_ERROR(WriteLine(group + "/cgroup.procs", std::to_string(::getpid())));
  return limit;
}

DiskLimit::~DiskLimit() {
  static_cast<void>(WriteLine(before_ + "/cgroup.procs", std::to_string(::getpid())));
  ::rmdir(group_.c_str());
}

}  // namespace cairn::bench
