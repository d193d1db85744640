// The commit protocol. What stands in front of a number happens before what stands behind it, on every rank.
//
// 0. Open (root.cc): make the root, fsync its parent; take the writer's lock, an fcntl lock on `.lock`; refuse a second
//    writer of this process; fsync the root, so that every rename a crash left half done is on the disk, or is not
//    there, before anything is removed or listed. Then the coordinator alone sweeps, beside the start of training: it
//    names no attempt that it may commit before it has swept, and without a name no rank begins. Readers take no lock
//    and never sweep.
// 1. Begin: one attempt id for all ranks. Space is checked; then `.attempt-<uuid>/` is made, and this rank's shard file
//    in it, its blocks laid out. The file is new, or a spare of this rank (see 6), whose blocks count as free: it is
//    opened and claimed (a regular file of ours with one name and a write lease on it: nobody else has it open or
//    mapped), renamed into the attempt, looked at again, its first block zeroed, and the lease given back. Whatever
//    refuses it, or has come for it meanwhile, has it unlinked and a new one made. Until the commit it is a file that
//    is never read, as every other of an attempt: nothing is lost with its old bytes, and no old header stands before
//    new ones.
// 2. Write: the chunks, each at its place. Every completion is checked, because an O_DIRECT write's error shows there
//    alone: a later fsync returns success. The aligned remainder of a short write is resubmitted; any other error is
//    final. Where the filesystem refuses O_DIRECT, writes are buffered, and each is followed by its write-back; that
//    consumes the descriptor's write error, so its result is checked and final too, and the fsync uses the same
//    descriptor.
// 3. Seal: the header is written last; the padded tail is cut; one fsync of the shard, never tried again; fsync of the
//    attempt's folder, and of the one that a spare was taken from: once the step is durable, no other name leads to it.
//    The fsyncs run side by side.
// 4. The ranks agree (not here): all are prepared, or one has failed. A rank that is alone knows, and does 3 and 5 in
//    one: header and manifest are written side by side, then all is fsynced side by side, then renamed. Nothing reads
//    the attempt before the rename, so that it is no matter which of them a crash lets through.
// 5. Commit (commit.cc), on the coordinator: the manifest is written, then it and the attempt's folder fsynced; the
//    folder renamed to step-N without replacing (or exchanged with the old step-N); the root fsynced. If that fsync
//    fails the outcome is unknown: the step is not acknowledged, and the folder is not removed. A rank that hears
//    nothing looks for step-N with its attempt id and fsyncs the root itself (FindCommitted).
// 6. Only now is the save durable, and only now may older ones go (remove.cc): step-N is renamed to `.retired-<uuid>`,
//    the root fsynced; before that has returned nothing in the folder is touched, as a power cut would bring the name
//    back. A checkpoint that somebody reads has a shared lock on its manifest, and stays. Then its files are unlinked.
//    Where files are recycled, the ranks' shard files that nobody else has open, mapped or linked stay, and the folder
//    is renamed to the first free one of `.spare-0`, `.spare-1` and so on: what is found under these names is no
//    checkpoint's, durably, for every rank. There are so many that with the attempts in flight they come to one more
//    than those may be, so that saves one behind the other always find one; they are unlinked where the disk is full,
//    and at the end. A sweep leaves them, and makes more of what a killed writer's attempts and removals left: no
//    checkpoint's files either. Writes that the dead process has under way hold its file open, which the lease sees.

#include "store/attempt.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "store/commit.h"
#include "store/io_steps.h"
#include "store/names.h"
#include "store/paths.h"
#include "store/space.h"
#include "store/spare.h"

namespace cairn {
namespace {

enum class Stage : std::uint8_t { kNew, kWriting, kSealed, kCommitted, kAbandoned };

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kNew:
      return "new";
    case Stage::kWriting:
      return "being written";
    case Stage::kSealed:
      return "sealed";
    case Stage::kCommitted:
      return "committed";
    case Stage::kAbandoned:
      return "abandoned";
  }
  return "?";
}

