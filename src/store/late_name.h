#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "cairn/options.h"
#include "cairn/stats.h"
#include "cairn/status.h"
#include "io/io_task.h"

namespace cairn {

/// A network filesystem may have cached that a name does not exist. A stat of the directory makes it look again.
/// Blocking.
[[nodiscard]] Status ForgetCachedNames(const PathAt& directory);
/// Opens what another rank has made in the directory. `again`: it was looked for in vain before.
IoTask<IoResult> OpenLateName(PathAt directory, PathAt path, int flags, bool again, UniqueFd& fd);

/// How long to look for a name that another rank has made and that this rank does not see. A network filesystem may
/// show it late, by up to a minute. Or it never comes, because this rank sees another directory. Made when it was not
/// found for the first time.
class LateName {
 public:
  /// `what` says the path, and who has made it: ".../.attempt-1, which rank 0 has made,". `rank` is this one.
  /// It looks for a little less than `timeout`, so that rank 0, which waits as long, hears the reason.
  LateName(std::string what, int rank, std::chrono::nanoseconds timeout);

  /// When to look again: at once, and then after pauses, which grow. The last time is when it expires.
  [[nodiscard]] Deadline NextLook();
  /// It was looked for long enough.
  [[nodiscard]] bool expired() const { return until_.passed(); }

  /// After the second look in vain, once: "... is not visible yet on rank 1 (host); looking for it".
  [[nodiscard]] std::optional<Event> NotYet() const;
  /// FailedPrecondition: "... is not visible on rank 1 (host) after 60 s", with what was found instead, and the
  /// possible reasons.
  [[nodiscard]] Status Missing(const std::string& found = {}) const;

 private:
  std::string what_;
  int rank_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  Deadline until_;
  int looks_ = 0;
};

}  // namespace cairn
