#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "cairn/options.h"
#include "io/io_task.h"
#include "store/remove.h"

namespace cairn {

enum class EntryKind : std::uint8_t { kNothing, kLink, kCheckpoint, kOther };

/// A name in an open directory, and what has that name. Call its functions in this order.
class HeldEntry {
 public:
  HeldEntry(const PathAt& directory, std::string name) : directory_(directory), name_(std::move(name)) {}

  IoTask<Status> Open();
  /// Finds what is there. A checkpoint is locked: FailedPrecondition while it is being read.
  IoTask<Status> Look();
  /// Repeats Look until nobody reads the checkpoint.
  [[nodiscard]] Status WaitUntilUnread(IoQueue& queue, Deadline deadline);
  /// Whether `path` is what Look has found. Any link counts as the same link.
  IoTask<bool> Has(const PathAt& path) const;
  IoTask<Status> Fsync() const;
  [[nodiscard]] HeldFolder TakeOld() { return std::exchange(old_, {}); }

  /// The name, relative to the open directory.
  [[nodiscard]] const PathAt& at() const { return at_; }
  [[nodiscard]] const PathAt& parent() const { return parent_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const UniqueFd& fd() const { return fd_; }
  [[nodiscard]] EntryKind kind() const { return kind_; }

 private:
  [[nodiscard]] Status LookAtName();

  const PathAt directory_;
  const std::string name_;
  UniqueFd fd_;
  PathAt parent_;
  PathAt at_;
  EntryKind kind_ = EntryKind::kNothing;
  HeldFolder old_;
};

/// The entry of an absolute path. InvalidArgument for a relative one.
[[nodiscard]] Result<HeldEntry> MakeHeldEntry(const std::string& path);

}  // namespace cairn