class ShardAttempt final : public Attempt {
 public:
  ShardAttempt(IoQueue& queue, AttemptSpec spec)
      : queue_(queue),
        spec_(std::move(spec)),
        folder_(JoinPath(spec_.root, AttemptName(spec_.uuid))),
        shard_(JoinPath(folder_, ShardName(spec_.shard))),
        laid_out_(AlignUp(spec_.file_bytes, kBlock)) {
    for (std::uint64_t number = 0; number < spec_.spare_folders; ++number) {
      const std::string folder = JoinPath(spec_.root, SpareName(number));
      std::error_code error;
      if (!std::filesystem::is_symlink(folder, error)) spare_.folders.push_back(folder);  // Somebody's, if it is.
    }
    spare_.name = ShardName(spec_.shard);
    spare_.file_mode = spec_.file_mode;
    spare_.not_recycled = spec_.not_recycled;
  }

  void Begin(StatusDone done) override;
  void Write(std::uint64_t offset, Bytes memory, StatusDone done) override;
  void Seal(Bytes header, StatusDone done) override;
  void Commit(const Manifest& manifest, bool replace, StatusDone done) override;
  void SealAndCommit(Bytes header, const Manifest& manifest, bool replace, StatusDone done) override;
  void Abandon(StatusDone done) override;

  [[nodiscard]] bool direct() const override { return direct_; }
  [[nodiscard]] bool recycled() const override { return spare_.stage == Spare::Stage::kTaken; }
  [[nodiscard]] std::uint64_t bytes_written() const override { return bytes_written_; }

 private:
  [[nodiscard]] Status Admit(Stage wanted, const char* call) const;
  [[nodiscard]] Status CheckRange(std::uint64_t offset, Bytes memory) const;
  [[nodiscard]] Status CheckSize() const;
  /// What the spare has already is not asked for.
  [[nodiscard]] Status CheckRoom() const;
  /// Where there is none, the spares that were not claimed are unlinked.
  void AppendMakingRoom(std::vector<IoStep>& steps) const;
  void Refuse(Status status, StatusDone done);
  void Run(std::vector<IoStep> steps, Stage then, StatusDone done);
  /// The first error is final; returns what the caller is told.
  Status Settle(Status status);
  void AppendNewShard(std::vector<IoStep>& steps);
  /// The header, and the tail's cut.
  [[nodiscard]] std::vector<IoStep> HeaderSteps(Bytes header);
  /// Sequences that may run side by side: the shard's and, where there is one, that of the folder a spare came from.
  [[nodiscard]] std::vector<std::vector<IoStep>> FsyncSequences();
  [[nodiscard]] Status CheckManifest(const Manifest& manifest) const;
  void RunCommit(CommitSpec spec, StatusDone done);
  [[nodiscard]] CommitSpec SpecOfCommit(const Manifest& manifest, bool replace) const;

  IoQueue& queue_;
  const AttemptSpec spec_;
  const std::string folder_;
  const std::string shard_;
  const std::uint64_t laid_out_;  // The file's length until Seal cuts it.

  Stage stage_ = Stage::kNew;
  Status status_;      // The first error.
  int under_way_ = 0;  // Calls whose callback has not come.
  bool direct_ = true;
  bool folder_made_ = false;  // May have been, as with the two below: an error need not mean that nothing happened.
  bool shard_made_ = false;
  bool manifest_made_ = false;
  bool in_place_ = false;  // The folder has, or may have, another name now.
  std::uint64_t bytes_written_ = 0;
  UniqueFd folder_fd_;
  UniqueFd shard_fd_;
  Spare spare_;
};

Status ShardAttempt::Admit(Stage wanted, const char* call) const {
  if (!status_.ok()) return status_;
  const bool many = wanted == Stage::kWriting && stage_ == Stage::kWriting && std::string_view(call) == "Write";
  if (stage_ == wanted && (under_way_ == 0 || many)) return Status::Ok();
  return Error(StatusCode::kInternal, "{} of an attempt at step {} that is {}, with {} calls under way", call,
               spec_.step, StageName(stage_), under_way_);
}

void ShardAttempt::Refuse(Status status, StatusDone done) {
  std::vector<IoStep> steps;
  steps.push_back({.check = [status = std::move(status)] { return status; }});
  RunSteps(queue_, std::move(steps), std::move(done));
}

