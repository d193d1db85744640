#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"
#include "device/buffer_pool.h"
#include "io/io_queue.h"
#include "mirror/bucket.h"
#include "mirror/choose.h"
#include "mirror/rate_limit.h"
#include "store/hold.h"
#include "store/root.h"

namespace cairn {

/// Where a mirror keeps its copies: a directory, which is a root of its own, or a place in an object store. The mirror
/// is its writer. For one thread, which owns the queue.
class MirrorTarget {
 public:
  struct Spec {
    /// A directory's path, or the bucket's text.
    std::string target;
    /// Null: a directory.
    std::unique_ptr<Bucket> bucket;
    /// The root that is copied, for messages; and its id.
    std::string source;
    std::string id;
    /// See WriteLine.
    std::uint64_t line;
    /// Of files and folders in a directory.
    unsigned file_mode;
    unsigned directory_mode;
    /// For another writer of a directory.
    std::chrono::nanoseconds wait;
    /// How many checkpoints the mirror's record has; and what to remove if they are gone for good.
    std::size_t expected;
    std::string record;
    MirrorRules rules;
    std::function<void(const std::string& note)> on_note;
  };
  /// Becomes its writer, removes what a killed mirror has left, and looks. FailedPrecondition if it has another id,
  /// another writer has a directory, or it has nothing of what it had.
  [[nodiscard]] static Result<std::unique_ptr<MirrorTarget>> Open(IoQueue& queue, Spec spec);

  /// Reads the list anew. What lacks files is Corrupt there: of an object store all, of a directory the newest that the
  /// rules keep.
  [[nodiscard]] Status Look();
  /// What it has, in the order of ListCheckpoints.
  [[nodiscard]] const std::vector<StoredCheckpoint>& list() const { return list_; }
  /// See Root::WriteLine.
  [[nodiscard]] Status WriteLine(std::uint64_t line);
  /// The root's, before this mirror's own, which has begun the line counter.
  [[nodiscard]] Status WriteOpenings(Openings openings);
  /// Marks what has kept files of these names, except those of the saves that wrote them.
  [[nodiscard]] Status MarkSuspects(const std::set<std::string>& files);

  struct CopySpec {
    const HeldCheckpoint& from;
    /// Where that is; null: in a root.
    const Bucket* bucket;
    BufferPool& pool;
    RateLimit& limit;
    const std::function<bool()>& interrupted;
  };
  struct Copied {
    Status status;
    /// See CheckpointCopy.
    bool source_damaged = false;
    std::uint64_t bytes = 0;
  };
  /// What was copied is in the list, in place of another of its step.
  [[nodiscard]] Copied Copy(const CopySpec& spec);
  /// Removes what the rules retire, by the list; and, from an object store, what is no checkpoint, unless it is of
  /// `due`.
  [[nodiscard]] Status Retire(std::string_view due);

  /// Not ok if another writer has taken over, or a directory was moved. That an object store does not answer is no
  /// reason to give up.
  [[nodiscard]] Status Check() const;

 private:
  MirrorTarget(IoQueue& queue, Spec spec) : queue_(queue), spec_(std::move(spec)) {}
  [[nodiscard]] Status OpenDirectory();
  [[nodiscard]] Status OpenBucket();
  [[nodiscard]] Status CheckWriter() const;
  [[nodiscard]] const WriterRecord& record() const { return root_ != nullptr ? root_->record() : writer_; }
  [[nodiscard]] Status CheckIsThere(bool has_writer) const;
  [[nodiscard]] Status CheckIsFree(const std::vector<CheckpointInfo>& list) const;
  [[nodiscard]] Copied CopyToDirectory(const CopySpec& spec);
  [[nodiscard]] Copied CopyToBucket(const CopySpec& spec);
  [[nodiscard]] std::vector<std::uint64_t> Retired() const;
  [[nodiscard]] const StoredCheckpoint& At(std::uint64_t step) const;
  [[nodiscard]] Status RetireInDirectory();
  [[nodiscard]] Status RetireInBucket(std::string_view due);
  [[nodiscard]] Status RemoveFromBucket(const Bucket::Folder& folder);

  IoQueue& queue_;
  const Spec spec_;
  // A directory's.
  std::unique_ptr<Root> root_;
  // Kept files there: see CheckpointCopy.
  std::set<std::string> whole_;
  // An object store's.
  WriterRecord writer_;
  std::vector<StoredCheckpoint> list_;
};

}  // namespace cairn
