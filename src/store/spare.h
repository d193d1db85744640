#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"
#include "store/mapped_file.h"

namespace cairn {

// Spares: shard files of former checkpoints and attempts, kept in `<root>/.spare-<n>/` under their ranks' names for the
// next attempts to overwrite, because overwriting allocated blocks is a quarter faster than allocating new ones. The
// conditions are in the commit protocol (attempt.cc, 1 and 6).

/// Receives the reason why a retired shard file is not recycled.
using OnNotRecycled = std::function<void(const std::string& why)>;

/// Which shard files of a removed folder become spares.
struct SparePolicy {
  /// How many spare folders there may be: SpareName(0) and so on.
  std::uint64_t folders = 0;
  /// Keep the files of ranks below this.
  std::uint64_t shards = 0;
  /// A spare may not have more permissions than this.
  unsigned file_mode = 0644;
  OnNotRecycled not_recycled;
  /// Those of this root. Null: none are.
  const MappedFiles* mapped = nullptr;
};

/// Whether a file that no checkpoint uses may become a spare, that is, only this writer can see what is written into
/// it: a regular file of this user, no permissions beyond `file_mode`, one name, and open nowhere else (but `mapped`).
[[nodiscard]] Status CheckRecyclable(const PathAt& path, unsigned file_mode, const MappedFiles* mapped = nullptr);

/// One rank's spare while it is taken into an attempt. Outlives the tasks.
class Spare {
 public:
  /// Searches the first `folders` spare folders of the root for the rank's `name`. Those that are mapped are slots: one
  /// of another length than for a file of so many bytes is rejected.
  Spare(const PathAt& root, std::uint64_t folders, std::string name, unsigned file_mode, OnNotRecycled not_recycled,
        const MappedFiles* mapped, std::uint64_t bytes);

  /// Opens and claims one, into `fd`. Never fails: a rejected one is unlinked, and the next is tried.
  IoTask<Status> Claim(UniqueFd& fd);
  /// Renames a claimed one to `target` and keeps the lease. If somebody else has opened it meanwhile, unlinks it and
  /// closes `fd`.
  IoTask<Status> TakeOver(UniqueFd& fd, const PathAt& target);

  [[nodiscard]] bool claimed() const { return stage_ == Stage::kClaimed; }
  [[nodiscard]] bool taken() const { return stage_ == Stage::kTaken; }
  /// Of a claimed or taken one: its allocated bytes, its length, its path, and the folder that it is or was in.
  [[nodiscard]] std::uint64_t allocated() const { return claimed() || taken() ? allocated_ : 0; }
  [[nodiscard]] std::uint64_t length() const { return length_; }
  [[nodiscard]] const PathAt& path() const { return path_; }
  [[nodiscard]] const PathAt& folder() const { return folder_; }
  [[nodiscard]] const UniqueFd& folder_fd() const { return folder_fd_; }
  /// All spares of this rank, which may be unlinked for space.
  [[nodiscard]] Room& room() { return room_; }

 private:
  enum class Stage : std::uint8_t {
    /// Not searched for, or none found.
    kNone,
    /// Open and claimed, under its old name.
    kClaimed,
    /// Part of the attempt.
    kTaken,
  };
  void ReportNotRecycled(const Status& why) const;
  [[nodiscard]] Status FindFolders();
  IoTask<IoResult> Open(UniqueFd& fd);
  [[nodiscard]] Status CheckClaimed(const UniqueFd& fd);

  const std::string name_;
  const unsigned file_mode_;
  const OnNotRecycled not_recycled_;
  const MappedFiles* const mapped_;
  const std::uint64_t bytes_;
  std::vector<PathAt> folders_;
  Room room_;
  Stage stage_ = Stage::kNone;
  PathAt folder_;
  PathAt path_;
  std::uint64_t allocated_ = 0;
  std::uint64_t length_ = 0;
  UniqueFd folder_fd_;
};

}  // namespace cairn
