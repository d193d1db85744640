#include "tools/machine.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): renameat2
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "store/locks.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn::tools {
namespace {

std::string FindType(const struct stat& facts) {
  const std::string device = fmt::format("{}:{}", major(facts.st_dev), minor(facts.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"
    std::istringstream words(line);
    std::string word;
    for (int i = 0; i < 3; ++i) words >> word;
    if (word != device) continue;
    while (words >> word && word != "-") {
    }
    if (words >> word) return word;
  }
  return "unknown";
}

Status Outcome(int result, const char* call) { return result == 0 ? Status::Ok() : ErrnoStatus(errno, call); }

/// A folder with two files, which it removes. After a crash, a sweep would.
class Scratch {
 public:
  explicit Scratch(const std::string& root)
      : folder_(JoinPath(root, AttemptName(MakeUuid())).text()),
        first_(JoinPath(folder_, "first").text()),
        second_(JoinPath(folder_, "second").text()) {}
  ~Scratch() {
    ::unlink(first_.c_str());
    ::unlink(second_.c_str());
    ::rmdir(folder_.c_str());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status Make() {
    if (::mkdir(folder_.c_str(), 0700) != 0) return ErrnoStatus(errno, "making " + folder_);
    for (const std::string& path : {first_, second_}) {
      const UniqueFd made(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      if (!made.valid()) return ErrnoStatus(errno, "making " + path);
    }
    return Status::Ok();
  }
  [[nodiscard]] const std::string& first() const { return first_; }
  [[nodiscard]] const std::string& second() const { return second_; }

 private:
  const std::string folder_;
  const std::string first_;
  const std::string second_;
};

}  // namespace

std::string FindHugepages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  for (std::string word; file >> word;) {
    if (word.starts_with('[') && word.ends_with(']')) return word.substr(1, word.size() - 2);
  }
  return "unknown";
}

std::optional<SharedMemory> FindSharedMemory() {
  struct statfs found {};
  if (::statfs("/dev/shm", &found) != 0 || found.f_type != TMPFS_MAGIC) return std::nullopt;
  const auto block = static_cast<std::uint64_t>(found.f_bsize);
  return SharedMemory{.total = found.f_blocks * block, .free = found.f_bavail * block};
}

bool IsIpcRemoved() {
  constexpr uid_t kFirstUser = 1000;
  std::error_code unknown;
  if (::getuid() < kFirstUser || !std::filesystem::exists("/run/systemd/system", unknown)) return false;
  std::vector<std::filesystem::path> files{"/etc/systemd/logind.conf"};
  for (const auto& entry : std::filesystem::directory_iterator("/etc/systemd/logind.conf.d", unknown)) {
    files.push_back(entry.path());
  }
  return std::ranges::none_of(files, [](const std::filesystem::path& path) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      if (line == "RemoveIPC=no") return true;
    }
    return false;
  });
}

std::string FindKernel() {
  utsname names{};
  return ::uname(&names) == 0 ? names.release : "unknown";
}

bool HasNvidiaGpu() {
  const auto read = [](const std::filesystem::path& path) {
    std::string word;
    std::ifstream(path) >> word;
    return word;
  };
  std::error_code unknown;
  // In WSL2 the GPU is not on the PCI bus; Windows puts its driver here.
  if (std::filesystem::exists("/usr/lib/wsl/lib/libcuda.so.1", unknown)) return true;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices", unknown)) {
    // Class 03: display controllers, which data-centre GPUs are too.
    if (read(device.path() / "vendor") == "0x10de" && read(device.path() / "class").starts_with("0x03")) return true;
  }
  return false;
}

Limits FindLimits() {
  const auto limit = [](auto resource) -> std::optional<std::uint64_t> {
    rlimit found{};
    if (::getrlimit(resource, &found) != 0 || found.rlim_cur == RLIM_INFINITY) return std::nullopt;
    return found.rlim_cur;
  };
  return {.file_size = limit(RLIMIT_FSIZE), .open_files = limit(RLIMIT_NOFILE), .locked_memory = limit(RLIMIT_MEMLOCK)};
}

Result<Filesystem> TryFilesystem(const std::string& root) {
  CAIRN_ASSIGN_OR_RETURN(const struct stat facts, StatDirectory(root));
  Scratch scratch(root);
  CAIRN_RETURN_IF_ERROR(scratch.Make());
  const char* const first = scratch.first().c_str();
  const char* const second = scratch.second().c_str();

  Filesystem found{.type = FindType(facts)};
  UniqueFd fd(::open(first, O_RDWR | O_DIRECT | O_CLOEXEC));
  found.direct = Outcome(fd.valid() ? 0 : -1, "open with O_DIRECT");
  if (!fd.valid()) fd = UniqueFd(::open(first, O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "opening " + scratch.first());
#ifdef STATX_DIOALIGN
  struct statx aligned {};
  if (::statx(fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &aligned) == 0 && (aligned.stx_mask & STATX_DIOALIGN) != 0) {
    found.alignment = std::max<std::uint64_t>(aligned.stx_dio_offset_align, aligned.stx_dio_mem_align);
  }
#endif
  found.preallocation = Outcome(::fallocate(fd.get(), 0, 0, static_cast<off_t>(kBlock)), "fallocate");
  // A save also takes the lease on a file opened with O_DIRECT.
  found.leases = found.direct.ok() ? TakeLease(fd, "a file here") : found.direct;
  if (found.leases.ok()) ReleaseLease(fd);
  fd.Reset();
  found.exchange = Outcome(::renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE), "rename with EXCHANGE");
  ::unlink(second);
  found.no_replace = Outcome(::renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_NOREPLACE), "rename with NOREPLACE");
  return found;
}

}  // namespace cairn::tools
