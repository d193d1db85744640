#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/checkpointer.h"
#include "io/io_queue.h"
#include "store/list.h"
#include "store/root.h"

namespace cairn::tools {

/// Whether a command that removes asks first: a person can answer, and has not said --yes.
[[nodiscard]] bool Asks(bool yes);
/// store/list.h's; what it says goes to stderr.
void CheckShardsAndSay(std::vector<StoredCheckpoint>& list, std::uint64_t enough,
                       const std::vector<CheckpointInfo>& doomed);
/// Shows on the terminal what would be removed, with sizes, and `consequence`, a sentence or nothing. Cancelled unless
/// the answer is yes.
[[nodiscard]] Status Confirm(const std::vector<CheckpointInfo>& doomed, const std::string& consequence);
/// Whether one of them has this step.
[[nodiscard]] bool HasStep(const std::vector<CheckpointInfo>& infos, std::uint64_t step);
[[nodiscard]] std::uint64_t TotalBytes(const std::vector<CheckpointInfo>& infos);

/// A root opened as its writer, to remove checkpoints from it.
class WritableRoot {
 public:
  /// Removes what killed writers left there, and says on stderr what remains of that. Errors as for Root::Open, and
  /// InvalidArgument if the path is no root.
  [[nodiscard]] static Result<WritableRoot> Open(const std::string& path);
  struct Removed {
    std::vector<CheckpointInfo> steps;
    /// The first that failed, and why; the others are tried anyway. FailedPrecondition if one is pinned, being read, or
    /// no longer what was listed.
    Status failure;
  };
  [[nodiscard]] Removed Remove(const std::vector<CheckpointInfo>& doomed);

 private:
  WritableRoot(std::unique_ptr<IoQueue> queue, std::unique_ptr<Root> root)
      : queue_(std::move(queue)), root_(std::move(root)) {}

  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<Root> root_;
};

}  // namespace cairn::tools