Status ShardAttempt::Settle(Status status) {
  --under_way_;
  if (!status.ok() && status_.ok()) status_ = status;
  return status;
}

void ShardAttempt::Run(std::vector<IoStep> steps, Stage then, StatusDone done) {
  ++under_way_;
  RunSteps(queue_, std::move(steps), [this, then, done = std::move(done)](Status status) {
    if (status.ok()) stage_ = then;
    done(Settle(std::move(status)));
  });
}

Status ShardAttempt::CheckSize() const {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (spec_.file_bytes == 0 || spec_.file_bytes > AlignDown(kLargest, kBlock)) {
    return Error(StatusCode::kInvalidArgument, "{}: a shard of {} bytes", shard_, spec_.file_bytes);
  }
  return CheckFileSizeLimit(shard_, laid_out_);
}

Status ShardAttempt::CheckRoom() const {
  const bool reuses = spare_.stage == Spare::Stage::kClaimed || recycled();
  return CheckFreeSpace(spec_.root, shard_, laid_out_ - (reuses ? std::min(spare_.allocated, laid_out_) : 0));
}

void ShardAttempt::AppendMakingRoom(std::vector<IoStep>& steps) const {
  for (const std::string& path : spare_.paths()) {
    steps.push_back({.make = [this, path]() -> std::optional<IoRequest> {
                       const bool claimed = spare_.stage == Spare::Stage::kClaimed && path == spare_.path;
                       if (claimed || CheckRoom().ok()) return std::nullopt;
                       return IoRequest{.op = IoOp::kUnlink, .path = path};
                     },
                     .on_error = [](int, const Status&) { return Flow::kNext; }});
  }
}

void ShardAttempt::AppendNewShard(std::vector<IoStep>& steps) {
  IoStep direct = CreateFileStep(shard_, O_DIRECT, spec_.file_mode, shard_fd_);
  direct.check = [this] {
    shard_made_ = true;
    return Status::Ok();
  };
  direct.on_error = [this](int error, Status plain) -> Result<Flow> {
    if (error == EEXIST) {
      shard_made_ = false;
      return Error(StatusCode::kInternal, "{} is there already: two ranks write the same shard", shard_);
    }
    if (error != EINVAL) return plain;
    direct_ = false;
    return Flow::kNext;
  };
  std::vector<IoStep> making;
  making.push_back(std::move(direct));
  // The kernel makes the file first and refuses O_DIRECT afterwards.
  making.push_back({.make = [this]() -> std::optional<IoRequest> {
                      if (direct_) return std::nullopt;
                      return IoRequest{.op = IoOp::kUnlink, .path = shard_};
                    },
                    .on_error = [](int error, Status plain) -> Result<Flow> {
                      if (error == ENOENT) return Flow::kNext;
                      return plain;
                    }});
  IoStep buffered = CreateFileStep(shard_, 0, spec_.file_mode, shard_fd_);
  buffered.make = [this, make = std::move(buffered.make)]() -> std::optional<IoRequest> {
    if (direct_) return std::nullopt;
    return make();
  };
  making.push_back(std::move(buffered));
  for (IoStep& step : making) {
    step.make = [this, make = std::move(step.make)]() -> std::optional<IoRequest> {
      if (recycled()) return std::nullopt;
      return make();
    };
    steps.push_back(std::move(step));
  }
}

