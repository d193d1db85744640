#pragma once

#include <fmt/format.h>

#include <utility>

#include "cairn/status.h"

/// Returns the status from the function if it is not ok.
#define CAIRN_RETURN_IF_ERROR(expression)                                  \
  do {                                                                     \
    if (::cairn::Status cairn_status = (expression); !cairn_status.ok()) { \
      return cairn_status;                                                 \
    }                                                                      \
  } while (false)

#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)
/// CAIRN_ASSIGN_OR_RETURN(auto x, F()): sets x to the value of F(), or returns its status.
#define CAIRN_ASSIGN_OR_RETURN(lhs, expression)              \
  auto CAIRN_CONCAT(cairn_result_, __LINE__) = (expression); \
  if (!CAIRN_CONCAT(cairn_result_, __LINE__).ok()) {         \
    return CAIRN_CONCAT(cairn_result_, __LINE__).status();   \
  }                                                          \
  lhs = *std::move(CAIRN_CONCAT(cairn_result_, __LINE__))  // NOLINT(bugprone-macro-parentheses): a declaration

namespace cairn {

/// Error(StatusCode::kCorrupt, "{}: expected {}, found {}", ...).
template <typename... Args>
[[nodiscard]] Status Error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}

/// The same with a detail.
template <typename... Args>
[[nodiscard]] Status Error(StatusCode code, StatusDetail detail, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...), detail};
}

/// The status for a failed system call: ENOSPC and EDQUOT become NoSpace, ENOENT NotFound, EEXIST AlreadyExists, ...
/// `what` names the operation and the file: "writing /mnt/run7/.attempt-…/shard-00000.safetensors".
[[nodiscard]] Status ErrnoStatus(int error, const std::string& what);

/// The same for reading a checkpoint. Corrupt if the medium or the filesystem's checks cannot return the bytes: EIO,
/// EUCLEAN, EBADMSG, ENODATA, EREMOTEIO, EILSEQ. NotFound if the file was removed meanwhile (also ESTALE).
[[nodiscard]] Status ReadErrnoStatus(int error, const std::string& what);

}  // namespace cairn
