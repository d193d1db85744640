#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// The `cairn` command: `given` if there is one, else the one beside this program, or in PATH. FailedPrecondition
/// without it.
[[nodiscard]] Result<std::string> FindCommand(const std::string& given);

/// A child process of the command, and what it says. It gets the environment of this process as it is now, and no
/// descriptor but its streams. For one thread.
class CommandProcess {
 public:
  struct Spec {
    /// With the program's path first.
    std::vector<std::string> words;
    /// A session of its own: Ctrl-C at a terminal is not for it.
    bool session = false;
  };
  /// Blocks until the program's file is read.
  [[nodiscard]] static Result<std::unique_ptr<CommandProcess>> Start(const Spec& spec);
  /// Leaves it running if it has not ended.
  ~CommandProcess() = default;
  CommandProcess(const CommandProcess&) = delete;
  CommandProcess& operator=(const CommandProcess&) = delete;

  [[nodiscard]] pid_t id() const { return id_; }
  /// Readable when it says something, or has ended: that one comes first.
  [[nodiscard]] std::vector<pollfd> Watched() const;
  /// The lines on stdout, or stderr, since the last call. Never blocks.
  [[nodiscard]] std::vector<std::string> TakeOutput() { return output_.Take(); }
  [[nodiscard]] std::vector<std::string> TakeErrors() { return errors_.Take(); }
  /// Closes its stdin. A forked child of this process may have that, too, so a byte comes before the end.
  void EndInput();
  void Kill() const;
  /// Its exit code, or the negative number of the signal that has killed it; none while it runs. `kUnknownEnd` if the
  /// program has reaped it.
  [[nodiscard]] std::optional<int> FindEnd();
  static constexpr int kUnknownEnd = 1 << 16;

 private:
  /// What is read from a pipe, cut into lines.
  struct Lines {
    UniqueFd fd;
    std::string rest;
    [[nodiscard]] std::vector<std::string> Take();
  };

  CommandProcess() = default;

  pid_t id_ = -1;
  UniqueFd process_;
  UniqueFd input_;
  Lines output_;
  Lines errors_;
};

/// "NoSpace: writing ..." as it was before the command printed it. IoError for what is no status.
[[nodiscard]] Status StatusOf(const std::string& said);
/// "with exit code 2", "by signal 9".
[[nodiscard]] std::string DescribeEnd(int end);

}  // namespace cairn
