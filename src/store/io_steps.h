#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "cairn/status.h"
#include "io/io_queue.h"

namespace cairn {

using StatusDone = std::function<void(Status)>;

/// Where a sequence goes after a step.
enum class Flow : std::uint8_t {
  kNext,
  kAgain,  ///< The same step once more: the remainder of a write, the next file of a list.
};

/// One operation of a sequence that runs on an IoQueue. Every member is optional.
struct IoStep {
  /// Run before each operation of the step; its error ends the sequence.
  std::function<Status()> check;
  /// The operation, none where the step has nothing (more) to do.
  std::function<std::optional<IoRequest>()> make;
  /// What the descriptor stands for, in messages.
  std::string name;
  /// Takes a result of 0 or more.
  std::function<Result<Flow>(std::int64_t value)> on_value;
  /// Judges an errno; `plain` is the status that ends the sequence where there is no such judge.
  std::function<Result<Flow>(int error, Status plain)> on_error;
  /// In place of an operation: sequences that run side by side. The step is done when all of them have ended, and its
  /// error is the first.
  std::vector<std::vector<IoStep>> together = {};
};

/// Runs the steps in order, on the queue's thread, up to the first error. `done` is called once, from RunOnce and never
/// from within this call, even where no step has an operation. What the steps refer to must live until then.
void RunSteps(IoQueue& queue, std::vector<IoStep> steps, StatusDone done);
/// The same, running the queue (which nothing else is using) until the end.
[[nodiscard]] Status RunStepsBlocking(IoQueue& queue, std::vector<IoStep> steps);

/// Opens a directory into `fd`; `follow` says whether the path may be a link to one.
[[nodiscard]] IoStep OpenDirectoryStep(const std::string& path, bool follow, UniqueFd& fd);
/// Opens `path` for writing, as a new file that nobody else has made, into `fd`.
[[nodiscard]] IoStep CreateFileStep(const std::string& path, int more_flags, unsigned mode, UniqueFd& fd);
/// Once, and final: an fsync that failed is never tried again, because the kernel has dropped the pages by then.
[[nodiscard]] IoStep FsyncStep(const UniqueFd& fd, const std::string& name);
/// Closes `fd` where it is open. It is given away before the result is known: a failed close has closed it too.
[[nodiscard]] IoStep CloseStep(UniqueFd& fd, const std::string& name);
/// Writes all of `memory`, resubmitting what a short write left, from a multiple of `alignment` on. A write of nothing
/// is an error, and so is a second one in a row that gets no further.
[[nodiscard]] IoStep WriteStep(const UniqueFd& fd, const std::string& name, std::uint64_t offset, Bytes memory,
                               std::uint64_t alignment);

}  // namespace cairn
