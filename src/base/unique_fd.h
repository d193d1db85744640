#pragma once

#include <unistd.h>

#include <utility>

namespace cairn {

/// The only owner of a file descriptor. It ignores errors of close: durable files are closed through IoQueue instead.
///
/// A descriptor of 0 to 2, which a process with closed standard streams gets, is replaced by a higher one, because the
/// next print would go into the file, and is then taken as by TakeClosedStreams. If that fails, it is invalid, and
/// errno says why.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd < 0 || fd > STDERR_FILENO ? fd : Replaced(fd)) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  static int Replaced(int fd);

  int fd_ = -1;
};

}  // namespace cairn