void ShardAttempt::Begin(StatusDone done) {
  if (Status refusal = Admit(Stage::kNew, "Begin"); !refusal.ok()) return Refuse(std::move(refusal), std::move(done));
  std::vector<IoStep> steps;
  AppendClaim(steps, spare_, shard_fd_);
  steps.push_back({.check = [this] { return CheckSize(); }});
  AppendMakingRoom(steps);
  steps.push_back({.check = [this] { return CheckRoom(); }});
  steps.push_back({.make =
                       [this] {
                         folder_made_ = true;
                         return IoRequest{.op = IoOp::kMkdir, .path = folder_, .mode = spec_.directory_mode};
                       },
                   .on_error = [](int error, Status plain) -> Result<Flow> {
                     if (error == EEXIST) return Flow::kNext;  // Another rank was first.
                     return plain;
                   }});
  steps.push_back(OpenDirectoryStep(folder_, /*follow=*/false, folder_fd_));
  steps.push_back({.check = [this] {
    shard_made_ = spare_.stage == Spare::Stage::kClaimed;
    return Status::Ok();
  }});
  AppendTakeOver(steps, spare_, shard_fd_, shard_);
  AppendNewShard(steps);
  steps.push_back(
      {.make = [this] { return IoRequest{.op = IoOp::kFallocate, .fd = shard_fd_.get(), .length = laid_out_}; },
       .name = shard_,
       .on_error = [this](int error, Status plain) -> Result<Flow> {
         if (error == EOPNOTSUPP) return Flow::kNext;
         if (error != ENOSPC) return plain;
         // Other writers may have been faster than the first look.
         CAIRN_RETURN_IF_ERROR(CheckRoom());
         return plain;
       }});
  FreeSparesWhenFull(steps, spare_.paths());
  Run(std::move(steps), Stage::kWriting, std::move(done));
}

Status ShardAttempt::CheckRange(std::uint64_t offset, Bytes memory) const {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (offset % kBlock == 0 && memory.size() % kBlock == 0 && address % kBlock == 0 && !memory.empty() &&
      memory.size() <= laid_out_ && offset <= laid_out_ - memory.size()) {
    return Status::Ok();
  }
  return Error(StatusCode::kInternal, "write of {} bytes at {} from {:#x} to {}: expected multiples of {} within {}",
               memory.size(), offset, address, shard_, kBlock, laid_out_);
}

void ShardAttempt::Write(std::uint64_t offset, Bytes memory, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "Write");
  if (refusal.ok()) refusal = CheckRange(offset, memory);
  if (!refusal.ok()) return Refuse(std::move(refusal), std::move(done));
  std::vector<IoStep> steps;
  steps.push_back(WriteStep(shard_fd_, shard_, offset, memory, kBlock));
  // Remainders of an attempt that has failed meanwhile are not written.
  steps.back().check = [this] { return status_; };
  steps.push_back({.make = [this, offset, length = memory.size()]() -> std::optional<IoRequest> {
                     if (direct_) return std::nullopt;
                     return IoRequest{
                         .op = IoOp::kSyncRange, .fd = shard_fd_.get(), .length = length, .offset = offset};
                   },
                   .name = shard_});
  FreeSparesWhenFull(steps, spare_.paths());
  Run(std::move(steps), Stage::kWriting, [this, size = memory.size(), done = std::move(done)](Status status) {
    if (status.ok()) bytes_written_ += size;
    done(std::move(status));
  });
}

std::vector<IoStep> ShardAttempt::HeaderSteps(Bytes header) {
  std::vector<IoStep> steps;
  steps.push_back(WriteStep(shard_fd_, shard_, 0, header, kBlock));
  steps.push_back(
      {.make = [this] { return IoRequest{.op = IoOp::kFtruncate, .fd = shard_fd_.get(), .length = spec_.file_bytes}; },
       .name = shard_});
  FreeSparesWhenFull(steps, spare_.paths());
  steps.push_back({.check = [this, size = header.size()] {
    bytes_written_ += size;
    return Status::Ok();
  }});
  return steps;
}

std::vector<std::vector<IoStep>> ShardAttempt::FsyncSequences() {
  std::vector<std::vector<IoStep>> sequences;
  sequences.push_back({FsyncStep(shard_fd_, shard_), CloseStep(shard_fd_, shard_)});
  if (recycled()) sequences.push_back({FsyncStep(spare_.folder_fd, spare_.folder)});
  return sequences;
}

void ShardAttempt::Seal(Bytes header, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "Seal");
  if (refusal.ok()) refusal = CheckRange(0, header);
  if (!refusal.ok()) return Refuse(std::move(refusal), std::move(done));
  std::vector<IoStep> steps = HeaderSteps(header);
  std::vector<std::vector<IoStep>> fsyncs = FsyncSequences();
  fsyncs.push_back({FsyncStep(folder_fd_, folder_)});
  steps.push_back({.together = std::move(fsyncs)});
  Run(std::move(steps), Stage::kSealed, std::move(done));
}

