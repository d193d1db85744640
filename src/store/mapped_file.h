#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cairn/status.h"
#include "device/device.h"
#include "io/path_at.h"
#include "store/locks.h"

namespace cairn {

/// A file in memory (tmpfs) that is mapped for writing. Forked children do not have it.
///
/// Whoever writes to it knows that the blocks there are allocated, and that nobody shortens the file meanwhile: else
/// the write would end the process. And while it is pinned, a file that lost a page and got another would lose what a
/// GPU writes: its blocks stay the same until it is unmapped.
class MappedFile {
 public:
  /// Unpins and unmaps it. In a forked child, which does not have it, it does nothing.
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::byte* data() const { return memory_.data(); }

 private:
  friend class MappedFiles;
  MappedFile(UniqueFd fd, MutableBytes memory) : fd_(std::move(fd)), hidden_(fd_), memory_(memory) {}
  [[nodiscard]] Status PinWith(const std::shared_ptr<Device>& device);

  const UniqueFd fd_;
  const HiddenFromChildren hidden_;
  const MutableBytes memory_;
  const pid_t owner_ = ::getpid();
  std::vector<std::shared_ptr<Device>> pinned_with_;
};

/// The shards of a root in memory that this process has mapped. A slot stays mapped from save to save: to fill its page
/// table takes three times as long as to copy what lies in its pages. Safe from any thread.
class MappedFiles {
 public:
  /// The file at `path`, which must be the one that is open, and has so many bytes: all its blocks, pinned with every
  /// device of PinWith. Blocking.
  [[nodiscard]] Result<std::shared_ptr<MappedFile>> Map(const PathAt& path, const UniqueFd& open, std::uint64_t bytes)
      CAIRN_EXCLUDES(mutex_);
  /// The same of a file that nobody has open.
  [[nodiscard]] Result<std::shared_ptr<MappedFile>> Map(const PathAt& path, std::uint64_t bytes) CAIRN_EXCLUDES(mutex_);
  /// Pins what is mapped, and what will be, with the device, which then copies into it. Slow: tenths of a second per
  /// GiB, and other threads may not launch kernels meanwhile.
  [[nodiscard]] Status PinWith(const std::shared_ptr<Device>& device) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool IsPinnedWith(const std::shared_ptr<Device>& device) const CAIRN_EXCLUDES(mutex_);
  /// Unmaps what nobody uses: other slots come. What is not mapped from now on is none.
  void Clear() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool cleared() const CAIRN_EXCLUDES(mutex_);
  /// The file at `path` through its mapping's descriptor, for reading and writing; invalid if it is not mapped. Through
  /// another one it would look as if somebody else had it open. Blocking.
  [[nodiscard]] UniqueFd Open(const PathAt& path) const CAIRN_EXCLUDES(mutex_);

 private:
  [[nodiscard]] Result<std::shared_ptr<MappedFile>> MapInode(const PathAt& path, ino_t inode, UniqueFd fd,
                                                             std::uint64_t bytes) CAIRN_REQUIRES(mutex_);

  mutable Mutex mutex_;
  // By inode. All are on one filesystem.
  std::map<ino_t, std::shared_ptr<MappedFile>> files_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Device>> devices_ CAIRN_GUARDED_BY(mutex_);
  bool cleared_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
