#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

namespace cairn::trainer {

/// Handles SIGTERM and SIGINT as a request to end between two steps, within a grace period. When the grace period is
/// over, or at a second signal, the process ends as if the signal were not handled. Signals within a second of the
/// first count as the same request: a wrapper may pass on what the whole group received. Signals that were ignored
/// before stay ignored.
///
/// Must be constructed before any other thread starts, since threads inherit the signal mask.
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;

  /// `announce` is called at the first signal, on another thread, with the signal's name. If it returns false, the
  /// signal ends the process at once. Throws std::system_error.
  StopRequest(std::chrono::nanoseconds grace, std::function<bool(const char* signal)> announce);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// When the first signal came; nullopt until it was announced.
  [[nodiscard]] std::optional<Clock::time_point> at() const;
  /// The name of the first signal; null until it was announced.
  [[nodiscard]] const char* signal() const { return signal_.load(); }

 private:
  void Listen();
  /// The next signal; 0 if the request is over or the time is up.
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
