#include "bench/harness/resources.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace cairn::bench {
namespace {

// The number after `field` in a file of such lines; none if no line has the field.
std::optional<std::uint64_t> Field(const std::string& path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size()));
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // "max", too.
}

}  // namespace

Result<Resources> FreeResources(const std::string& directory) {
  struct statvfs found {};
  if (::statvfs(directory.c_str(), &found) != 0) return ErrnoStatus(errno, "asking for free space under " + directory);
  Resources free;
  free.disk_bytes = std::uint64_t{found.f_bavail} * found.f_frsize;
  free.memory_bytes = Field("/proc/meminfo", "MemAvailable:").value_or(UINT64_MAX / 1024) * 1024;
  const std::string cgroup = "/sys/fs/cgroup/memory.";
  const std::optional<std::uint64_t> most = Number(cgroup + "max");
  const std::optional<std::uint64_t> used = Number(cgroup + "current");
  if (most.has_value() && used.has_value())
    free.memory_bytes = std::min(free.memory_bytes, *most - std::min(*most, *used));
  return free;
}

Status CheckFits(const Resources& need, const Resources& free, std::uint64_t state_bytes, double scale) {
  const auto share = [](std::uint64_t needed, std::uint64_t there) {
    return needed == 0 ? 1 : 0.95 * static_cast<double>(there) / static_cast<double>(needed);
  };
  const double disk = share(need.disk_bytes, free.disk_bytes);
  const double memory = share(need.memory_bytes, free.memory_bytes);
  const double fits = std::min(disk, memory);
  if (fits >= 1) return {};
  const std::uint64_t fitting =
      AlignDown(static_cast<std::uint64_t>(static_cast<double>(state_bytes) * fits * 0.99), kBlock);
  return Error(disk < memory ? StatusCode::kNoSpace : StatusCode::kResourceExhausted,
               "needs {} bytes of disk and {} of memory, found {} and {} free; --scale {:.3g} would fit, a state of {} "
               "bytes",
               need.disk_bytes, need.memory_bytes, free.disk_bytes, free.memory_bytes, scale * fits * 0.99, fitting);
}

Usage UsageSoFar(std::optional<pid_t> other) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  Usage used{.bytes_written = Field("/proc/self/io", "write_bytes:").value_or(0),
             .peak_rss = Field("/proc/self/status", "VmHWM:").value_or(0) * 1024,
             .cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
  if (!other.has_value()) return used;
  const std::string of_other = "/proc/" + std::to_string(*other);
  used.bytes_written += Field(of_other + "/io", "write_bytes:").value_or(0);
  used.peak_rss +=
      1024 * (Field(of_other + "/status", "VmHWM:").value_or(0) - Field(of_other + "/status", "RssShmem:").value_or(0));
  clockid_t clock{};
  timespec spent{};
  if (::clock_getcpuclockid(*other, &clock) == 0 && ::clock_gettime(clock, &spent) == 0) {
    used.cpu_seconds += static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9;
  }
  return used;
}

HostMemory HostMemoryNow(std::optional<pid_t> other) {
  const auto kibibytes = [](const std::string& path, std::initializer_list<std::string_view> fields) {
    std::uint64_t sum = 0;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      for (const std::string_view field : fields) {
        if (line.starts_with(field)) sum += std::stoull(line.substr(field.size())) * 1024;
      }
    }
    return sum;
  };
  HostMemory memory{.anonymous = kibibytes("/proc/self/status", {"RssAnon:", "RssShmem:"}),
                    .mapped = kibibytes("/proc/self/status", {"RssFile:"}),
                    .dirty = kibibytes("/proc/meminfo", {"Dirty:", "Writeback:"})};
  if (!other.has_value()) return memory;
  const std::string of_other = "/proc/" + std::to_string(*other) + "/status";
  memory.anonymous += kibibytes(of_other, {"RssAnon:"});
  memory.mapped += kibibytes(of_other, {"RssFile:"});
  return memory;
}

void ResetPeak() { std::ofstream("/proc/self/clear_refs") << 5; }

void DropCache(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    if (!at->is_regular_file(error)) continue;
    const UniqueFd file(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (file.valid()) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

}  // namespace cairn::bench
