#pragma once

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
#include "store/spare.h"
#include "store/writer.h"

namespace cairn {

struct AttemptSpec {
  std::shared_ptr<AttemptFolder> folder;  ///< Made by Begin, unless it is open already.
  std::uint64_t step = 0;
  std::uint64_t shard = 0;       ///< This rank's shard number.
  std::uint64_t file_bytes = 0;  ///< What the shard will be long, header included.
  unsigned file_mode = 0644;
  WriterCheck still_writer = {};    ///< Asked before the commit.
  std::uint64_t spare_folders = 0;  ///< Write over a spare of this rank, where one of so many folders holds one.
  NotRecycled not_recycled;
};

/// One rank's part of one attempt at a checkpoint: steps 1 to 3 and 5 of the commit protocol (which heads attempt.cc).
///
/// A lifecycle in this order: Begin, Write (many at once), Seal, and on the coordinator Commit, or both as
/// SealAndCommit; Abandon at any point where no call is under way. All calls, and all callbacks, on the queue's thread;
/// each callback comes once, never from within the call. The first error is final: later calls return it without
/// touching the disk. Destroying an attempt with a call under way is a bug; destroying one that is not committed leaves
/// its folder for Abandon or the next sweep.
class Attempt {
 public:
  Attempt(IoQueue& queue, AttemptSpec spec);

  /// Step 1: checks the space (NoSpace names needed and free; RLIMIT_FSIZE too), makes the shard file in the folder,
  /// O_DIRECT where the filesystem takes it, or takes the spare over, whose space counts as free; and lays out its
  /// blocks.
  void Begin(StatusDone done);
  /// Step 2: writes memory at a 4096-aligned offset of the file; address and length 4096-aligned too, so the tail is
  /// padded by the caller. A short write's aligned remainder is resubmitted; any other error is final.
  void Write(std::uint64_t offset, Bytes memory, StatusDone done);
  /// Step 3: writes the header (4096-aligned memory and length), cuts the file to file_bytes, fsyncs and closes it,
  /// fsyncs the folder, and the one that a spare came from. Corrupt where the folder no longer holds this very file.
  void Seal(Bytes header, StatusDone done);
  /// Step 5: index (of `index_runs`, as CommitSpec has them) and manifest, their fsyncs and the folder's, rename to
  /// step-N, fsync of the root. With `replace` the old step-N
  /// is exchanged atomically and afterwards removed. AlreadyExists where step-N is there and `replace` is not set.
  ///
  /// UnknownOutcome where the rename was done and the root's fsync failed: the step is never acknowledged.
  void Commit(const Manifest& manifest, std::vector<std::string> index_runs, bool replace, StatusDone done);
  /// Seal and Commit in one, for a rank that has nobody to agree with: their fsyncs run side by side, and all of them
  /// have returned before the rename.
  void SealAndCommit(Bytes header, const Manifest& manifest, bool replace, StatusDone done);
  /// Closes and removes what there is of this rank's shard, and of the attempt, where its folder was made here. Best
  /// effort: a leftover is the next sweep's.
  void Abandon(StatusDone done);

  [[nodiscard]] bool beginning() const { return stage_ == Stage::kNew && under_way_ != 0; }
  /// It has its file.
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

  /// What was taken away from under the task, a writer that has taken over took, or a rank that gave up.
  IoTask<Status> Explain(IoTask<Status> task);

  // The calls, as tasks.
  IoTask<Status> BeginTask();
  IoTask<Status> WriteTask(std::uint64_t offset, Bytes memory);
  IoTask<Status> SealTask(Bytes header);
  IoTask<Status> CommitTask(Manifest manifest, std::vector<std::string> index_runs, bool replace, Bytes header);
  IoTask<Status> AbandonTask();

  // Their parts.
  IoTask<Status> MakeRoom();
  IoTask<Status> MakeShard();
  IoTask<Status> WriteAt(std::uint64_t offset, Bytes memory);
  IoTask<Status> WriteHeader(Bytes header);
  IoTask<Status> FsyncShard();
  [[nodiscard]] std::vector<IoTask<Status>> FsyncTasks();
  IoTask<Status> CheckRoomTask();

  [[nodiscard]] Status CheckRange(std::uint64_t offset, Bytes memory) const;
  [[nodiscard]] Status CheckSize() const;
  /// What the spare has already is not asked for.
  [[nodiscard]] Status CheckRoom() const;
  [[nodiscard]] Status CheckManifest(const Manifest& manifest) const;
  /// That the folder holds the file that was written, as long as it should be.
  [[nodiscard]] Status CheckShard() const;

  IoQueue& queue_;
  const AttemptSpec spec_;
  const PathAt shard_;
  const std::uint64_t laid_out_;  // The file's length until Seal cuts it.

  Stage stage_ = Stage::kNew;
  Status status_;      // The first error.
  int under_way_ = 0;  // Calls whose callback has not come.
  Direct direct_ = Direct::kUntried;
  bool shard_made_ = false;  // May have been: an error need not mean that nothing happened.
  bool in_place_ = false;    // The folder has, or may have, another name now.
  std::uint64_t bytes_written_ = 0;
  UniqueFd shard_fd_;
  Spare spare_;
};

}  // namespace cairn
