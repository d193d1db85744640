#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "bench/gemini/connection.h"
#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn::bench {

/// One end of a TCP connection. One thread may send while another receives.
class Socket : public Connection {
 public:
  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}

  /// Returns once all is with the kernel; pieces are no matter of a socket's.
  Status Send(Bytes bytes, std::uint64_t piece_bytes = 0) override;
  Status Flush() override { return {}; }
  Status Receive(MutableBytes bytes, std::uint64_t piece_bytes = 0) override;
  /// The other end's address.
  [[nodiscard]] std::string peer() const;
  /// Makes every call that waits, and every later one, fail; the other end notices.
  void Shutdown() const;

 private:
  const UniqueFd fd_;
};

/// A listening socket. It stays in the network namespace of the thread that opened it.
class Listener {
 public:
  /// At any free port of the address, or at this one.
  [[nodiscard]] static Result<Listener> Open(const std::string& address, int port = 0);
  /// One that this process was given when it was started.
  [[nodiscard]] static Listener Inherited(int fd) { return Listener(UniqueFd(fd), {}, 0); }

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next connection. DeadlineExceeded; Cancelled after Shutdown.
  [[nodiscard]] Result<std::unique_ptr<Socket>> Accept(Deadline deadline) const;
  void Shutdown() const;

 private:
  Listener(UniqueFd fd, std::string address, int port)
      : fd_(std::move(fd)), address_(std::move(address)), port_(port) {}

  UniqueFd fd_;
  std::string address_;
  int port_;
};

/// IoError where nobody listens, InvalidArgument if the address or name is unknown.
[[nodiscard]] Result<std::unique_ptr<Socket>> ConnectTo(const std::string& address, int port);

}  // namespace cairn::bench
