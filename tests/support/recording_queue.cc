#include "support/recording_queue.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "testing/forwarding_queue.h"

namespace cairn {
namespace {

std::vector<Recording::Entry> ReadTree(const std::string& base) {
  std::vector<Recording::Entry> entries = {{.path = "", .directory = true, .data = ""}};
  for (const auto& found : std::filesystem::recursive_directory_iterator(base)) {
    const std::string below = found.path().lexically_relative(base).string();
    if (found.is_directory()) {
      entries.push_back({.path = below, .directory = true, .data = ""});
    } else if (found.is_regular_file()) {
      std::ifstream file(found.path(), std::ios::binary);
      entries.push_back({.path = below, .directory = false, .data = {std::istreambuf_iterator<char>(file), {}}});
    }
  }
  return entries;
}

}  // namespace

/// Notes each operation as it completes, before its callback.
class RecordingQueue : public ForwardingQueue {
 public:
  RecordingQueue(std::shared_ptr<Recording> recording, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), recording_(std::move(recording)) {}

  void Submit(IoRequest request, IoDone done) override {
    RecordedOperation operation = recording_->Begin(request);
    const void* buffer = request.op == IoOp::kWrite ? request.buffer : nullptr;
    inner_->Submit(std::move(request), [recording = recording_, operation = std::move(operation), buffer,
                                        done = std::move(done)](std::int64_t result) mutable {
      recording->Finish(std::move(operation), buffer, result);
      done(result);
    });
  }

 private:
  const std::shared_ptr<Recording> recording_;
};

std::shared_ptr<Recording> Recording::Make(const std::string& base) {
  return std::shared_ptr<Recording>(new Recording(base, ReadTree(base)));
}

IoQueueFactory Recording::Wrap(IoQueueFactory inner) {
  return WrapQueues<RecordingQueue>(shared_from_this(), std::move(inner));
}

std::vector<RecordedOperation> Recording::operations() const {
  MutexLock lock(mutex_);
  return operations_;
}

std::size_t Recording::size() const {
  MutexLock lock(mutex_);
  return operations_.size();
}

RecordedOperation Recording::Begin(const IoRequest& request) {
  MutexLock lock(mutex_);
  RecordedOperation operation{.op = request.op,
                              .path = request.path.text(),
                              .path2 = request.path2.text(),
                              .file = 0,
                              .offset = request.offset,
                              .length = request.length,
                              .data = {},
                              .flags = request.flags,
                              .rename = request.rename,
                              .result = 0,
                              .begun = operations_.size()};
  if (const auto it = open_files_.find(request.fd); it != open_files_.end()) {
    operation.file = it->second;
    // Now and not on completion: once closed, another thread may be given the same number.
    if (request.op == IoOp::kClose) open_files_.erase(it);
  }
  return operation;
}

void Recording::Finish(RecordedOperation operation, const void* buffer, std::int64_t result) {
  if (buffer != nullptr && result > 0) {
    operation.data.assign(static_cast<const char*>(buffer), static_cast<std::size_t>(result));
  }
  operation.result = result;
  MutexLock lock(mutex_);
  if (operation.op == IoOp::kOpen && result >= 0) {
    operation.file = ++last_file_;
    open_files_[static_cast<int>(result)] = operation.file;
  }
  operations_.push_back(std::move(operation));
}

}  // namespace cairn
