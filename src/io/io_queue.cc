#include "io/io_queue.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

const char* IoOpName(IoOp op) {
  switch (op) {
    case IoOp::kOpen:
      return "open";
    case IoOp::kClose:
      return "close";
    case IoOp::kRead:
      return "read";
    case IoOp::kWrite:
      return "write";
    case IoOp::kFsync:
      return "fsync";
    case IoOp::kFallocate:
      return "fallocate";
    case IoOp::kFtruncate:
      return "ftruncate";
    case IoOp::kSyncRange:
      return "sync_file_range";
    case IoOp::kRename:
      return "rename";
    case IoOp::kUnlink:
      return "unlink";
    case IoOp::kMkdir:
      return "mkdir";
    case IoOp::kRmdir:
      return "rmdir";
  }
  return "?";
}

std::string Describe(const IoRequest& request, const std::string& name) {
  const char* op = IoOpName(request.op);
  std::string what = request.path.empty() ? name : request.path;
  if (what.empty()) what = fmt::format("descriptor {}", request.fd);
  switch (request.op) {
    case IoOp::kRead:
    case IoOp::kWrite:
    case IoOp::kFallocate:
    case IoOp::kSyncRange:
      return fmt::format("{} of {} bytes at {} of {}", op, request.length, request.offset, what);
    case IoOp::kFtruncate:
      return fmt::format("{} of {} to {} bytes", op, what, request.length);
    case IoOp::kRename:
      if (request.rename == RenameMode::kExchange) return fmt::format("exchange of {} and {}", what, request.path2);
      return fmt::format("{} of {} to {}", op, what, request.path2);
    default:
      return fmt::format("{} of {}", op, what);
  }
}

Result<std::int64_t> RunBlocking(IoQueue& queue, IoRequest request) {
  const std::string what = Describe(request);
  // Shared: where the queue breaks, the callback outlives this call.
  auto result = std::make_shared<std::optional<std::int64_t>>();
  queue.Submit(std::move(request), [result](std::int64_t value) { *result = value; });
  while (!result->has_value()) CAIRN_RETURN_IF_ERROR(queue.RunOnce(Deadline::Infinite()).status());
  if (**result < 0) return ErrnoStatus(static_cast<int>(-**result), what);
  return **result;
}

}  // namespace cairn
