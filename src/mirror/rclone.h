#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// How to run rclone, which knows the object stores.
struct Rclone {
  std::string program;
  /// "NAME=value". Credentials are passed in no other way.
  std::vector<std::string> environment;
  /// The longest time without a byte to it or from it, and for its end.
  std::chrono::nanoseconds stall = std::chrono::minutes(5);
  /// Ends a call as Cancelled. May be empty.
  std::function<bool()> interrupted = {};
  /// Told what a call does in which nothing has happened for a second, and why rclone tries it again, whenever that is
  /// news. On the threads that make the calls. May be empty.
  std::function<void(const std::string&)> on_wait = {};

  /// The one beside this program, as PyPI's package has it in a Python environment, or the one in PATH. Unsupported,
  /// with what to install, if there is none.
  [[nodiscard]] static Result<Rclone> Find();
};

/// One run of rclone. It is killed when this, or the process, ends. For one thread at a time.
class RcloneCall {
 public:
  /// `what` says in messages what it is for: "writing s3://bucket/run/.writer". The error of any call below has what
  /// rclone said, without secrets: NotFound if a folder or an object is missing, DeadlineExceeded if it stalls,
  /// Cancelled, and IoError for everything else.
  [[nodiscard]] static Result<std::unique_ptr<RcloneCall>> Start(const Rclone& rclone,
                                                                 const std::vector<std::string>& arguments,
                                                                 std::string what);
  ~RcloneCall();
  RcloneCall(const RcloneCall&) = delete;
  RcloneCall& operator=(const RcloneCall&) = delete;

  /// To its stdin, all of it.
  [[nodiscard]] Status Write(Bytes bytes);
  /// So many bytes of its stdout. IoError if there are fewer.
  [[nodiscard]] Status Read(std::byte* into, std::uint64_t length);
  /// All that is left of its stdout, then End. IoError if that is longer.
  [[nodiscard]] Result<std::string> ReadAll(std::uint64_t most);
  /// Closes its stdin, and waits for its end. Ok if it has succeeded.
  [[nodiscard]] Status End();

 private:
  enum class Line { kSaid, kRetry, kDetail };

  RcloneCall(const Rclone& rclone, std::string what) : rclone_(rclone), what_(std::move(what)) {}
  [[nodiscard]] Status Fork(const std::vector<std::string>& arguments);
  /// Until the descriptor is ready, or its other end is closed.
  [[nodiscard]] Status Wait(int fd, short events);
  [[nodiscard]] Result<std::size_t> ReadSome(std::byte* into, std::uint64_t length);
  void DrainStderr();
  void Hear(std::string_view line);
  [[nodiscard]] static Line KindOf(std::string_view text);
  /// A byte has moved, or it has begun to end.
  void Moved();
  void TellWait();
  void Kill();
  /// "", or its words after this, without secrets.
  [[nodiscard]] std::string Said(std::string_view before) const;

  const Rclone& rclone_;
  const std::string what_;
  pid_t pid_ = -1;
  UniqueFd process_;
  UniqueFd stdin_;
  UniqueFd stdout_;
  UniqueFd stderr_;
  // What it has said in part of a line.
  std::string line_;
  // The last of what it has said.
  std::deque<std::string> said_;
  Line last_ = Line::kSaid;
  // Why it tries again.
  std::string retries_;
  std::chrono::steady_clock::time_point progress_ = std::chrono::steady_clock::now();
  // What on_wait was told since then.
  std::string told_;
};

/// The text without what grants access: the values of variables that hold secrets, and queries and passwords of URLs.
[[nodiscard]] std::string WithoutSecrets(std::string text, const std::vector<std::string>& environment);

}  // namespace cairn
