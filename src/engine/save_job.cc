#include "engine/save_job.h"

#include <cassert>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "engine/agreement.h"
#include "store/names.h"

namespace cairn {

SaveJob::SaveJob(EngineContext& context, std::shared_ptr<SaveTask> task) : context_(context), task_(std::move(task)) {}

template <typename... Args>
std::function<void(Args...)> SaveJob::Later(void (SaveJob::*then)(Args...)) {
  ++under_way_;
  return [self = shared_from_this(), then, inbox = context_.inbox](Args... args) {
    inbox->Post([self, then, ... args = std::move(args)]() mutable {
      --self->under_way_;
      ((*self).*then)(std::move(args)...);
    });
  };
}

void SaveJob::Gather(const std::string& key, std::string word,
                     void (SaveJob::*then)(Result<std::vector<std::string>>)) {
  ++awaited_;
  context_.parts.group->AllGather(
      key, std::move(word), GroupDeadline(),
      [self = shared_from_this(), then, inbox = context_.inbox](Result<std::vector<std::string>> words) {
        inbox->Post([self, then, words = std::move(words)]() mutable {
          --self->awaited_;
          if (!self->ended_) ((*self).*then)(std::move(words));
        });
      });
}

void SaveJob::Tell(const std::string& key, std::string word) {
  context_.parts.group->AllGather(key, std::move(word), GroupDeadline(), [](const auto&) {});
}

void SaveJob::NameAttempt() {
  if (std::exchange(named_, true)) return;
  const SavePlan& plan = task_->plan();
  const AttemptWord word{.uuid = coordinator() ? MakeUuid() : std::string(),
                         .step = plan.step,
                         .generation = plan.generation,
                         .parent = plan.parent ? plan.parent->attempt : std::string(),
                         .admitted = plan.admitted,
                         .alike = plan.alike != nullptr ? DigestAlike(*plan.alike) : std::string()};
  Gather(fmt::format("attempt/{}", plan.sequence), EncodeAttemptWord(word), &SaveJob::OnAttemptNamed);
}

void SaveJob::Start(Status given_up) {
  if (!context_.sweeping) NameAttempt();
  if (!given_up.ok()) return Fail(std::move(given_up));
  context_.parts.workers->Post([snapshot = &task_->snapshot(), done = Later(&SaveJob::OnLaidOut)] {
    snapshot->LayOut();
    done();
  });
}

void SaveJob::OnLaidOut() {
  if (failing()) return FailIfQuiet();
  laid_out_ = true;
  // The capture calls back on this thread, and only while this job is alive and holds it.
  capture_ = std::make_shared<Capture>(
      context_, *task_,
      Capture::Callbacks{.filled =
                             [this](std::shared_ptr<FilledChunk> chunk) {
                               if (!failing()) ready_.push_back(std::move(chunk));
                             },
                         .failed = [this](Status status) { Fail(std::move(status)); },
                         .captured =
                             [this] {
                               task_->MarkCaptured();
                               context_.Tell({.kind = EventKind::kSaveCaptured, .step = task_->plan().step});
                               SealIfWritten();
                             },
                         .summed = [this] { SealIfWritten(); },
                         .quiet = [this] { FailIfQuiet(); }});
  MakeHeader();
}

void SaveJob::OnAttemptNamed(Result<std::vector<std::string>> named) {
  Result<std::string> uuid = named.ok() ? AgreeOnAttempt(*named) : Result<std::string>(named.status());
  if (const int bucket = uuid.ok() ? FirstDifference(AlikeDigests(*named)) : -1; bucket >= 0) {
    // Every rank knows and none goes on; one that has failed already is still asked what it gave.
    const auto& alike = task_->plan().alike;
    return Gather("alike/" + *uuid, EncodeBucket(alike != nullptr ? *alike : std::vector<Alike>(), bucket),
                  &SaveJob::OnDifference);
  }
  if (uuid.ok()) {
    uuid_ = *uuid;
  } else if (!failing()) {
    return Fail(uuid.status());
  }
  if (failing()) return FailIfQuiet();
  MakeHeader();
}

void SaveJob::OnDifference(Result<std::vector<std::string>> words) {
  if (failing()) return FailIfQuiet();
  Fail(words.ok() ? CompareBuckets(task_->plan().step, *words) : words.status());
}

void SaveJob::MakeHeader() {
  if (!laid_out_ || uuid_.empty()) return;
  context_.parts.workers->Post([this, self = shared_from_this(), done = Later(&SaveJob::OnHeader)] {
    done(std::make_shared<Result<ShardHeaderWriter>>(ShardHeaderWriter::Make(
        task_->snapshot().Header(task_->plan().step, uuid_, static_cast<std::uint64_t>(context_.parts.group->rank()),
                                 context_.parts.options.checksums))));
  });
}

void SaveJob::OnHeader(std::shared_ptr<Result<ShardHeaderWriter>> header) {
  if (failing()) return FailIfQuiet();
  if (!header->ok()) return Fail(header->status());
  header_ = *std::move(*header);
  attempt_ = Attempt::Make(*context_.queue, {.root = context_.parts.root,
                                             .step = task_->plan().step,
                                             .uuid = uuid_,
                                             .shard = static_cast<std::uint64_t>(context_.parts.group->rank()),
                                             .file_bytes = header_->data_begin() + task_->snapshot().bytes(),
                                             .file_mode = context_.parts.options.file_mode,
                                             .directory_mode = context_.parts.options.directory_mode,
                                             .spare_folders = context_.spare_folders(),
                                             .not_recycled = context_.not_recycled});
}

void SaveJob::Begin() {
  begins_ = true;
  attempt_->Begin(Later(&SaveJob::OnBegun));
}

void SaveJob::OnBegun(Status status) {
  begins_ = false;
  if (failing()) return FailIfQuiet();
  if (!status.ok()) return Fail(std::move(status));
  begun_ = true;
  SealIfWritten();
}

void SaveJob::TakeWord() {
  if (failing() || sealing_) return;
  if (const std::optional<Status> why = task_->cancelled()) return Fail(*why);
  if (!release_by_) return;
  if (!task_->held()) return SealIfWritten();
  if (release_by_->passed()) {
    Fail(Error(StatusCode::kDeadlineExceeded, "step {}: written, but not released to be committed within {} s",
               task_->plan().step, std::chrono::duration<double>(task_->plan().hold).count()));
  }
}

void SaveJob::Advance(bool chunks) {
  // Held here: a failure may end the save, and let go of its capture, from within.
  const std::shared_ptr<Capture> capture = capture_;
  if (!failing() && capture != nullptr) capture->Advance(chunks);
}

void SaveJob::SubmitWrite() {
  std::shared_ptr<FilledChunk> chunk = std::move(ready_.front());
  ready_.pop_front();
  const auto begun = SaveTask::Clock::now();
  ++under_way_;
  ++context_.writes_under_way;
  const std::uint64_t offset = header_->data_begin() + chunk->begin;
  const Bytes memory(chunk->buffer.data(), AlignUp(chunk->end - chunk->begin, kBlock));
  attempt_->Write(offset, memory, [this, self = shared_from_this(), chunk, begun](const Status& status) {
    --under_way_;
    --context_.writes_under_way;
    context_.parts.trace->Span("disk", "write", begun, SaveTask::Clock::now(), task_->plan().step,
                               chunk->end - chunk->begin);
    OnChunkWritten(chunk, status);
  });
}

void SaveJob::OnChunkWritten(const std::shared_ptr<FilledChunk>& chunk, const Status& status) {
  if (failing()) return FailIfQuiet();
  if (!status.ok()) return Fail(status);
  written_ += chunk->end - chunk->begin;
  // Only now: the sums stand in the header, which is written last, and the disk need not wait for them. What a core has
  // just read also comes slower out of its cache than out of the memory, where another core does the disk's reading.
  capture_->Sum(chunk);
  SealIfWritten();
}

void SaveJob::SealIfWritten() {
  if (sealing_ || !begun_ || failing() || !task_->captured() || written_ != task_->snapshot().bytes()) return;
  if (capture_->sums()) return;
  if (!release_by_) task_->MarkWritten(attempt_->bytes_written(), attempt_->direct(), attempt_->recycled());
  if (task_->held()) {
    if (!release_by_) release_by_ = Deadline::In(task_->plan().hold);
    return;
  }
  release_by_.reset();
  if (!task_->MarkCommitting()) return Fail(*task_->cancelled());
  sealing_ = true;
  if (context_.parts.options.checksums) header_->SetSums(capture_->checksums());
  const Bytes header = std::as_bytes(std::span(header_->bytes()));
  if (context_.parts.group->size() > 1) return attempt_->Seal(header, Later(&SaveJob::OnSealed));
  attempt_->SealAndCommit(header, MakeManifest({MyShard()}), task_->plan().replace, Later(&SaveJob::OnCommitted));
}

ManifestShard SaveJob::MyShard() const {
  return {.file = ShardName(static_cast<std::uint64_t>(context_.parts.group->rank())),
          .length = header_->data_begin() + task_->snapshot().bytes(),
          .header_digest = header_->digest()};
}

Manifest SaveJob::MakeManifest(std::vector<ManifestShard> shards) const {
  const SavePlan& plan = task_->plan();
  const std::size_t world = shards.size();
  return {.step = plan.step,
          .generation = plan.generation,
          .attempt = uuid_,
          .parent = plan.parent,
          .world = world,
          .shards = std::move(shards)};
}

void SaveJob::OnSealed(Status status) {
  if (failing()) return FailIfQuiet();
  if (status.ok() && closing_) status = Closed();
  if (!status.ok()) return Fail(std::move(status));
  agreed_ = true;
  Gather("prepared/" + uuid_, EncodePrepared(MyShard()), &SaveJob::OnPrepared);
}

void SaveJob::OnPrepared(Result<std::vector<std::string>> prepared) {
  if (failing()) return FailIfQuiet();
  if (looking_) return;
  // The coordinator may have heard all the same: the disk knows, or nobody.
  if (!prepared.ok() && !coordinator()) return LookUp();
  Result<std::vector<ManifestShard>> shards =
      prepared.ok() ? AgreeOnShards(*prepared) : Result<std::vector<ManifestShard>>(prepared.status());
  if (!shards.ok()) {
    if (coordinator() && !prepared.ok()) {
      // Others may have heard from all ranks and wait for the outcome.
      Tell("outcome/" + uuid_, EncodeOutcome(shards.status()));
    }
    return Fail(shards.status());
  }
  if (coordinator()) {
    return attempt_->Commit(MakeManifest(*std::move(shards)), task_->plan().replace, Later(&SaveJob::OnCommitted));
  }
  Gather("outcome/" + uuid_, "", &SaveJob::OnOutcome);
}

void SaveJob::OnCommitted(Status status) {
  if (context_.parts.group->size() > 1) Tell("outcome/" + uuid_, EncodeOutcome(status));
  if (status.ok() || status.code() == StatusCode::kUnknownOutcome) return End(std::move(status));
  Fail(std::move(status));
}

void SaveJob::OnOutcome(Result<std::vector<std::string>> outcome) {
  if (looking_) return;
  if (!outcome.ok()) return LookUp();
  Status status = DecodeOutcome(outcome->front());
  if (status.ok() || status.code() == StatusCode::kUnknownOutcome) return End(std::move(status));
  Fail(std::move(status));
}

void SaveJob::LookUp() {
  looking_ = true;
  FindCommitted(*context_.queue, context_.parts.root, task_->plan().step, uuid_, Later(&SaveJob::OnLookedUp));
}

void SaveJob::OnLookedUp(Status status) {
  if (status.ok()) return End(Status::Ok());
  // Not there yet says nothing: the coordinator may be about to commit. The attempt's files are left to it.
  End(Error(StatusCode::kUnknownOutcome, "step {}: the coordinator was not heard in time, and on disk: {}",
            task_->plan().step, status.message()));
}

void SaveJob::OnDeviceLost(const Device& device, const Status& status) {
  const std::shared_ptr<Capture> capture = capture_;
  if (capture != nullptr) capture->OnDeviceLost(device, status);
}

Status SaveJob::Closed() const {
  return Error(StatusCode::kDeadlineExceeded, "step {}: abandoned, the checkpointer was closed before it was durable",
               task_->plan().step);
}

void SaveJob::Close() {
  if (ended_ || std::exchange(closing_, true)) return;
  if (failing()) return FailIfQuiet();
  if (!sealing_) return Fail(Closed());
  // Before it has given its word the save can fail yet (see OnSealed), and once the commit runs it will end.
  if (!agreed_ || looking_ || awaited_ == 0) return;
  if (!coordinator()) return LookUp();
  // All the others can do without the coordinator's commit is wait for it.
  Tell("outcome/" + uuid_, EncodeOutcome(Closed()));
  Fail(Closed());
}

void SaveJob::Fail(Status status) {
  assert(!failing());
  NameAttempt();
  failure_ = std::move(status);
  ready_.clear();
  if (capture_ != nullptr) capture_->Stop();
  FailIfQuiet();
}

void SaveJob::FailIfQuiet() {
  if (ended_ || (capture_ != nullptr && !capture_->idle())) return;
  task_->LetGo(failure_);
  if (under_way_ != 0) return;
  const bool others_wait = context_.parts.group->size() > 1 && !agreed_ && !uuid_.empty();
  if (others_wait && !std::exchange(told_, true)) {
    Gather("prepared/" + uuid_, EncodeFailure(failure_), &SaveJob::OnFailureTold);
  }
  // The others may be making the attempt's folder still: it is not removed under their hands.
  if (awaited_ != 0 && !closing_) return;
  if (attempt_ != nullptr) return attempt_->Abandon(Later(&SaveJob::OnAbandoned));
  End(failure_);
}

void SaveJob::OnFailureTold(Result<std::vector<std::string>> /*prepared*/) { FailIfQuiet(); }

void SaveJob::OnAbandoned(Status status) {
  if (!status.ok()) {
    context_.Tell(
        {.severity = Severity::kWarning,
         .status = status,
         .message = fmt::format("step {}: its abandoned attempt is left for the next sweep", task_->plan().step)});
  }
  End(failure_);
}

void SaveJob::End(Status status) {
  assert(!ended_);
  ended_ = true;
  if (capture_ != nullptr) capture_->ReleaseStaging();
  const SavePlan& plan = task_->plan();
  if (status.ok()) {
    context_.parts.ledger->Committed(plan, uuid_);
    context_.Tell({.kind = EventKind::kSaveDurable, .step = plan.step});
  } else {
    if (plan.admitted && status.code() == StatusCode::kUnknownOutcome) {
      context_.parts.ledger->WithdrawUnknown(plan);
    } else if (plan.admitted) {
      context_.parts.ledger->Withdraw(plan);
    }
    const bool wanted = status.code() == StatusCode::kCancelled;
    context_.Tell({.kind = EventKind::kSaveFailed,
                   .severity = wanted ? Severity::kInfo : Severity::kError,
                   .step = plan.step,
                   .status = status,
                   .message = status.message()});
  }
  const auto now = SaveTask::Clock::now();
  context_.parts.trace->Span("saves", status.ok() ? "durable" : "failed", task_->begun(), now, plan.step,
                             task_->stats().bytes);
  // Handles may live long; what describes the tensors need not.
  capture_.reset();
  attempt_.reset();
  header_.reset();
  task_->DropSnapshot();
  outcome_ = std::move(status);
}

}  // namespace cairn
