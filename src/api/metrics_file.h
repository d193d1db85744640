#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "cairn/stats.h"
#include "cairn/status.h"

namespace cairn {

/// Options::metrics_file of this rank. InvalidArgument if it does not end with ".prom".
[[nodiscard]] Result<std::string> MetricsFileOf(const std::string& path, int rank, int ranks);

/// Keeps a file of metrics up to date, on a thread of its own: the disk that it is on may hang, and no save may wait
/// for it. Safe from any thread.
class MetricsFile {
 public:
  static constexpr std::chrono::seconds kEvery{15};

  /// Writes it at once, and then whenever it is told to and every kEvery: what `text` returns. An event says once if
  /// that fails, or takes longer than `patience`, and again after it has worked. ResourceExhausted if the thread could
  /// not be started.
  [[nodiscard]] static Result<std::unique_ptr<MetricsFile>> Start(std::string path, std::function<std::string()> text,
                                                                  EventCallback on_event,
                                                                  std::chrono::nanoseconds patience = kEvery);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// The numbers have changed. Does not wait for the disk, and looks whether the thread does.
  void Update() CAIRN_EXCLUDES(mutex_, event_mutex_);
  /// Removes the file. False if its disk does not answer in time: then this must not be destroyed yet. There is no
  /// event afterwards.
  bool End(Deadline deadline) CAIRN_EXCLUDES(mutex_, event_mutex_);

 private:
  MetricsFile(std::string path, std::function<std::string()> text, EventCallback on_event,
              std::chrono::nanoseconds patience);
  void Run() CAIRN_EXCLUDES(mutex_, event_mutex_);
  [[nodiscard]] Status Write() const;
  /// `took`: how long it has lasted so far.
  void Report(const Status& status, std::chrono::nanoseconds took) CAIRN_EXCLUDES(mutex_, event_mutex_);

  const std::string path_;
  const std::function<std::string()> text_;
  const std::chrono::nanoseconds patience_;

  Mutex mutex_;
  CondVar changed_;
  bool due_ CAIRN_GUARDED_BY(mutex_) = true;
  bool ending_ CAIRN_GUARDED_BY(mutex_) = false;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  // Of the write in progress.
  std::optional<Deadline::Clock::time_point> begun_ CAIRN_GUARDED_BY(mutex_);
  // An event has said that it cannot be written, and it has not been since.
  bool failed_ CAIRN_GUARDED_BY(mutex_) = false;

  // Held through a callback, so that none runs after End.
  Mutex event_mutex_;
  EventCallback on_event_ CAIRN_GUARDED_BY(event_mutex_);

  std::thread thread_;
};

}  // namespace cairn
