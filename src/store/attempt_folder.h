#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"

namespace cairn {

/// The mode that marks a folder as given up. The sticky bit: it has a meaning only for directories that several users
/// write.
inline constexpr mode_t kGivenUpMark = S_ISVTX;

/// The folder of one attempt, `.attempt-<uuid>`, held open. Rank 0 makes it before it announces the attempt; the other
/// ranks open it after that. A rank that has renamed it away knows that the attempt will never be committed.
///
/// For the queue's thread. Outlives its tasks. Destroying it leaves the folder on the disk.
class AttemptFolder {
 public:
  AttemptFolder(PathAt root, std::string uuid, unsigned mode);

  [[nodiscard]] const PathAt& root() const { return root_; }
  [[nodiscard]] const std::string& uuid() const { return uuid_; }
  [[nodiscard]] const PathAt& path() const { return path_; }
  [[nodiscard]] const UniqueFd& fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_.valid(); }

  /// Makes and opens it, unless it is open. If the disk is full, removes all spares first.
  IoTask<Status> Make();
  /// Opens what rank 0 has made. NotFound if this rank does not see it (yet).
  IoTask<Status> Open();
  /// The same, after it was not seen.
  IoTask<Status> OpenAgain();

  /// FailedPrecondition, quoting `found`, if the name no longer refers to this folder: a rank gave the attempt up.
  IoTask<Status> CheckThere(const Status& found) const;

  enum class Taken : std::uint8_t {
    /// This call renamed it: the attempt has failed, durably once the root is fsynced.
    kHere,
    /// It has another name, or none: it was committed or given up.
    kGone,
    /// Neither is known.
    kStays,
  };
  /// Renames it to retired(), unless its name already refers to something else. `why` is the reason for kStays.
  IoTask<Taken> RenameToRetired(Status& why);
  [[nodiscard]] const PathAt& retired() const { return retired_; }
  /// Marks the folder itself as given up. Done after RenameToRetired and before its files are removed.
  IoTask<Status> MarkGivenUp();
  /// Whether it has the retired name or the mark. If so, it was never committed. If not, nothing is known: the mark is
  /// not durable and may not reach other nodes.
  IoTask<bool> IsGivenUp();
  /// Gives up a folder that Make has made, with all that any rank has written into it. Call only while nothing of this
  /// attempt can have been renamed into place. Best effort: the next sweep removes the rest, and the status says why.
  IoTask<Status> Remove();

 private:
  [[nodiscard]] Status LookWhere(bool& elsewhere) const;

  const PathAt root_;
  const std::string uuid_;
  const PathAt path_;
  // Holds the attempt's id, so nothing else gets this name.
  const PathAt retired_;
  const unsigned mode_;
  // Also set if the folder may exist: an operation that failed may still have taken effect.
  bool made_ = false;
  UniqueFd fd_;
};

}  // namespace cairn
