#pragma once

#include <memory>
#include <vector>

#include "cairn/status.h"
#include "engine/save_task.h"

namespace cairn {

/// The failed saves of which somebody must still hear. A failure counts as heard once any call has returned it. The
/// caller synchronises.
class Failures {
 public:
  void Add(std::shared_ptr<SaveTask> task, Status status);
  /// The newest, heard or not; then it counts as heard. Ok if there was none.
  [[nodiscard]] Status Newest() const;
  /// The oldest that nobody has heard, with the number of the others. Then all of them count as heard. Ok if there is
  /// none.
  [[nodiscard]] Status TakeUnheard() const;

 private:
  struct Failed {
    std::shared_ptr<SaveTask> task;
    Status status;
  };

  // In the order of their ends: those that nobody had heard when the newest was added, and the newest.
  std::vector<Failed> saves_;
};

}  // namespace cairn
