#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"

namespace cairn {

// Spares: the shard files of former checkpoints and attempts, kept in `<root>/.spare-<n>/` under their ranks' names for
// the next attempts to write over, because overwriting blocks that are laid out is a quarter faster than laying out new
// ones. The conditions are in the commit protocol (attempt.cc, 1 and 6).

/// Told why a retired shard file is not recycled.
using NotRecycled = std::function<void(const std::string& why)>;

/// Which shard files of a folder that is removed become spares.
struct SpareWish {
  std::uint64_t folders = 0;  ///< Those of so many checkpoints: SpareName(0) and so on.
  std::uint64_t shards = 0;   ///< Of each the files of ranks below this.
  unsigned file_mode = 0644;  ///< Spares' modes are no wider.
  NotRecycled not_recycled;
};

/// Whether a file that is no checkpoint's any more may become a spare: nobody but this writer can see what is written
/// into it. A regular file of this user with no wider mode than `file_mode`, one name, and nobody who has it open.
[[nodiscard]] Status CheckRecyclable(const PathAt& path, unsigned file_mode);

/// One rank's spare on its way into an attempt. Outlives the tasks.
class Spare {
 public:
  /// May be in so many folders of the root, under the rank's `name`.
  Spare(const PathAt& root, std::uint64_t folders, std::string name, unsigned file_mode, NotRecycled not_recycled);

  /// Opens and claims one, into `fd`. Never fails: one that is refused is unlinked, and the next looked at.
  IoTask<Status> Claim(UniqueFd& fd);
  /// Renames a claimed one to `target`. Unlinked, and `fd` closed, where somebody has come for it meanwhile. The lease
  /// is held on.
  IoTask<Status> TakeOver(UniqueFd& fd, const PathAt& target);

  [[nodiscard]] bool claimed() const { return stage_ == Stage::kClaimed; }
  [[nodiscard]] bool taken() const { return stage_ == Stage::kTaken; }
  /// Of a claimed or a taken one: the bytes of its blocks, its path, and the folder it is, or was, in.
  [[nodiscard]] std::uint64_t allocated() const { return claimed() || taken() ? allocated_ : 0; }
  [[nodiscard]] const PathAt& path() const { return path_; }
  [[nodiscard]] const PathAt& folder() const { return folder_; }
  [[nodiscard]] const UniqueFd& folder_fd() const { return folder_fd_; }
  /// All spares of this rank.
  [[nodiscard]] Room& room() { return room_; }

 private:
  enum class Stage : std::uint8_t {
    kNone,     ///< Not looked for, not there, or not to be had.
    kClaimed,  ///< Open and claimed, under its own name.
    kTaken,    ///< The attempt's.
  };
  void Tell(const Status& why) const;
  [[nodiscard]] Status FindFolders();
  [[nodiscard]] Status LookAt(const UniqueFd& fd);

  const std::string name_;
  const unsigned file_mode_;
  const NotRecycled not_recycled_;
  std::vector<PathAt> folders_;
  Room room_;
  Stage stage_ = Stage::kNone;
  PathAt folder_;
  PathAt path_;
  std::uint64_t allocated_ = 0;
  UniqueFd folder_fd_;
};

}  // namespace cairn
