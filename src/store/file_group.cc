#include "store/file_group.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "store/late_name.h"
#include "store/locks.h"
#include "store/paths.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kRun = "run-";
constexpr std::string_view kHello = "hello-";
// What keys begin with that belong to no one group.
constexpr std::string_view kAnyGroup = "cairn/";
constexpr unsigned kFileMode = 0644;
// Of a name in a file's name: with what is added, far below the 255 bytes that filesystems allow.
constexpr std::size_t kLongestName = 200;
// How often a write begins again because another process has removed its draft or folder.
constexpr int kTries = 10;

/// Nothing tells of a file that another machine has made. The pauses are an eighth of what has been waited for.
void Pause(Deadline::Clock::time_point begun, Deadline until) {
  const auto now = Deadline::Clock::now();
  const std::chrono::nanoseconds pause =
      std::clamp<std::chrono::nanoseconds>((now - begun) / 8, milliseconds(1), milliseconds(250));
  std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, until.when() - now));
}

/// As part of a file's name. Of a long one, the beginning and a checksum of the whole.
std::string Escaped(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    text += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  if (text.size() <= kLongestName) return text;
  return fmt::format("{}-{:08x}", text.substr(0, kLongestName), Crc32c(std::as_bytes(std::span(name))));
}

class GroupFiles {
 public:
  GroupFiles(const std::string& base, const StoreGroupOptions& options)
      : rank_(options.rank),
        size_(options.size),
        keys_("cairn/" + options.name + "/"),
        base_(base),
        run_(base + "/" + std::string(kRun) + Escaped(options.name)) {}
  ~GroupFiles() { ::rmdir(run_.c_str()); }  // The last rank finds it empty.
  GroupFiles(const GroupFiles&) = delete;
  GroupFiles& operator=(const GroupFiles&) = delete;

  [[nodiscard]] Status MakeFolders() const {
    std::error_code failed;
    std::filesystem::create_directories(run_, failed);
    return failed ? Failed(failed.value(), "making", run_) : Status::Ok();
  }

  /// Writes the value. If the key is there: replaces it, or returns false.
  [[nodiscard]] Result<bool> Write(const std::string& key, std::string_view value, bool replace) {
    const std::string path = PathOf(key);
    for (int left = kTries;; --left) {
      const std::string draft = run_ + "/" + MakeUuid();
      Status written = WriteDraft(draft, value);
      if (written.ok()) {
        const int failed = (replace ? ::rename(draft.c_str(), path.c_str()) : ::link(draft.c_str(), path.c_str()));
        const int error = failed == 0 ? 0 : errno;
        // NFS may repeat a link that has succeeded.
        struct stat found {};
        const bool linked = error == EEXIST && ::stat(draft.c_str(), &found) == 0 && found.st_nlink == 2;
        if (!replace || error != 0) ::unlink(draft.c_str());
        if (error == 0 || linked) return true;
        if (error == EEXIST) return false;
        written = Failed(error, "writing", path);
      }
      if (written.code() != StatusCode::kNotFound || left == 0) return written;
    }
  }

  [[nodiscard]] Result<std::string> Read(const std::string& key) {
    const std::string path = PathOf(key);
    CAIRN_ASSIGN_OR_RETURN(const bool leads, Lead());
    if (!leads) return Status(StatusCode::kNotFound, path);
    static_cast<void>(ForgetCachedNames(run_));
    return ReadFile(path);
  }

  /// Whether the key is there by then.
  [[nodiscard]] Result<bool> Wait(const std::string& key, Deadline deadline) {
    const auto begun = Deadline::Clock::now();
    const std::string path = PathOf(key);
    while (true) {
      CAIRN_ASSIGN_OR_RETURN(const bool leads, Lead());
      if (leads) {
        static_cast<void>(ForgetCachedNames(run_));
        if (::access(path.c_str(), F_OK) == 0) return true;
        if (errno != ENOENT && errno != ESTALE) return Failed(errno, "looking for", path);
      }
      if (deadline.passed()) return false;
      Pause(begun, deadline);
    }
  }
  [[nodiscard]] Result<bool> Check(const std::string& key) {
    CAIRN_ASSIGN_OR_RETURN(const bool there, Wait(key, Deadline::In({})));
    if (rank_ == 0 && !lock_) {
      return Error(StatusCode::kFailedPrecondition,
                   "rank 0: {}/.lock is locked: expected no other group in this folder, found one whose rank 0 lives; "
                   "end that job, or give each group a folder of its own",
                   base_);
    }
    return there;
  }

