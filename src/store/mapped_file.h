#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/path_at.h"
#include "store/locks.h"

namespace cairn {

/// A file in memory (tmpfs) that is mapped for writing. Forked children do not have it.
///
/// Whoever writes to it knows that the blocks there are allocated, and that nobody shortens the file meanwhile: else
/// the write would end the process.
class MappedFile {
 public:
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  friend class MappedFiles;
  MappedFile(UniqueFd fd, std::byte* data, std::uint64_t bytes)
      : fd_(std::move(fd)), hidden_(fd_), data_(data), bytes_(bytes) {}

  const UniqueFd fd_;
  const HiddenFromChildren hidden_;
  std::byte* const data_;
  const std::uint64_t bytes_;
};

/// The shards of a root in memory that this process has mapped. A slot stays mapped from save to save: to fill its page
/// table takes three times as long as to copy what lies in its pages. Safe from any thread.
class MappedFiles {
 public:
  /// The file at `path`, which must be the one that is open: from its begin at least so many bytes. Blocking.
  [[nodiscard]] Result<std::shared_ptr<MappedFile>> Map(const PathAt& path, const UniqueFd& open, std::uint64_t bytes)
      CAIRN_EXCLUDES(mutex_);
  /// The file at `path` through its mapping's descriptor, for reading and writing; invalid if it is not mapped. Through
  /// another one it would look as if somebody else had it open. Blocking.
  [[nodiscard]] UniqueFd Open(const PathAt& path) const CAIRN_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  // By inode. All are on one filesystem.
  std::map<ino_t, std::shared_ptr<MappedFile>> files_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
