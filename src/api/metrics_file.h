#pragma once

#include <functional>
#include <memory>
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

  /// Writes it at once, and then whenever it is told to and every kEvery: what `text` returns. ResourceExhausted if the
  /// thread could not be started.
  [[nodiscard]] static Result<std::unique_ptr<MetricsFile>> Start(std::string path, std::function<std::string()> text,
                                                                  EventCallback on_event);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// The numbers have changed. Does not wait.
  void Update() CAIRN_EXCLUDES(mutex_);
  /// Removes the file. False if its disk does not answer in time: then this must not be destroyed yet. There is no
  /// event afterwards.
  bool End(Deadline deadline) CAIRN_EXCLUDES(mutex_, event_mutex_);

 private:
  MetricsFile(std::string path, std::function<std::string()> text, EventCallback on_event);
  void Run() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] Status Write() const;
  void Report(const Status& status) CAIRN_EXCLUDES(event_mutex_);

  const std::string path_;
  const std::function<std::string()> text_;

  Mutex mutex_;
  CondVar changed_;
  bool due_ CAIRN_GUARDED_BY(mutex_) = true;
  bool ending_ CAIRN_GUARDED_BY(mutex_) = false;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;

  // Held through a callback, so that none runs after End.
  Mutex event_mutex_;
  EventCallback on_event_ CAIRN_GUARDED_BY(event_mutex_);
  // Only the thread's: an event has said that it cannot be written, and none has said that it can again.
  bool failed_ = false;

  std::thread thread_;
};

}  // namespace cairn
