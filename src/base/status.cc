#include "cairn/status.h"

#include <array>
#include <cerrno>
#include <system_error>

#include "base/status_macros.h"

namespace cairn {

std::string_view StatusCodeName(StatusCode code) {
  // By number.
  constexpr std::array<std::string_view, 15> kNames = {"Ok",
                                                       "InvalidArgument",
                                                       "NotFound",
                                                       "AlreadyExists",
                                                       "FailedPrecondition",
                                                       "ResourceExhausted",
                                                       "NoSpace",
                                                       "Corrupt",
                                                       "IoError",
                                                       "DeviceError",
                                                       "DeadlineExceeded",
                                                       "Cancelled",
                                                       "UnknownOutcome",
                                                       "Unsupported",
                                                       "Internal"};
  const auto i = static_cast<std::size_t>(code);
  return i < kNames.size() ? kNames.at(i) : "?";
}

std::string Status::ToString() const {
  if (ok()) return "Ok";
  return fmt::format("{}: {}", StatusCodeName(code_), message_);
}

std::ostream& operator<<(std::ostream& out, const Status& status) { return out << status.ToString(); }

Status ErrnoStatus(int error, const std::string& what) {
  const StatusCode code = [error] {
    switch (error) {
      case ENOSPC:
      case EDQUOT:
      case EFBIG:
        return StatusCode::kNoSpace;
      case ENOENT:
        return StatusCode::kNotFound;
      case EEXIST:
      case ENOTEMPTY:
        return StatusCode::kAlreadyExists;
      case ENOMEM:
      case EMFILE:
      case ENFILE:
      case ECANCELED:
        return StatusCode::kResourceExhausted;
      case EOPNOTSUPP:
      case ENOSYS:
        return StatusCode::kUnsupported;
      case EACCES:
      case EPERM:
      case EROFS:
      case ENOTDIR:
        return StatusCode::kFailedPrecondition;
      default:
        return StatusCode::kIoError;
    }
  }();
  // Cairn cancels nothing: this is how io_uring reports a kernel thread that could not be started.
  const char* const cause =
      error == ECANCELED ? ": the kernel could not start a thread; see ulimit -u and pids.max of the control group"
                         : "";
  return Error(code, "{}: {} (errno {}){}", what, std::generic_category().message(error), error, cause);
}

Status ReadErrnoStatus(int error, const std::string& what) {
  Status status = ErrnoStatus(error, what);
  switch (error) {
    case EIO:
    case EUCLEAN:    // ext4 and XFS: damaged metadata.
    case EBADMSG:    // ext4 and XFS: metadata with a wrong checksum.
    case ENODATA:    // The block layer: a medium error.
    case EREMOTEIO:  // The block layer: the target failed permanently.
    case EILSEQ:     // The block layer: wrong protection information (dm-integrity).
      return {StatusCode::kCorrupt, status.message()};
    case ESTALE:
      return {StatusCode::kNotFound, status.message()};
    default:
      return status;
  }
}

}  // namespace cairn
