#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cairn/status.h"
#include "format/manifest.h"
#include "io/io_queue.h"
#include "io/io_task.h"
#include "store/attempt_file.h"
#include "store/attempt_folder.h"
#include "store/commit.h"
#include "store/mapped_file.h"
#include "store/spare.h"
#include "store/writer.h"

namespace cairn {

/// A second file of the rank: what has not changed.
struct KeptSpec {
  std::string name;
  /// Its length, header included.
  std::uint64_t bytes = 0;
  /// Not null: a committed checkpoint has the file, open here, and Begin links it. Where it cannot be linked it is
  /// copied from the descriptor, and `on_copy` is told why.
  std::shared_ptr<const UniqueFd> linked;
  std::function<void(const Status& why)> on_copy;
};

/// What a kept file has in common with a committed one, which is open: pieces of whole checksum blocks, at these
/// offsets of the two files.
struct KeptCopy {
  struct Piece {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint64_t bytes = 0;
    /// What the bytes have for checksums.
    std::vector<std::uint32_t> sums;
  };
  std::shared_ptr<const UniqueFd> file;
  std::vector<Piece> pieces;
};

struct AttemptSpec {
  /// Begin makes it, unless it is already open.
  std::shared_ptr<AttemptFolder> folder;
  std::uint64_t step = 0;
  /// This rank's shard number.
  std::uint64_t shard = 0;
  /// The shard's final length, header included.
  std::uint64_t file_bytes = 0;
  std::optional<KeptSpec> kept = std::nullopt;
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
  /// What becomes of the shards of the checkpoint that the commit replaces.
  SparePolicy replaced = {};
  /// Begin makes no new file: NoSpace if no spare can be taken.
  bool only_spares = false;
  /// For a root in memory: see MapShard. Outlives the attempt.
  MappedFiles* mapped = nullptr;
  /// Gets the bytes that Begin finds free on the filesystem. May be null.
  std::atomic<std::int64_t>* free_bytes = nullptr;
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
  /// allocates its blocks. Links the kept file, or creates and allocates it too. If this ends with NoSpace, no file of
  /// it is left, and another attempt may begin in the folder.
  void Begin(StatusDone done);
  /// Step 2: writes memory at an offset of the file. Address, length and offset are 4096-aligned; the caller pads the
  /// tail. The aligned rest of a short write is resubmitted; any other error is final.
  void Write(std::uint64_t offset, Bytes memory, StatusDone done);
  /// Takes the link of the kept file away, and creates and allocates this one for WriteKept, with what is copied into
  /// it. Corrupt if a copied block has another checksum. If this ends with NoSpace, nothing of it is left, and it may
  /// be called again. While it is in flight there may be calls of Write.
  void RenewKept(KeptSpec kept, KeptCopy copy, StatusDone done);
  /// Instead of Write, with AttemptSpec::mapped: maps the shard, header and padded tail included. Blocking.
  [[nodiscard]] Result<std::shared_ptr<MappedFile>> MapShard();
  /// The same as Write into a kept file that is not linked; `header` is what sealing writes into it.
  void WriteKept(std::uint64_t offset, Bytes memory, StatusDone done);
  void SetKeptHeader(Bytes header) { kept_header_ = header; }
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
  [[nodiscard]] bool direct() const { return shard_.direct(); }
  [[nodiscard]] bool recycled() const { return spare_.taken(); }
  [[nodiscard]] std::uint64_t bytes_written() const {
    return shard_.bytes_written() + (kept_ ? kept_->bytes_written() : 0);
  }
  /// The kept file, once begun.
  [[nodiscard]] const std::shared_ptr<const UniqueFd>& kept_fd() const { return kept_fd_; }
  [[nodiscard]] const std::string& kept_path() const { return kept_->path().text(); }
  /// The kept file of before could be neither linked nor copied, or is damaged: no other save should try.
  [[nodiscard]] bool kept_failed() const { return kept_failed_; }

 private:
  enum class Stage : std::uint8_t { kNew, kWriting, kSealed, kCommitted, kAbandoned };

  [[nodiscard]] const AttemptFolder& folder() const { return *spec_.folder; }
  [[nodiscard]] const PathAt& root() const { return folder().root(); }
  [[nodiscard]] static const char* StageName(Stage stage);
  [[nodiscard]] Status Admit(Stage wanted, const char* call) const;
  void Run(Status refusal, IoTask<Status> task, Stage then, StatusDone done);

  /// Replaces an error caused by a missing file with its reason: another writer took over, or a rank gave up.
  IoTask<Status> Explain(IoTask<Status> task);

  IoTask<Status> BeginTask();
  IoTask<Status> MakeFiles();
  IoTask<Status> SealTask(Bytes header);
  IoTask<Status> CommitTask(Manifest manifest, std::vector<std::string> index_runs, bool replace, Bytes header);
  IoTask<Status> AbandonTask();

  [[nodiscard]] AttemptFile::Spec FileSpec(const std::string& name, std::uint64_t bytes);
  IoTask<Status> MakeRoom();
  IoTask<Status> Allocate(AttemptFile& file);
  IoTask<Status> BeginKept();
  IoTask<Status> RenewKeptTask(KeptSpec kept, KeptCopy copy);
  IoTask<Status> MakeKept(KeptCopy copy);
  IoTask<Status> LinkKept(const UniqueFd& file);
  IoTask<Status> OpenKept();
  void AddHeaderTasks(Bytes header, std::vector<IoTask<Status>>& tasks);
  [[nodiscard]] std::vector<IoTask<Status>> FsyncTasks();
  IoTask<Status> CheckRoomTask();

  /// Blocks that the spare already has need no space.
  [[nodiscard]] Status CheckRoom() const;
  [[nodiscard]] Status CheckManifest(const Manifest& manifest) const;
  /// Checks that the folder still has the file that was linked.
  [[nodiscard]] Status CheckKept();

  IoQueue& queue_;
  AttemptSpec spec_;

  Stage stage_ = Stage::kNew;
  // The first error.
  Status status_;
  int in_flight_ = 0;
  // The folder has, or may have, another name.
  bool in_place_ = false;
  bool hurry_ = false;
  CommitGate gate_;
  Spare spare_;
  AttemptFile shard_;
  std::optional<AttemptFile> kept_;
  bool kept_linked_ = false;
  bool kept_failed_ = false;
  // All its names are.
  bool kept_gone_ = false;
  Bytes kept_header_;
  std::shared_ptr<const UniqueFd> kept_fd_;
};

}  // namespace cairn