Status ShardAttempt::CheckManifest(const Manifest& manifest) const {
  if (manifest.step == spec_.step && manifest.attempt == spec_.uuid) return Status::Ok();
  return Error(StatusCode::kInternal, "manifest of step {}, attempt {}, in attempt {} at step {}", manifest.step,
               manifest.attempt, spec_.uuid, spec_.step);
}

void ShardAttempt::Commit(const Manifest& manifest, bool replace, StatusDone done) {
  Status refusal = Admit(Stage::kSealed, "Commit");
  if (refusal.ok()) refusal = CheckManifest(manifest);
  if (!refusal.ok()) return Refuse(std::move(refusal), std::move(done));
  RunCommit(SpecOfCommit(manifest, replace), std::move(done));
}

void ShardAttempt::SealAndCommit(Bytes header, const Manifest& manifest, bool replace, StatusDone done) {
  Status refusal = Admit(Stage::kWriting, "SealAndCommit");
  if (refusal.ok()) refusal = CheckRange(0, header);
  if (refusal.ok()) refusal = CheckManifest(manifest);
  if (!refusal.ok()) return Refuse(std::move(refusal), std::move(done));
  CommitSpec spec = SpecOfCommit(manifest, replace);
  spec.written_beside = HeaderSteps(header);
  spec.fsynced_beside = FsyncSequences();
  RunCommit(std::move(spec), std::move(done));
}

CommitSpec ShardAttempt::SpecOfCommit(const Manifest& manifest, bool replace) const {
  return {.root = spec_.root,
          .folder = folder_,
          .folder_fd = &folder_fd_,
          .manifest = manifest,
          .replace = replace,
          .file_mode = spec_.file_mode,
          .spares = spare_.paths()};
}

void ShardAttempt::RunCommit(CommitSpec spec, StatusDone done) {
  ++under_way_;
  manifest_made_ = true;
  CommitFolder(queue_, std::move(spec), [this, done = std::move(done)](Status status, bool in_place) {
    in_place_ = in_place;
    if (status.ok()) stage_ = Stage::kCommitted;
    done(Settle(std::move(status)));
  });
}

void ShardAttempt::Abandon(StatusDone done) {
  if (under_way_ != 0) {
    return Refuse(Error(StatusCode::kInternal, "Abandon of step {} with {} calls under way", spec_.step, under_way_),
                  std::move(done));
  }
  const bool committed = stage_ == Stage::kCommitted;
  if (status_.ok() && !committed) status_ = Error(StatusCode::kCancelled, "step {} was abandoned", spec_.step);
  const auto first = std::make_shared<Status>();
  std::vector<IoStep> steps;
  steps.push_back(CloseStep(shard_fd_, shard_));
  if (!in_place_ && !committed) {
    const auto remove = [&steps](IoOp op, const std::string& path) {
      steps.push_back({.make = [op, path] { return IoRequest{.op = op, .path = path}; }});
    };
    if (manifest_made_) {
      remove(IoOp::kUnlink, JoinPath(folder_, kManifestName));
      remove(IoOp::kUnlink, JoinPath(folder_, kPinName));
    }
    if (shard_made_) remove(IoOp::kUnlink, shard_);
    // Where other ranks' shards are still in it, the last rank to abandon removes the folder.
    if (folder_made_) remove(IoOp::kRmdir, folder_);
  }
  for (IoStep& step : steps) {
    step.on_error = [first](int error, const Status& plain) {
      if (first->ok() && error != ENOENT && error != ENOTEMPTY) *first = plain;
      return Flow::kNext;
    };
  }
  ++under_way_;
  RunSteps(queue_, std::move(steps), [this, first, committed, done = std::move(done)](const Status& status) {
    --under_way_;
    folder_fd_.Reset();
    if (!committed) stage_ = Stage::kAbandoned;
    done(status.ok() ? *first : status);
  });
}

}  // namespace

std::unique_ptr<Attempt> Attempt::Make(IoQueue& queue, AttemptSpec spec) {
  return std::make_unique<ShardAttempt>(queue, std::move(spec));
}

}  // namespace cairn
