#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cairn/status.h"
#include "format/manifest.h"
#include "io/io_queue.h"
#include "io/io_task.h"
#include "store/attempt_folder.h"
#include "store/commit.h"
#include "store/spare.h"
#include "store/writer.h"

namespace cairn {

struct AttemptSpec {
  /// Begin makes it, unless it is already open.
  std::shared_ptr<AttemptFolder> folder;
  std::uint64_t step = 0;
  /// This rank's shard number.
  std::uint64_t shard = 0;
  /// The shard's final length, header included.
  std::uint64_t file_bytes = 0;
  /// The commit pins the checkpoint.
  bool pin = false;
  unsigned file_mode = 0644;
  /// Called before the commit.
  WriterCheck check_writer = {};
  /// How long a commit that replaces a step waits for readers of the old one.
  std::chrono::nanoseconds reader_timeout{};
  /// How many spare folders to search for a file of this rank to overwrite.
  std::uint64_t spare_folders = 0;
  OnNotRecycled not_recycled;
};

/// One rank's part of one attempt at a checkpoint: steps 1 to 3 and 5 of the commit protocol (see attempt.cc).
///
/// Call in this order: Begin, Write (many at once), Seal, and on the coordinator Commit, or SealAndCommit for both;
/// Abandon whenever no call is in flight. All calls and callbacks run on the queue's thread; each callback comes once,
/// never from within the call. The first error is final: later calls return it without touching the disk. Destroying an
/// attempt with a call in flight is a bug. Destroying an uncommitted one leaves its folder to Abandon or the next
/// sweep.
class Attempt {
 public:
  Attempt(IoQueue& queue, AttemptSpec spec);

  /// Step 1: checks the free space (NoSpace names what is needed and what is free; RLIMIT_FSIZE too), creates the shard
  /// file, with O_DIRECT if the filesystem supports it, or takes over a spare, whose space counts as free; then
  /// allocates its blocks.
  void Begin(StatusDone done);
  /// Step 2: writes memory at an offset of the file. Address, length and offset are 4096-aligned; the caller pads the
  /// tail. The aligned rest of a short write is resubmitted; any other error is final.
  void Write(std::uint64_t offset, Bytes memory, StatusDone done);
  /// Step 3: writes the header (4096-aligned memory and length), truncates the file to file_bytes, fsyncs and closes
  /// it, fsyncs the folder, and the folder that a spare came from. Corrupt if the folder no longer holds this very
  /// file.
  void Seal(Bytes header, StatusDone done);
  /// Step 5: writes and fsyncs the index (from `index_runs`, see CommitSpec) and the manifest, fsyncs the folder,
  /// renames it to step-N, fsyncs the root. With `replace`, exchanges the old step-N atomically and then removes it;
  /// DeadlineExceeded if it is still being read after reader_timeout. Without it, AlreadyExists if there is a step-N.
  ///
  /// UnknownOutcome if the rename succeeded but the root's fsync failed: the step is never acknowledged.
  void Commit(const Manifest& manifest, std::vector<std::string> index_runs, bool replace, StatusDone done);
  /// Seal and Commit in one, for a single rank: their fsyncs run in parallel, and all complete before the rename.
  void SealAndCommit(Bytes header, const Manifest& manifest, bool replace, StatusDone done);
  /// A commit in progress waits for no reader any more.
  void Hurry() { hurry_ = true; }
  /// Nothing more is written, and nothing is renamed into place any more; calls in flight end with `why`. False, and
  /// without an effect, if the commit's rename has been submitted: then only the disk knows.
  [[nodiscard]] bool GiveUp(const Status& why);
  /// Committed, though the call may still be removing what it replaced.
  [[nodiscard]] bool durable() const { return gate_.durable; }
  /// Closes and removes this rank's shard, and the attempt if its folder was made here. Best effort: the next sweep
  /// removes the rest.
  void Abandon(StatusDone done);

  [[nodiscard]] bool beginning() const { return stage_ == Stage::kNew && in_flight_ != 0; }
  /// The shard file exists.
  [[nodiscard]] bool begun() const { return stage_ != Stage::kNew; }
  [[nodiscard]] bool direct() const { return direct_ != Direct::kRefused; }
  [[nodiscard]] bool recycled() const { return spare_.taken(); }
  [[nodiscard]] std::uint64_t bytes_written() const { return bytes_written_; }

 private:
  enum class Stage : std::uint8_t { kNew, kWriting, kSealed, kCommitted, kAbandoned };
  enum class Direct : std::uint8_t { kUntried, kTaken, kRefused };

  [[nodiscard]] const AttemptFolder& folder() const { return *spec_.folder; }
  [[nodiscard]] const PathAt& root() const { return folder().root(); }
  [[nodiscard]] static const char* StageName(Stage stage);
  [[nodiscard]] Status Admit(Stage wanted, const char* call) const;
  void Run(Status refusal, IoTask<Status> task, Stage then, StatusDone done);

  /// Replaces an error caused by a missing file with its reason: another writer took over, or a rank gave up.
  IoTask<Status> Explain(IoTask<Status> task);

  IoTask<Status> BeginTask();
  IoTask<Status> WriteTask(std::uint64_t offset, Bytes memory);
  IoTask<Status> SealTask(Bytes header);
  IoTask<Status> CommitTask(Manifest manifest, std::vector<std::string> index_runs, bool replace, Bytes header);
  IoTask<Status> AbandonTask();

  IoTask<Status> MakeRoom();
  IoTask<Status> MakeShard();
  IoTask<Status> WriteAt(std::uint64_t offset, Bytes memory);
  IoTask<Status> WriteHeader(Bytes header);
  IoTask<Status> FsyncShard();
  [[nodiscard]] std::vector<IoTask<Status>> FsyncTasks();
  IoTask<Status> CheckRoomTask();

  [[nodiscard]] Status CheckRange(std::uint64_t offset, Bytes memory) const;
  [[nodiscard]] Status CheckSize() const;
  /// Blocks that the spare already has need no space.
  [[nodiscard]] Status CheckRoom() const;
  [[nodiscard]] Status CheckManifest(const Manifest& manifest) const;
  /// Checks that the folder still holds the file that was written, at its full length.
  [[nodiscard]] Status CheckShard() const;

  IoQueue& queue_;
  const AttemptSpec spec_;
  const PathAt shard_;
  // The file's length until Seal truncates it.
  const std::uint64_t laid_out_;

  Stage stage_ = Stage::kNew;
  // The first error.
  Status status_;
  int in_flight_ = 0;
  Direct direct_ = Direct::kUntried;
  // Also set if the file may exist: an operation that failed may still have taken effect.
  bool shard_made_ = false;
  // The folder has, or may have, another name.
  bool in_place_ = false;
  bool hurry_ = false;
  CommitGate gate_;
  std::uint64_t bytes_written_ = 0;
  UniqueFd shard_fd_;
  Spare spare_;
};

}  // namespace cairn
