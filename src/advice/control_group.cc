#include "advice/control_group.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/memory_limit.h"
#include "base/status_macros.h"
#include "base/uuid.h"

namespace cairn {
namespace {

// Short, so that a job with a fraction of a core goes on evenly.
constexpr std::uint64_t kPeriodMicroseconds = 20'000;

Status WriteTo(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "opening " + path);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, fmt::format("writing \"{}\" to {}", text, path));
  }
  return Status::Ok();
}

bool HasWord(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  for (std::string one; file >> one;) {
    if (one == word) return true;
  }
  return false;
}

std::uint64_t ReadNumber(const std::string& path) {
  std::uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

std::vector<pid_t> Processes(const std::string& folder) {
  std::vector<pid_t> processes;
  std::ifstream file(folder + "/cgroup.procs");
  for (pid_t one = 0; file >> one;) processes.push_back(one);
  return processes;
}

/// Where a group for this controller can be made.
struct Parent {
  std::string folder;
  bool version2 = false;
};

Result<Parent> FindParent(const std::string& controller, const std::string& root) {
  const std::vector<std::string> folders = GroupFolders(controller, root);
  std::error_code ignored;
  const auto exists = [&ignored](const std::string& path) { return std::filesystem::exists(path, ignored); };
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const std::string& own = folders[i];
    if (!exists(own + "/cgroup.controllers")) {
      if (exists(own + "/cgroup.procs")) return Parent{own, false};
      continue;
    }
    if (!HasWord(own + "/cgroup.controllers", controller)) continue;
    // A group of version 2 that holds processes cannot divide its resources; so the new one stands beside this
    // process's, except at the top of what is visible.
    const bool has_parent = i + 1 < folders.size() && own.starts_with(folders[i + 1] + "/");
    const std::string& parent = has_parent ? folders[i + 1] : own;
    if (!HasWord(parent + "/cgroup.subtree_control", controller)) {
      // Only the machine's own root, which has no type, may have both. Asking for it would change a group that it may
      // not use: with "+cpu" it could hold no other groups with processes.
      if (!has_parent && exists(own + "/cgroup.type") && !Processes(own).empty()) {
        return Error(StatusCode::kUnsupported,
                     "{0} holds this process, and a control group with processes cannot divide its {1}: move all of "
                     "them to a group below it, as docs/planning.md shows",
                     own, controller);
      }
      CAIRN_RETURN_IF_ERROR(WriteTo(parent + "/cgroup.subtree_control", "+" + controller));
    }
    return Parent{parent, true};
  }
  return Error(StatusCode::kUnsupported, "no control group here has the controller \"{}\"", controller);
}

}  // namespace

Result<std::unique_ptr<ControlGroup>> ControlGroup::Make(const GroupLimits& limits, const std::string& root) {
  std::unique_ptr<ControlGroup> group(new ControlGroup);
  const std::string name = "cairn-profile-" + MakeUuid();
  const auto make = [&]() -> Status {
    if (limits.cores > 0) CAIRN_RETURN_IF_ERROR(group->Add("cpu", name, root));
    if (limits.memory_bytes > 0) CAIRN_RETURN_IF_ERROR(group->Add("memory", name, root));
    return group->Limit(limits);
  };
  if (const Status made = make(); !made.ok()) return Status(StatusCode::kUnsupported, made.message());
  return group;
}

Status ControlGroup::Add(const std::string& controller, const std::string& name, const std::string& root) {
  CAIRN_ASSIGN_OR_RETURN(const Parent parent, FindParent(controller, root));
  const std::string path = parent.folder + "/" + name;
  const auto set = [&controller](Folder& folder) { (controller == "memory" ? folder.memory : folder.cpu) = true; };
  for (Folder& folder : folders_) {
    if (folder.path != path) continue;
    set(folder);
    return Status::Ok();
  }
  if (::mkdir(path.c_str(), 0755) != 0) return ErrnoStatus(errno, "making the control group " + path);
  folders_.push_back({.path = path, .version2 = parent.version2, .cpu = false, .memory = false, .joins = {}});
  set(folders_.back());
  const std::string joins = path + "/cgroup.procs";
  folders_.back().joins = UniqueFd(::open(joins.c_str(), O_WRONLY | O_CLOEXEC));
  return folders_.back().joins.valid() ? Status::Ok() : ErrnoStatus(errno, "opening " + joins);
}

Status ControlGroup::Limit(const GroupLimits& limits) const {
  const auto quota = static_cast<std::uint64_t>(std::llround(limits.cores * static_cast<double>(kPeriodMicroseconds)));
  for (const Folder& folder : folders_) {
    const std::string& path = folder.path;
    if (folder.cpu && folder.version2) {
      CAIRN_RETURN_IF_ERROR(WriteTo(path + "/cpu.max", fmt::format("{} {}", quota, kPeriodMicroseconds)));
    } else if (folder.cpu) {
      CAIRN_RETURN_IF_ERROR(WriteTo(path + "/cpu.cfs_period_us", fmt::to_string(kPeriodMicroseconds)));
      CAIRN_RETURN_IF_ERROR(WriteTo(path + "/cpu.cfs_quota_us", fmt::to_string(quota)));
    }
    if (folder.memory) {
      const char* const file = folder.version2 ? "/memory.max" : "/memory.limit_in_bytes";
      CAIRN_RETURN_IF_ERROR(WriteTo(path + file, fmt::to_string(limits.memory_bytes)));
    }
  }
  return Status::Ok();
}

int ControlGroup::Join() const {
  for (const Folder& folder : folders_) {
    if (::write(folder.joins.get(), "0", 1) != 1) return errno;
  }
  return 0;
}

void ControlGroup::KillAll() {
  for (const Folder& folder : folders_) {
    // A process that is dying leaves the group only once it has been waited for.
    for (int round = 0; round < 1000; ++round) {
      const std::vector<pid_t> processes = Processes(folder.path);
      if (processes.empty()) break;
      for (const pid_t one : processes) ::kill(one, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

ControlGroup::~ControlGroup() {
  KillAll();
  for (Folder& folder : folders_) {
    folder.joins.Reset();
    // What stays charged to the parent would be free of charge for the next group.
    if (folder.memory) {
      if (!folder.version2) (void)WriteTo(folder.path + "/memory.force_empty", "0");
      (void)WriteTo(folder.path + (folder.version2 ? "/memory.max" : "/memory.limit_in_bytes"), "0");
    }
    // Just after the last process ended, the group may still be busy.
    for (int round = 0; ::rmdir(folder.path.c_str()) != 0 && errno == EBUSY && round < 1000; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

std::uint64_t ControlGroup::peak_bytes() const {
  for (const Folder& folder : folders_) {
    if (folder.memory)
      return ReadNumber(folder.path + (folder.version2 ? "/memory.peak" : "/memory.max_usage_in_bytes"));
  }
  return 0;
}

bool ControlGroup::killed_for_memory() const {
  for (const Folder& folder : folders_) {
    if (!folder.memory) continue;
    std::ifstream file(folder.path + (folder.version2 ? "/memory.events" : "/memory.oom_control"));
    std::string name;
    for (std::uint64_t count = 0; file >> name >> count;) {
      if (name == "oom_kill" && count > 0) return true;
    }
  }
  return false;
}

}  // namespace cairn
