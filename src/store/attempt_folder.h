#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_task.h"

namespace cairn {

/// The folder of one attempt, `.attempt-<uuid>`, held open: rank 0 makes it before it announces the attempt, the other
/// ranks open it once they have heard of it. Who has renamed it away knows that the attempt is never committed.
///
/// On the queue's thread; outlives its tasks. Destroying it leaves the folder as it is.
class AttemptFolder {
 public:
  AttemptFolder(PathAt root, std::string uuid, unsigned mode);

  [[nodiscard]] const PathAt& root() const { return root_; }
  [[nodiscard]] const std::string& uuid() const { return uuid_; }
  /// By its name.
  [[nodiscard]] const PathAt& path() const { return path_; }
  [[nodiscard]] const UniqueFd& fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_.valid(); }

  /// Makes and opens it, where that has not been done.
  IoTask<Status> Make();
  /// Opens what rank 0 has made; FailedPrecondition where it is not there.
  IoTask<Status> Open();

  /// FailedPrecondition, with what was found of it, where its name no longer leads to it: somebody has given the
  /// attempt up.
  IoTask<Status> CheckThere(const Status& found);

  enum class Taken : std::uint8_t {
    kHere,   ///< By this call: the attempt fails, durably once the root is fsynced.
    kGone,   ///< It has another name, or none: committed, or given up.
    kStays,  ///< Neither is known.
  };
  /// Renames it to retired(), unless its name leads elsewhere by now. `why` is what kept it.
  IoTask<Taken> TakeAway(Status& why);
  [[nodiscard]] const PathAt& retired() const { return retired_; }
  /// Whoever has taken it away leaves a mark on the folder itself before he removes what is in it.
  IoTask<Status> MarkGivenUp();
  /// Whether it has that name or that mark: then it was never committed. Without them nothing follows: the mark is not
  /// durable, and may not reach other nodes.
  IoTask<bool> IsGivenUp();
  /// Gives up what Make has made, with all that any rank has written into it. Only while nothing of this attempt can
  /// have been renamed into place. Best effort: what stays is the next sweep's, and the status says why.
  IoTask<Status> Remove();

 private:
  [[nodiscard]] Status LookWhere(bool& elsewhere) const;

  const PathAt root_;
  const std::string uuid_;
  const PathAt path_;
  const PathAt retired_;  // With the attempt's own id: nothing else gets this name.
  const unsigned mode_;
  bool made_ = false;  // Or may have been: an error need not mean that nothing happened.
  UniqueFd fd_;
};

}  // namespace cairn
