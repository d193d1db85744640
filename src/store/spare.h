#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "store/io_steps.h"

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

/// Ok where nobody but this writer can see what is written into the file, open for writing as `fd`: a regular file of
/// this user with no wider mode than `file_mode`, one name, and a lease, which is held from then on.
[[nodiscard]] Status ClaimForRecycling(const UniqueFd& fd, const std::string& path, unsigned file_mode);
/// Whether a file that is no checkpoint's any more may become a spare: the same, and given back at once.
[[nodiscard]] Status CheckRecyclable(const std::string& path, unsigned file_mode);

/// One rank's spare on its way into an attempt.
struct Spare {
  enum class Stage : std::uint8_t {
    kNone,     ///< Not looked for, not there, or not to be had.
    kRefused,  ///< There, and to be unlinked.
    kClaimed,  ///< Open and claimed, under its own name.
    kTaken,    ///< The attempt's.
  };
  std::vector<std::string> folders;  ///< Where one may be. The last first: so those in use are the first ones.
  std::string name;                  ///< This rank's file in them.
  std::string folder;                ///< The one that is looked at, or was taken from.
  std::string path;                  ///< This rank's file in it.
  unsigned file_mode = 0644;
  NotRecycled not_recycled;
  Stage stage = Stage::kNone;
  std::uint64_t allocated = 0;  ///< Bytes of its blocks, where claimed.
  UniqueFd folder_fd;           ///< The folder that the name is taken from.

  /// Looks at the file that was found, open as `fd`.
  void Claim(const UniqueFd& fd);
  void Refuse(const Status& why);
  void LookIn(const std::string& where);
  /// All paths of this rank's spares, in order.
  [[nodiscard]] std::vector<std::string> paths() const;
  void Tell(const Status& why) const;
};

/// Appends the steps that open and claim a spare, into `fd`. They never end the sequence: one that is refused is
/// unlinked, and the next looked at. `spare` and `fd` outlive them.
void AppendClaim(std::vector<IoStep>& steps, Spare& spare, UniqueFd& fd);
/// Appends the steps that rename a claimed spare to `target`, zero its first block and give the lease back. It is
/// unlinked where somebody has come for it meanwhile, and `fd` then closed.
void AppendTakeOver(std::vector<IoStep>& steps, Spare& spare, UniqueFd& fd, const std::string& target);

/// Lets steps that find the disk full unlink the spares at `paths`, once, and go on.
void FreeSparesWhenFull(std::vector<IoStep>& steps, const std::vector<std::string>& paths);

}  // namespace cairn
