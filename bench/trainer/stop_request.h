#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

namespace cairn::trainer {

/// SIGTERM and SIGINT, taken as a request to end between two steps and within a grace. The end of the grace ends the
/// process as if nobody had taken the signal, and so does a second one; but those that come within a second of the
/// first, by a wrapper that passes on what the whole group got, are the same request. Signals that were ignored before
/// stay so.
///
/// Must be made before any other thread, since threads inherit who takes signals.
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;

  /// `announce` is called at the first signal, on another thread, with its name. False: the process ends at once, by
  /// the signal. Throws std::system_error.
  StopRequest(std::chrono::nanoseconds grace, std::function<bool(const char* signal)> announce);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// When the first signal came; nothing before it was announced.
  [[nodiscard]] std::optional<Clock::time_point> at() const;
  /// Its name; null before.
  [[nodiscard]] const char* signal() const { return signal_.load(); }

 private:
  void Listen();
  /// The next signal; 0 where the request is over, or the time is up.
  int Next(int patience_ms) const;

  const std::chrono::nanoseconds grace_;
  const std::function<bool(const char*)> announce_;
  int signals_ = -1;
  int end_ = -1;
  std::atomic<bool> over_{false};
  std::atomic<Clock::rep> at_{0};
  std::atomic<const char*> signal_{nullptr};
  std::thread thread_;
};

}  // namespace cairn::trainer