  [[nodiscard]] Result<std::int64_t> Add(const std::string& key, std::int64_t amount) const {
    const std::string path = PathOf(key);
    while (true) {
      CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, Make(path, O_RDWR));
      while (::flock(fd.get(), LOCK_EX) != 0) {
        if (errno != EINTR) return Failed(errno, "locking", path);
      }
      const bool removed = !IsSameFile(path, fd);
      Result<std::int64_t> sum = removed ? 0 : AddTo(fd, amount, path);
      ::flock(fd.get(), LOCK_UN);  // Explicitly: a forked child may share the open file.
      if (!removed) return sum;
    }
  }

  [[nodiscard]] Status Erase(const std::string& key) const {
    const std::string path = PathOf(key);
    return ::unlink(path.c_str()) == 0 || errno == ENOENT ? Status::Ok() : Failed(errno, "removing", path);
  }

 private:
  [[nodiscard]] Status Failed(int error, std::string_view doing, const std::string& path) const {
    return ErrnoStatus(error, fmt::format("rank {}: {} {}", rank_, doing, path));
  }
  [[nodiscard]] std::string PathOf(const std::string& key) const {
    std::string name = key.substr(key.starts_with(keys_) ? keys_.size() : kAnyGroup.size());
    std::ranges::replace(name, '/', '-');
    return run_ + "/" + name;
  }

  /// Opens the file, made if it is missing. So is the folder, which another process may have removed.
  [[nodiscard]] Result<UniqueFd> Make(const std::string& path, int flags) const {
    for (int left = kTries;; --left) {
      UniqueFd fd(::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, kFileMode));
      if (fd.valid()) return fd;
      if (errno != ENOENT || left == 0) return Failed(errno, "making", path);
      CAIRN_RETURN_IF_ERROR(MakeFolders());
    }
  }
  [[nodiscard]] Status WriteDraft(const std::string& path, std::string_view value) const {
    CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, Make(path, O_WRONLY | O_EXCL));
    while (!value.empty()) {
      const ssize_t n = ::write(fd.get(), value.data(), value.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const int error = errno;
        ::unlink(path.c_str());
        return Failed(error, "writing", path);
      }
      value.remove_prefix(static_cast<std::size_t>(n));
    }
    // NFS reports here what it could not write.
    if (::close(fd.Release()) == 0) return {};
    const int error = errno;
    ::unlink(path.c_str());
    return Failed(error, "writing", path);
  }
  [[nodiscard]] Result<std::string> ReadFile(const std::string& path) const {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat found {};
    if (!fd.valid() || ::fstat(fd.get(), &found) != 0) return Failed(errno == ESTALE ? ENOENT : errno, "opening", path);
    if (!S_ISREG(found.st_mode)) {
      return Error(StatusCode::kFailedPrecondition, "rank {}: {}: expected a file, found something else; remove it",
                   rank_, path);
    }
    return ReadAll(fd, path);
  }
  [[nodiscard]] Result<std::string> ReadAll(const UniqueFd& fd, const std::string& path) const {
    std::string value;
    std::array<char, 4096> buffer{};
    while (true) {
      const ssize_t n = ::pread(fd.get(), buffer.data(), buffer.size(), static_cast<off_t>(value.size()));
      if (n == 0) return value;
      if (n < 0 && errno != EINTR) return Failed(errno, "reading", path);
      if (n > 0) value.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }
  [[nodiscard]] Result<std::int64_t> AddTo(const UniqueFd& fd, std::int64_t amount, const std::string& path) const {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadAll(fd, path));
    std::int64_t number = 0;  // Also if a process has made the file and died.
    std::from_chars(text.data(), text.data() + text.size(), number);
    number += amount;
    const std::string sum = fmt::format("{:<20}", number);
    if (amount == 0) return number;
    const ssize_t n = ::pwrite(fd.get(), sum.data(), sum.size(), 0);
    if (n == static_cast<ssize_t>(sum.size())) return number;
    return Failed(n < 0 ? errno : ENOSPC, "writing", path);
  }

  /// Whether it is the hello of one of the ranks, which may live.
  [[nodiscard]] bool MayBeMet(std::string_view file) const {
    if (!file.starts_with(kHello)) return false;
    const std::string_view digits = file.substr(kHello.size());
    int rank = size_;
    std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    return rank < size_;
  }

  /// On rank 0: whether it has the lock. The first time, removes what other runs have left. True on other ranks.
  [[nodiscard]] Result<bool> Lead() {
    if (rank_ != 0 || lock_) return true;
    CAIRN_ASSIGN_OR_RETURN(std::optional<WriterLock> lock, WriterLock::TryTake(base_, kFileMode));
    if (!lock) return false;
    if (!lock->locks()) {
      return Error(StatusCode::kUnsupported,
                   "rank 0: {}: its filesystem does not support locks, which a group over files needs; give "
                   "MakeFileGroup a folder on another one, or use MakeStoreGroup",
                   base_);
    }
    lock_.emplace(*std::move(lock));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<FolderEntry> runs, ListFolder(base_));
    for (const FolderEntry& entry : runs) {
      const std::string path = base_ + "/" + entry.name;
      std::error_code ignored;  // What cannot be removed does no harm.
      if (entry.name.starts_with(kRun) && path != run_) std::filesystem::remove_all(path, ignored);
    }
    const Result<std::vector<FolderEntry>> files = ListFolder(run_);
    // The ranks of an earlier start may have removed it.
    if (!files.ok()) return files.status().code() == StatusCode::kNotFound ? Result<bool>(true) : files.status();
    for (const FolderEntry& entry : *files) {
      if (!MayBeMet(entry.name)) ::unlink((run_ + "/" + entry.name).c_str());
    }
    return true;
  }

  const int rank_;
  const int size_;
  const std::string keys_;  // What keys begin with.
  const std::string base_;
  const std::string run_;
  std::optional<WriterLock> lock_;  // Rank 0's.
};

}  // namespace

