#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "io/io_queue.h"

namespace cairn {

/// A completed operation: what was requested, what was written, and the result.
struct RecordedOperation {
  IoOp op = IoOp::kFsync;
  std::string path;
  std::string path2;
  std::uint64_t file = 0;  ///< Which open file: the value that its kOpen has here. 0: not opened through the recording.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::string data;  ///< The bytes that were written.
  int flags = 0;
  RenameMode rename = RenameMode::kPlain;
  std::int64_t result = 0;
  std::size_t begun = 0;  ///< How many operations were complete when this one was submitted.
};

/// What the queues made through it have done, in the order of completion, and how the directory looked before: enough
/// to know what a power cut at any moment may leave. Safe from any thread.
class Recording : public std::enable_shared_from_this<Recording> {
 public:
  /// `base` is the directory that power cuts are modelled for; what is in it now counts as durable. Operations on other
  /// paths are recorded and left out of the model.
  [[nodiscard]] static std::shared_ptr<Recording> Make(const std::string& base);

  /// A factory of queues that record here. For Wiring::wrap_queue: [log](auto inner) { return log->Wrap(inner); }
  [[nodiscard]] IoQueueFactory Wrap(IoQueueFactory inner);

  /// What was in `base` at Make: its path below it, "" for itself. Parents come before what they hold.
  struct Entry {
    std::string path;
    bool directory = false;
    std::string data;
  };
  [[nodiscard]] const std::string& base() const { return base_; }
  [[nodiscard]] const std::vector<Entry>& before() const { return before_; }
  [[nodiscard]] std::vector<RecordedOperation> operations() const CAIRN_EXCLUDES(mutex_);
  /// Operations completed so far.
  [[nodiscard]] std::size_t size() const CAIRN_EXCLUDES(mutex_);

 private:
  friend class RecordingQueue;
  Recording(std::string base, std::vector<Entry> before) : base_(std::move(base)), before_(std::move(before)) {}
  [[nodiscard]] RecordedOperation Begin(const IoRequest& request) CAIRN_EXCLUDES(mutex_);
  void Finish(RecordedOperation operation, const void* buffer, std::int64_t result) CAIRN_EXCLUDES(mutex_);

  const std::string base_;
  const std::vector<Entry> before_;
  mutable Mutex mutex_;
  std::vector<RecordedOperation> operations_ CAIRN_GUARDED_BY(mutex_);
  std::map<int, std::uint64_t> open_files_ CAIRN_GUARDED_BY(mutex_);  // By descriptor.
  std::uint64_t last_file_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
