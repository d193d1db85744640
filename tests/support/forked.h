#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/options.h"

namespace cairn {

/// The child's end of a Forked: each call gives the parent one line, whole, before it returns. Safe from any thread.
using Say = std::function<void(const std::string& line)>;

/// A forked child that runs a function and sends lines to its parent. Killed and reaped by the destructor.
///
/// The parent should have no other threads where the child is to start some: sanitizers require it.
class Forked {
 public:
  /// The child ends with _exit(body(say)): no destructor of the parent's objects runs in it. It dies with its parent.
  explicit Forked(const std::function<int(const Say& say)>& body);
  ~Forked();
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

  /// The next line; none where the child has closed its end (it has ended) or the deadline has passed.
  [[nodiscard]] std::optional<std::string> NextLine(Deadline deadline);
  void Kill() const;

  enum class How : std::uint8_t { kExited, kKilled, kTimedOut };
  struct End {
    How how = How::kExited;
    int value = 0;                   ///< Exit value, or the signal.
    std::vector<std::string> lines;  ///< Those that NextLine has not returned.
  };
  /// Waits for the end; at the deadline the child is killed and kTimedOut returned.
  [[nodiscard]] End Wait(Deadline deadline);
  /// Waits until the child is dead, whoever else holds its end of the pipe; false at the deadline. Not after Wait.
  [[nodiscard]] bool AwaitDeath(Deadline deadline);
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  [[nodiscard]] static bool Readable(int fd, Deadline deadline);

  pid_t pid_ = -1;
  bool reaped_ = false;
  UniqueFd lines_;
  std::string unread_;
};

}  // namespace cairn
