#include "engine/shard_writer.h"

#include <algorithm>
#include <utility>

#include "base/human.h"
#include "base/status_macros.h"
#include "format/index.h"
#include "store/names.h"

namespace cairn {
namespace {

// How long a save on a full disk waits for an older one that its caller has not released: the caller may wait for it.
constexpr std::chrono::seconds kHeldRoom{10};
// How often, and how long, another rank than the coordinator looks for a slot that is about to become free.
constexpr std::chrono::milliseconds kSlotPause{5};
constexpr std::chrono::seconds kSlotPatience{2};

}  // namespace

ShardWriter::ShardWriter(EngineContext& context, SaveTask& task, Callbacks callbacks)
    : context_(context), task_(task), callbacks_(std::move(callbacks)) {}

template <typename... Args>
std::function<void(Args...)> ShardWriter::Later(void (ShardWriter::*then)(Args...)) {
  ++in_flight_;
  return [self = shared_from_this(), then, inbox = context_.inbox](Args... args) {
    inbox->Post([self, then, ... args = std::move(args)]() mutable {
      --self->in_flight_;
      ((*self).*then)(std::move(args)...);
    });
  };
}

bool ShardWriter::Ends(const Status& status) {
  ForgetDamagedKept();
  if (stage_ == Stage::kStopped) {
    callbacks_.quiet();
  } else if (!status.ok()) {
    callbacks_.failed(status);
  } else {
    return false;
  }
  return true;
}

void ShardWriter::Expect(ChunkSource& source, std::shared_ptr<KeptFile> before) {
  source_ = &source;
  const KeptChoice& choice = task_.snapshot().kept();
  if (choice.linked) {
    kept_ = std::move(before);
    kept_->steps.insert(task_.plan().step);
  } else if (choice.compared) {
    kept_ = before;
    comparison_.emplace(task_.snapshot(), std::move(before));
  } else if (choice.confirms) {
    confirmed_ = std::move(before);
  }
}

void ShardWriter::MakeHeader(std::shared_ptr<AttemptFolder> folder) {
  if (!stage_.MoveTo(Stage::kPlanning)) return;
  folder_ = std::move(folder);
  context_.parts.workers->Post([this, self = shared_from_this(), done = Later(&ShardWriter::OnHeader)] {
    const Group& group = *context_.parts.group;
    const auto header_of = [&](bool of_kept) {
      return task_.snapshot().Header(task_.plan().step, folder_->uuid(), static_cast<std::uint64_t>(group.rank()),
                                     context_.parts.options.checksums, of_kept);
    };
    const ShardHeader header = header_of(false);
    // In memory the shard has the length of its slot, and the header what its data leave of that.
    const std::uint64_t data = AlignUp(task_.snapshot().shard_bytes(), kBlock);
    const std::uint64_t slot = context_.parts.in_memory ? std::max(task_.plan().slot_bytes, data) : data;
    const bool indexed = group.rank() == 0 && group.size() > 1;
    auto planned = std::make_shared<Planned>(Planned{.header = ShardHeaderWriter::Make(header, slot - data),
                                                     .index_run = indexed ? EncodeIndexRun(header) : ""});
    if (task_.snapshot().kept_bytes() != 0) {
      const ShardHeader kept = header_of(true);
      planned->kept_header = ShardHeaderWriter::Make(kept);
      if (indexed) planned->kept_index_run = EncodeIndexRun(kept);
    }
    done(std::move(planned));
  });
}

void ShardWriter::OnHeader(std::shared_ptr<Planned> planned) {
  const auto rank = static_cast<std::uint64_t>(context_.parts.group->rank());
  if (Ends(planned->header.status())) return;
  if (planned->kept_header && Ends(planned->kept_header->status())) return;
  if (!stage_.MoveTo(Stage::kReady)) return;
  header_ = *std::move(planned->header);
  index_run_ = std::move(planned->index_run);
  if (planned->kept_header) {
    kept_header_ = *std::move(*planned->kept_header);
    const Snapshot& snapshot = task_.snapshot();
    own_kept_ = std::make_shared<KeptFile>(
        KeptFile{.table = snapshot.shared_table(),
                 .holds = snapshot.kept().holds,
                 .shard = {.file = KeptName(rank, folder_->uuid()),
                           .length = kept_header_->data_begin() + snapshot.kept_bytes(),
                           .kept = KeptOrigin{.rank = rank, .step = task_.plan().step, .attempt = folder_->uuid()}},
                 .index_run = std::move(planned->kept_index_run),
                 .written = task_.plan().sequence});
    if (!comparison_) kept_ = own_kept_;
  }
  MakeAttempt();
}

void ShardWriter::MakeAttempt() {
  AttemptSpec spec{.folder = folder_,
                   .step = task_.plan().step,
                   .shard = static_cast<std::uint64_t>(context_.parts.group->rank()),
                   .file_bytes = header_->data_begin() + task_.snapshot().shard_bytes(),
                   .kept = SpecOfKept(),
                   .pin = task_.plan().pin,
                   .file_mode = context_.parts.options.file_mode,
                   .check_writer = context_.parts.check_writer,
                   // The other ranks wait twice as long for the outcome.
                   .reader_timeout = context_.parts.options.group_timeout / 2,
                   .spare_folders = context_.spare_folders(),
                   .not_recycled = context_.not_recycled,
                   .replaced = context_.parts.in_memory ? context_.spares() : SparePolicy(),
                   // The second time a slot was lost to somebody who has it open, or to a save that failed.
                   .only_spares = context_.parts.in_memory && !tries_again_,
                   .mapped = context_.mapped_files(),
                   .free_bytes = context_.parts.in_memory ? nullptr : &context_.parts.metrics->disk_free};
  attempt_ = std::make_unique<Attempt>(*context_.queue, std::move(spec));
}

std::optional<KeptSpec> ShardWriter::SpecOfKept() {
  if (kept_ == nullptr) return std::nullopt;
  KeptSpec spec{.name = kept_->shard.file, .bytes = kept_->shard.length};
  if (writes_kept()) return spec;
  spec.linked = kept_->fd;
  spec.on_copy = [this](const Status& why) {
    if (std::exchange(context_.told_copied, true)) return;
    context_.Notify({.kind = EventKind::kFallBack,
                     .severity = Severity::kWarning,
                     .step = task_.plan().step,
                     .status = why,
                     .message = fmt::format("step {}: what is frozen was copied on the disk, because it could not be "
                                            "linked: {}. Further copies are not reported",
                                            task_.plan().step, why.message()),
                     .phase = "save",
                     .path = attempt_->kept_path()});
  };
  return spec;
}

void ShardWriter::Begin() {
  made_room_ = context_.makes_room(*this);
  if (stage_ == Stage::kWriting) {
    renewal_ = Renewal::kRunning;
    kept_ = own_kept_;
    return attempt_->RenewKept(*SpecOfKept(), comparison_->Copies(kept_header_->data_begin()),
                               Later(&ShardWriter::OnRenewed));
  }
  if (stage_.MoveTo(Stage::kBeginning)) attempt_->Begin(Later(&ShardWriter::OnBegun));
}

bool ShardWriter::TriesAgain() {
  // Other ranks do not know what rank 0 removes.
  const bool expects = context_.parts.group->size() == 1 && (made_room_ || context_.makes_room(*this));
  if (context_.parts.in_memory && context_.parts.group->rank() != 0 && !tries_again_) {
    if (!slot_by_) slot_by_ = Deadline::In(kSlotPatience);
    tries_again_ = slot_by_->passed();
    awaits_slot_ = awaits_room_ = !tries_again_;
    looks_at_ = Deadline::In(kSlotPause);
    return true;
  }
  if (tries_again_ || (!expects && !context_.parts.in_memory)) return false;
  tries_again_ = true;
  ++context_.parts.metrics->retries;
  awaits_room_ = true;
  held_by_ = Deadline::In(kHeldRoom);
  return true;
}

void ShardWriter::PollRoom() {
  if (awaits_slot_) {
    awaits_slot_ = awaits_room_ = !looks_at_.passed();
  } else if (awaits_room_) {
    awaits_room_ = context_.makes_room(*this);
  }
}

void ShardWriter::OnBegun(Status status) {
  if (status.code() == StatusCode::kNoSpace && stage_ == Stage::kBeginning && TriesAgain()) {
    MakeAttempt();
    static_cast<void>(stage_.MoveTo(Stage::kReady));
    return;
  }
  if (Ends(status)) return;
  if (context_.parts.in_memory) {
    Result<std::shared_ptr<MappedFile>> mapped = attempt_->MapShard();
    if (Ends(mapped.status())) return;
    mapping_ = *std::move(mapped);
  }
  if (!stage_.MoveTo(Stage::kWriting)) return;
  tries_again_ = false;
  callbacks_.begun();
}

void ShardWriter::Add(std::shared_ptr<FilledChunk> chunk) {
  if (!chunk->buffer) return OnChunkWritten(chunk, Status::Ok());  // It is in the file.
  if (!comparison_ || !task_.snapshot().IsKept(chunk->begin)) return ready_.push_back(std::move(chunk));
  if (comparison_->differs()) return AddKept(std::move(chunk));
  source_->Sum(std::move(chunk), [this, self = shared_from_this()](std::shared_ptr<FilledChunk> summed,
                                                                   std::span<const std::uint32_t> sums) {
    OnSummed(std::move(summed), sums);
  });
}

void ShardWriter::OnSummed(std::shared_ptr<FilledChunk> chunk, std::span<const std::uint32_t> sums) {
  if (stage_ == Stage::kStopped) return;
  if (!comparison_->Compare(*chunk, sums)) return AddKept(std::move(chunk));
  written_ += chunk->end - chunk->begin;
  chunk.reset();
  SealIfWritten();
}

void ShardWriter::AddKept(std::shared_ptr<FilledChunk> chunk) {
  if (renewal_ == Renewal::kDone) return ready_.push_back(std::move(chunk));
  if (renewal_ == Renewal::kNone) renewal_ = Renewal::kWanted;
  changed_.push_back(std::move(chunk));
}

void ShardWriter::OnRenewed(Status status) {
  renewal_ = Renewal::kDone;
  const bool full = status.code() == StatusCode::kNoSpace;
  if (full && stage_ == Stage::kWriting && TriesAgain()) {
    renewal_ = Renewal::kWanted;
    return;
  }
  // Else what it was copied from may be damaged.
  if (!status.ok() && !full && context_.kept == comparison_->before()) context_.kept.reset();
  if (Ends(status)) return;
  for (std::shared_ptr<FilledChunk>& chunk : changed_) ready_.push_back(std::move(chunk));
  changed_.clear();
}

void ShardWriter::SubmitWrite() {
  std::shared_ptr<FilledChunk> chunk = std::move(ready_.front());
  ready_.pop_front();
  const auto begun = SaveTask::Clock::now();
  ++in_flight_;
  ++context_.writes_in_flight;
  const Bytes memory(chunk->memory, AlignUp(chunk->end - chunk->begin, kBlock));
  StatusDone done = [this, self = shared_from_this(), chunk, begun](const Status& status) {
    --in_flight_;
    --context_.writes_in_flight;
    context_.parts.trace->Span("disk", "write", begun, SaveTask::Clock::now(), task_.plan().step,
                               chunk->end - chunk->begin);
    OnChunkWritten(chunk, status);
  };
  const Snapshot& snapshot = task_.snapshot();
  if (!snapshot.IsKept(chunk->begin)) {
    return attempt_->Write(header_->data_begin() + chunk->begin, memory, std::move(done));
  }
  attempt_->WriteKept(kept_header_->data_begin() + (chunk->begin - snapshot.kept_begin()), memory, std::move(done));
}

void ShardWriter::OnChunkWritten(const std::shared_ptr<FilledChunk>& chunk, const Status& status) {
  if (Ends(status)) return;
  written_ += chunk->end - chunk->begin;
  task_.Reach(SavePoint::kDataWritten);
  // Only after the write: the header, which holds the checksums, is written last, so the disk need not wait for them.
  // And data that one core has just copied is slower to read from its cache than from memory.
  source_->Sum(chunk);
  SealIfWritten();
}

std::optional<Deadline> ShardWriter::release_by() const {
  if (stage_ == Stage::kHeld) return release_by_;
  return std::nullopt;
}

void ShardWriter::SealIfWritten() {
  if (stage_ != Stage::kWriting && stage_ != Stage::kHeld) return;
  const Snapshot& snapshot = task_.snapshot();
  const bool whole = written_ == snapshot.shard_bytes() + snapshot.kept_bytes();
  std::optional<StreamSums> sums = whole ? source_->sums() : std::nullopt;
  if (!sums) return;
  if (const Status same = CheckUnchanged(*sums); !same.ok()) return callbacks_.failed(same);
  if (stage_ == Stage::kWriting) {
    task_.MarkKept(kept_);
    task_.MarkWritten(attempt_->bytes_written(), attempt_->direct(), attempt_->recycled());
    if (task_.held()) {
      if (!stage_.MoveTo(Stage::kHeld)) return;
      release_by_ = Deadline::In(task_.plan().hold);
    }
  }
  if (task_.held()) return;
  if (!task_.MarkCommitting()) return callbacks_.failed(task_.cancelled().value_or(task_.status()));
  if (!stage_.MoveTo(Stage::kSealing)) return;
  SetSums(*sums);
  // Before the commit: once this save is the newest, nothing else would tell.
  std::optional<PathAt> own;
  if (kept_ != nullptr && kept_->changed) own = folder_->path();  // A save beside this one has found it since.
  if (!own && context_.suspects.empty()) return Seal();
  RunTask(*context_.queue,
          MarkSuspect(context_.parts.root, std::exchange(context_.suspects, {}), std::move(own),
                      context_.parts.options.file_mode),
          Later(&ShardWriter::OnMarked));
}

void ShardWriter::OnMarked(const Status& status) {
  if (!status.ok()) {
    context_.Notify({.severity = Severity::kWarning,
                     .step = task_.plan().step,
                     .status = status,
                     .message = fmt::format("step {}: not all checkpoints whose frozen tensors have changed unseen "
                                            "could be marked as suspect: {}",
                                            task_.plan().step, status.message())});
  }
  if (!Ends(Status::Ok())) Seal();
}

void ShardWriter::Seal() {
  if (context_.parts.group->size() > 1) {
    return attempt_->Seal(std::as_bytes(std::span(header_->bytes())), Later(&ShardWriter::OnSealed));
  }
  shards_ = {shard()};
  if (kept_ != nullptr) shards_.push_back(kept_->shard);
  nonfinite_ = WorstOf(shards_);
  BeginCommit();
}

void ShardWriter::SetSums(const StreamSums& sums) {
  const Snapshot& snapshot = task_.snapshot();
  const std::span<const std::uint32_t> all = sums.checksums;
  const bool checksums = context_.parts.options.checksums;
  if (checksums) header_->SetSums(all.first(DivideUp(snapshot.shard_bytes(), kChecksumBlock)));
  nonfinite_ = sums.nonfinite;
  if (mapping_ != nullptr) sums_.assign(all.begin(), all.end());
  if (!writes_kept()) return;
  if (checksums) {
    const auto of_kept = all.subspan(snapshot.kept_begin() / kChecksumBlock);
    kept_header_->SetSums(of_kept);
    kept_->sums.assign(of_kept.begin(), of_kept.end());
    if (confirmed_ != nullptr) Confirm();
  }
  kept_->shard.header_digest = kept_header_->digest();
  kept_->shard.nonfinite = sums.kept_nonfinite;
  attempt_->SetKeptHeader(std::as_bytes(std::span(kept_header_->bytes())));
}

Status ShardWriter::CheckUnchanged(const StreamSums& sums) const {
  const Snapshot& snapshot = task_.snapshot();
  const std::optional<std::uint64_t> block = snapshot.FindChanged(sums.checksums);
  if (!block) return Status::Ok();
  const std::uint64_t begin = *block * kChecksumBlock;
  return Error(
      StatusCode::kCorrupt,
      "step {}: not written to the disk: bytes {} to {} of the data of {} (\"{}\", or what lies behind it) have "
      "changed in memory since they were kept there",
      task_.plan().step, begin, std::min(begin + kChecksumBlock, snapshot.bytes()),
      ShardName(static_cast<std::uint64_t>(context_.parts.group->rank())), snapshot.NameAt(begin));
}

void ShardWriter::BeginCommit() {
  frozen_ = FrozenIn(shards_, folder_->uuid());
  if (context_.parts.in_memory) {
    return context_.parts.begin_line(task_.plan().line, Later(&ShardWriter::OnLineRecorded));
  }
  context_.line_record.Ensure(*context_.queue, context_.parts.write_line, task_.plan().line,
                              Later(&ShardWriter::OnLineRecorded));
}

void ShardWriter::OnLineRecorded(Status status) {
  if (stage_ == Stage::kStopped || !status.ok()) return OnCommitted(std::move(status));
  const Manifest manifest = MakeManifest(std::move(shards_));
  // In memory the step may have another attempt of before.
  const bool replace = task_.plan().replace || context_.parts.in_memory;
  if (context_.parts.group->size() > 1) {
    return attempt_->Commit(manifest, std::move(index_runs_), replace, Later(&ShardWriter::OnCommitted));
  }
  const Bytes header = std::as_bytes(std::span(header_->bytes()));
  attempt_->SealAndCommit(header, manifest, replace, Later(&ShardWriter::OnCommitted));
}

void ShardWriter::OnSealed(Status status) {
  if (Ends(status)) return;
  if (!stage_.MoveTo(Stage::kSealed)) return;
  task_.Reach(SavePoint::kSealed);
  callbacks_.sealed();
}

ManifestShard ShardWriter::shard() const {
  return {.file = ShardName(static_cast<std::uint64_t>(context_.parts.group->rank())),
          .length = header_->data_begin() + task_.snapshot().shard_bytes(),
          .header_digest = header_->digest(),
          .nonfinite = nonfinite_,
          .long_values = task_.snapshot().has_long_values()};
}

void ShardWriter::Confirm() {
  const auto [differs, before] = std::ranges::mismatch(kept_->sums, confirmed_->sums);
  if (differs == kept_->sums.end()) return;
  const auto block = static_cast<std::uint64_t>(differs - kept_->sums.begin());
  const Snapshot& snapshot = task_.snapshot();
  const std::uint64_t first = confirmed_->shard.kept->step;
  context_.Notify({.severity = Severity::kWarning,
                   .step = task_.plan().step,
                   .message = fmt::format(
                       "step {}: \"{}\", or what lies behind it in {}, is frozen, but has changed since step {}: the "
                       "checkpoints behind that step that have {} hold it as it was then, and are marked as suspect",
                       task_.plan().step, snapshot.NameAt(snapshot.kept_begin() + block * kChecksumBlock),
                       HumanBytes(kChecksumBlock), first, confirmed_->shard.file),
                   .phase = "save"});
  context_.suspects.push_back(
      {.file = confirmed_->shard.file, .writer = confirmed_->shard.kept->attempt, .steps = confirmed_->steps});
  confirmed_->changed = true;
}

std::optional<ManifestShard> ShardWriter::kept_shard() const {
  if (kept_ == nullptr) return std::nullopt;
  return kept_->shard;
}

void ShardWriter::RememberKept() {
  if (kept_ == nullptr || forgets_kept_) return;
  const std::uint64_t sequence = task_.plan().sequence;
  if (kept_->changed) {
    // Unless it has said so itself, before its commit.
    context_.suspects.push_back(
        {.file = kept_->shard.file, .writer = kept_->shard.kept->attempt, .steps = {task_.plan().step}});
  }
  // An older save may be committed after a younger one.
  if (sequence >= kept_->sequence) {
    kept_->fd = attempt_->kept_fd();
    kept_->sequence = sequence;
  }
  // A save beside the one that wrote the newest file may have linked the one before.
  if (context_.kept == nullptr || context_.kept->written < kept_->written) context_.kept = kept_;
}

Manifest ShardWriter::MakeManifest(std::vector<ManifestShard> shards) const {
  const SavePlan& plan = task_.plan();
  const auto world = static_cast<std::uint64_t>(context_.parts.group->size());
  std::vector<std::string> features;
  if (shards.size() > world) features.emplace_back(kKeptFeature);
  if (std::ranges::any_of(shards, &ManifestShard::long_values)) features.emplace_back(kLongValuesFeature);
  return {.required_features = std::move(features),
          .step = plan.step,
          .line = plan.line,
          .root = context_.parts.root_id,
          .attempt = folder_->uuid(),
          .parent = plan.parent,
          .world = world,
          .shards = std::move(shards)};
}

void ShardWriter::Commit(std::vector<ManifestShard> shards, std::vector<std::string> index_runs) {
  if (!stage_.MoveTo(Stage::kCommitting)) return;
  task_.Reach(SavePoint::kAgreed);
  index_runs.at(0) = std::move(index_run_);
  // The kept files follow the shards, this rank's first.
  if (kept_ != nullptr) index_runs.at(static_cast<std::size_t>(context_.parts.group->size())) = kept_->index_run;
  index_runs_ = std::move(index_runs);
  nonfinite_ = WorstOf(shards);
  shards_ = std::move(shards);
  BeginCommit();
}

void ShardWriter::ForgetDamagedKept() {
  if (attempt_ != nullptr && attempt_->kept_failed() && context_.kept == kept_) context_.kept.reset();
}

void ShardWriter::HandOver() {
  if (mapping_ == nullptr) return;
  std::byte* const data = stream();
  task_.snapshot().ReadFrom({std::exchange(mapping_, nullptr), data}, std::move(sums_));
}

void ShardWriter::OnCommitted(Status status) {
  ForgetDamagedKept();
  // It was given up before the rename.
  stage_ == Stage::kStopped ? callbacks_.quiet() : callbacks_.committed(std::move(status));
}

void ShardWriter::Stop() {
  if (!stage_.MoveTo(Stage::kStopped)) return;
  ready_.clear();
  changed_.clear();
}

void ShardWriter::Abandon(const std::shared_ptr<AttemptFolder>& folder, StatusDone done) {
  const StatusDone later = [self = shared_from_this(), folder, inbox = context_.inbox,
                            done = std::move(done)](const Status& status) {
    inbox->Post([self, done, status] {
      --self->in_flight_;
      done(status);
    });
  };
  ++in_flight_;
  if (attempt_ != nullptr) return attempt_->Abandon(later);
  if (folder != nullptr) return RunInBackground(*context_.queue, folder->Remove(), later);
  later(Status::Ok());
}

}  // namespace cairn
