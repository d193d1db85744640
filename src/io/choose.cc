#include <fmt/format.h>

#include "base/status_macros.h"
#include "io/io_queue.h"
#include "io/thread_queue.h"
#include "io/uring_queue.h"

namespace cairn {
namespace {

constexpr int kMaxDepth = 4096;

IoQueueChoice Uring(int depth, std::string reason) {
  return {[depth] { return MakeUringQueue(depth); }, "io_uring", std::move(reason)};
}

IoQueueChoice Threads(int depth, std::string reason) {
  return {[depth] { return MakeThreadQueue(depth); }, "threads", std::move(reason)};
}

}  // namespace

Result<IoQueueChoice> ChooseIoQueue(IoQueueKind kind, int depth) {
  if (depth < 1 || depth > kMaxDepth) {
    return Error(StatusCode::kInvalidArgument, "I/O queue depth: expected 1 to {}, found {}", kMaxDepth, depth);
  }
  if (kind == IoQueueKind::kThreads) return Threads(depth, "requested by the options");
  const Result<std::string> probe = ProbeUring(depth);
  if (kind == IoQueueKind::kUring) {
    if (!probe.ok()) {
      return Error(probe.status().code(), "the options require io_uring, which is unavailable: {}",
                   probe.status().message());
    }
    return Uring(depth, fmt::format("requested by the options; {}", *probe));
  }
  if (!probe.ok()) return Threads(depth, fmt::format("io_uring is unavailable: {}", probe.status().message()));
  return Uring(depth, *probe);
}

}  // namespace cairn
