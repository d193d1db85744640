#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cairn/status.h"
#include "io/io_queue.h"
#include "store/locks.h"

namespace cairn {

struct RootOptions {
  std::string path;
  bool read_only = false;   ///< No making, no lock.
  bool coordinator = true;  ///< Of several ranks only the coordinator makes and locks.
  unsigned file_mode = 0644;
  unsigned directory_mode = 0755;
};

/// A root directory held open by a writer: step 0 of the commit protocol. Destroying it gives the lock back.
class Root {
 public:
  /// Makes the root (and parents), fsyncs what it made, takes the lock, fsyncs the root.
  /// FailedPrecondition, naming the holder's process, where another writer has it, in this process or another, and
  /// where the path cannot be made or written; InvalidArgument where it leads to a file; NotFound where it is missing
  /// and to be read only. A rank that does not coordinate needs no root yet: the coordinator makes it. Blocking; the
  /// queue is the caller's alone.
  [[nodiscard]] static Result<std::unique_ptr<Root>> Open(IoQueue& queue, const RootOptions& options);
  /// The path, absolute.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// In a forked child: forget the lock without releasing the parent's.
  void ForgetAfterFork() {
    if (lock_) lock_->ForgetAfterFork();
  }

 private:
  Root(std::string path, std::optional<WriterLock> lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  const std::string path_;
  std::optional<WriterLock> lock_;
};

}  // namespace cairn
