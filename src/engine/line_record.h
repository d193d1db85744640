#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "io/io_queue.h"
#include "io/io_task.h"

namespace cairn {

/// Makes the lines of saves durable in the root's record, each before its first commit. Commits that come
/// meanwhile wait for the same write. For the engine's thread.
class LineRecord {
 public:
  /// Root::WriteLine.
  using Write = std::function<IoTask<Status>(std::uint64_t line)>;

  /// Calls `done` once the line, or a later one, is the root's counter; within the call if it is already. If the write
  /// fails, so do all that wait for it, and the next call writes again. The counter never goes back: every write is of
  /// the highest line so far, because one that failed may be on the disk.
  void Ensure(IoQueue& queue, const Write& write, std::uint64_t line, StatusDone done);

 private:
  void Begin(IoQueue& queue, const Write& write);

  struct Waiting {
    std::uint64_t line;
    StatusDone done;
  };
  std::uint64_t durable_ = 0;
  std::uint64_t highest_ = 0;
  bool writing_ = false;
  std::vector<Waiting> waiting_;
};

}  // namespace cairn
