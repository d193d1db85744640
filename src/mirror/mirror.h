#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cairn/checkpointer.h"
#include "device/buffer_pool.h"
#include "io/io_queue.h"
#include "mirror/bucket.h"
#include "mirror/choose.h"
#include "mirror/rate_limit.h"
#include "mirror/target.h"
#include "store/hold.h"
#include "store/locks.h"
#include "store/mirrors.h"
#include "store/writer.h"

namespace cairn {

struct MirrorOptions {
  /// The root whose checkpoints are copied: it exists, and has an id. Or the way back: a place in an object store.
  std::string root;
  /// A directory, made if it is missing: a root with the same id, of which the mirror is the writer. Or a place in an
  /// object store (see IsBucket).
  std::string target;
  MirrorRules rules;
  /// The way back, once: the target may be empty, whatever was brought there before, and no record is left.
  bool brings_back = false;
  /// Bytes in a second that are copied at most. 0: no limit.
  std::uint64_t bandwidth = 0;
  /// How long to wait for another mirror of this root and target, or another writer of the target, to end.
  std::chrono::nanoseconds wait = std::chrono::seconds(2);
  /// Where the root's checkpoints are locked while they are copied: for how long if nothing is copied.
  std::chrono::nanoseconds lock_patience = std::chrono::minutes(5);
  /// For object stores. Empty: Rclone::Find.
  std::optional<Rclone> rclone = std::nullopt;
  /// Gets warnings, one sentence each.
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
};

/// Keeps at a target what a root has committed: newest first, one at a time, and one that is begun is finished. It
/// takes no lock of the root's writer, whose job goes on beside it. For one thread, which owns the queue.
class Mirror {
 public:
  /// Takes the mirror's lock in the root, and the target as its writer; removes what a killed mirror has left in both.
  ///
  /// A root that may not be written has no lock and no record of the mirror, and is locked while a checkpoint is
  /// copied.
  ///
  /// FailedPrecondition if another process mirrors this root to this target, or the target to this root, another writer
  /// has the target, or the target has checkpoints of another root; NotFound without a root; InvalidArgument if one is
  /// inside the other, or both are in object stores; Unsupported without rclone.
  [[nodiscard]] static Result<std::unique_ptr<Mirror>> Open(IoQueue& queue, const MirrorOptions& options);
  /// Drops what it holds, and leaves its record.
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  struct Copied {
    CheckpointInfo info;
    /// Read and written: less than info.bytes where files were linked.
    std::uint64_t bytes = 0;
    std::chrono::duration<double> time{};
  };
  /// Copies the newest checkpoint that is due, durably, and then retires at the target. None if none is due. Blocking.
  ///
  /// Corrupt if the checkpoint is damaged, or Unsupported if a later version wrote it: it is passed over from then on.
  /// Cancelled once `interrupted` says so. DeadlineExceeded if the root was not to be locked any longer. After any
  /// error the target has what it had, and a later call tries again.
  [[nodiscard]] Result<std::optional<Copied>> CopyNext(const std::function<bool()>& interrupted);

  /// Whether the mirror can go on. Not if the root was moved, lost its id or has another, or if another mirror or
  /// writer has taken over.
  [[nodiscard]] Status Check() const;
  /// How many checkpoints are passed over.
  [[nodiscard]] std::size_t damaged() const { return damaged_.size(); }
  /// The newest good checkpoint that the root had when CopyNext looked last; null if it had none.
  [[nodiscard]] const CheckpointInfo* newest() const;
  /// Whether it had any then, good or not.
  [[nodiscard]] bool found_any() const { return !here_.empty(); }
  /// What was written into the root last.
  [[nodiscard]] const MirrorRecord& record() const { return record_; }

 private:
  Mirror(IoQueue& queue, const MirrorOptions& options);
  [[nodiscard]] Status OpenSource();
  [[nodiscard]] Status CheckSource(const std::optional<WriterRecord>& writer) const;
  [[nodiscard]] Status CheckSourcePath() const;
  [[nodiscard]] Status TakeLock();
  [[nodiscard]] Status CheckNotBack() const;
  [[nodiscard]] Status OpenTarget();
  /// Reads both lists, and brings the target's line counter and marks up to date.
  [[nodiscard]] Status Look();
  /// When the root's directory last changed, since 1970. None if that tells nothing of later changes: it was just now,
  /// or the root is in an object store.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> LastChange() const;
  [[nodiscard]] Status LookAtSource();
  [[nodiscard]] Status MarkSuspects();
  [[nodiscard]] Status Hold(const StoredCheckpoint& one, HeldCheckpoint& held);
  [[nodiscard]] Result<std::optional<Copied>> TryCopyNext(const std::function<bool()>& interrupted);
  [[nodiscard]] const StoredCheckpoint* NextDue() const;
  /// The status of one in the root's list that cannot be read, once.
  [[nodiscard]] Status CheckManifests();
  /// What is wrong with a checkpoint that the root still lists; empty if nothing is.
  [[nodiscard]] std::string DamageLeft() const;
  /// `gone`: it was removed or replaced since it was listed.
  [[nodiscard]] Result<Copied> Copy(const StoredCheckpoint& one, const std::function<bool()>& interrupted, bool& gone);
  /// The error, but with the names that files have in the root: they are read where they are held.
  [[nodiscard]] Status AsInRoot(const Status& status) const;
  void DropHolds();
  /// Writes the record if something in it has changed.
  void Record(std::optional<MirroredCheckpoint> copying, const std::string& error);
  void Note(const std::string& note);

  IoQueue& queue_;
  const MirrorOptions options_;
  const std::string id_;
  std::unique_ptr<BufferPool> pool_;
  RateLimit limit_;
  // The root, if it is in an object store; the target, until it is open. Null: a directory.
  std::unique_ptr<Bucket> source_bucket_;
  std::unique_ptr<Bucket> target_bucket_;
  // The root's directory.
  UniqueFd source_fd_;
  PathAt source_;
  std::string source_id_;
  // Its line counter, and who has begun its lines.
  std::uint64_t source_line_ = 0;
  Openings source_openings_;
  // <root>/.mirrors/<id>
  PathAt holds_;
  // In the root, if that is a directory that may be written.
  std::optional<WriterLock> lock_;
  std::unique_ptr<MirrorTarget> target_;
  // It has no history of its own.
  bool follows_ = false;
  std::vector<StoredCheckpoint> here_;
  // `here_` was read by OpenSource, just before: of a bucket, where each look costs seconds at worst.
  bool looked_ = false;
  // The root's LastChange before `here_` was read, if only copies have been made since.
  std::optional<std::chrono::nanoseconds> listed_;
  // Those of its files and folders.
  unsigned file_mode_ = 0644;
  unsigned directory_mode_ = 0755;
  // The attempts of the record: what the target has from this root.
  std::set<std::string> copied_;
  // Attempts that are damaged in the source, or else their folders, and how.
  std::map<std::string, std::string> damaged_;
  std::set<std::string> noted_;
  MirrorRecord record_;
  // The root has it.
  bool recorded_ = false;
};

}  // namespace cairn