std::function<Result<KeyValueStore>()> ConnectFiles(const std::string& folder, const StoreGroupOptions& options) {
  const auto files = std::make_shared<GroupFiles>(folder, options);
  return [files]() -> Result<KeyValueStore> {
    CAIRN_RETURN_IF_ERROR(files->MakeFolders());
    return KeyValueStore{
        .set = [files](const std::string& key,
                       const std::string& value) { return files->Write(key, value, true).status(); },
        .set_if_absent = [files](const std::string& key,
                                 const std::string& value) { return files->Write(key, value, false); },
        .get = [files](const std::string& key) { return files->Read(key); },
        .check = [files](const std::string& key) { return files->Check(key); },
        .wait = [files](const std::string& key,
                        milliseconds timeout) { return files->Wait(key, Deadline::In(timeout)); },
        .add = [files](const std::string& key, std::int64_t amount) { return files->Add(key, amount); },
        .erase = [files](const std::string& key) { return files->Erase(key); },
    };
  };
}

Result<std::shared_ptr<Group>> MakeFileGroup(const std::string& folder, StoreGroupOptions options) {
  std::error_code failed;
  const std::string absolute = std::filesystem::absolute(folder, failed).string();
  if (folder.empty() || failed) {
    return Error(StatusCode::kInvalidArgument, "group {}: expected a folder that all ranks see, found \"{}\"",
                 options.name, folder);
  }
  auto connect = ConnectFiles(absolute + "/.group", options);
  return MakeStoreGroup(std::move(options), std::move(connect));
}

}  // namespace cairn
