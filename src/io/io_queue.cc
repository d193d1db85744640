#include "io/io_queue.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <array>
#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

const char* IoOpName(IoOp op) {
  constexpr std::array kNames = {
      "open",   "close",  "read",  "write", "fsync", "fallocate", "ftruncate", "sync_file_range",
      "rename", "unlink", "mkdir", "rmdir", "link",  "check"};
  const auto i = static_cast<std::size_t>(op);
  return i < kNames.size() ? kNames.at(i) : "?";
}

std::string FileOf(const IoRequest& request) { return request.path.empty() ? request.name : request.path.text(); }

std::string Describe(const IoRequest& request) {
  const char* op = IoOpName(request.op);
  std::string what = FileOf(request);
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
    case IoOp::kLink:
      return fmt::format("{} of {} as {}", op, what, request.path2);
    default:
      return fmt::format("{} of {}", op, what);
  }
}

Status FailureOf(const IoRequest& request, int error) {
  Status status = ErrnoStatus(error, Describe(request));
  const std::string path = FileOf(request);
  const std::size_t slash = path.rfind('/');
  struct statvfs found {};
  if (error != ENOSPC || slash == std::string::npos || ::statvfs(path.substr(0, slash + 1).c_str(), &found) != 0) {
    return status;
  }
  // A full XFS refuses names and folders early: it reserves the last blocks and inodes.
  return Error(status.code(), "{}: free: {} of {} bytes, {} of {} inodes", status.message(),
               std::uint64_t{found.f_bavail} * found.f_frsize, std::uint64_t{found.f_blocks} * found.f_frsize,
               found.f_favail, found.f_files);
}

Result<std::int64_t> RunBlocking(IoQueue& queue, IoRequest request) {
  const IoRequest asked = request;
  // Shared: if the queue breaks, the callback outlives this call.
  auto result = std::make_shared<std::optional<std::int64_t>>();
  queue.Submit(std::move(request), [result](std::int64_t value) { *result = value; });
  while (!result->has_value()) CAIRN_RETURN_IF_ERROR(queue.RunOnce(Deadline::Infinite()).status());
  if (**result < 0) return FailureOf(asked, static_cast<int>(-**result));
  return **result;
}

}  // namespace cairn
