#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace cairn {

/// The kind of a failure. The numbers are stable: bindings and logs rely on them.
enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,     ///< The caller's input is wrong: a shape, a name, an option.
  kNotFound = 2,            ///< No such checkpoint, tensor or file.
  kAlreadyExists = 3,       ///< The step is committed already; nothing was written.
  kFailedPrecondition = 4,  ///< The call is right, the moment is wrong: locked root, forked child.
  kResourceExhausted = 5,   ///< A limit on memory or descriptors, set by the caller or the system.
  kNoSpace = 6,             ///< The filesystem (or RLIMIT_FSIZE, or a quota) has no room for the checkpoint.
  kCorrupt = 7,             ///< Bytes on disk are not what was committed, or cannot be read.
  kIoError = 8,             ///< The kernel refused or failed an I/O operation.
  kDeviceError = 9,         ///< The GPU (or its driver) failed; the context may be lost.
  kDeadlineExceeded = 10,   ///< The deadline passed. Unless said otherwise the operation continues.
  kCancelled = 11,          ///< Cancelled, skipped by policy, or replaced by a younger save.
  kUnknownOutcome = 12,     ///< It may or may not be durable; this could not be found out in time.
  kUnsupported = 13,        ///< This build, kernel, driver or filesystem cannot do it.
  kInternal = 14,           ///< A bug in Cairn.
};

/// Which of a code's failures it is, where a caller acts on that: messages are for people. The numbers are stable.
enum class StatusDetail : std::uint8_t {
  kNone = 0,
  kStepCommitted = 1,      ///< AlreadyExists: IfExists::kReplace would write the step again.
  kRanksMissing = 2,       ///< DeadlineExceeded: other ranks did not answer for a prepared save within group_timeout.
  kOpenInThisProcess = 3,  ///< FailedPrecondition: this process has the root open for writing.
  kOpenElsewhere = 4,      ///< FailedPrecondition: another process has the root open for writing.
  kDiskHangs = 5,          ///< DeadlineExceeded: the disk has not answered within stall_timeout. It may answer later.
  kStepsDiffer = 6,        ///< FailedPrecondition: ranks called Save of different steps.
};

/// The code's name as messages print it, "NotFound" for kNotFound.
[[nodiscard]] std::string_view StatusCodeName(StatusCode code);

/// Success, or a code and a message for people. The message says what was expected and what was found.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, StatusDetail detail = StatusDetail::kNone)
      : code_(code), detail_(detail), message_(std::move(message)) {}

  [[nodiscard]] static Status Ok() { return {}; }
  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] StatusDetail detail() const { return detail_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  /// "NotFound: no checkpoint under /mnt/run7".
  [[nodiscard]] std::string ToString() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  StatusDetail detail_ = StatusDetail::kNone;
  std::string message_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

/// A value, or the Status that says why there is none. Reading the value of a failed Result is undefined behaviour.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<1>, std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : content_(std::in_place_index<0>, std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (std::get<0>(content_).ok())
      std::get<0>(content_) = Status(StatusCode::kInternal, "Result made from an ok status");
  }

  [[nodiscard]] bool ok() const { return content_.index() == 1; }
  [[nodiscard]] Status status() const { return ok() ? Status() : *std::get_if<0>(&content_); }

  [[nodiscard]] T& value() & { return *std::get_if<1>(&content_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<1>(&content_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<1>(&content_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  /// By value, so that ranging over the content of a temporary Result does not dangle.
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<Status, T> content_;
};

}  // namespace cairn
