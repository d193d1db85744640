#include "engine/save_job.h"

#include <utility>

#include "base/status_macros.h"
#include "store/names.h"
#include "store/paths.h"

namespace cairn {
namespace {

// How long a failure waits for the removal of its attempt before it is told.
constexpr std::chrono::seconds kRemovalPatience{1};

}  // namespace

// The parts call back on this thread, and only while this job holds them.

SaveJob::SaveJob(EngineContext& context, std::shared_ptr<SaveTask> task)
    : context_(context),
      task_(std::move(task)),
      coordination_((context_.parts.group->rank() == 0 ? MakeCoordinator : MakeFollower)(context_, task_->plan(),
                                                                                         CoordinationCallbacks())),
      writer_(std::make_shared<ShardWriter>(context_, *task_, WriterCallbacks())) {}

Coordination::Callbacks SaveJob::CoordinationCallbacks() {
  return {.named = [this] { running() ? MakeHeaderIfNamed() : AbandonIfIdle(); },
          .commit = [this](PreparedShards all) { writer_->Commit(std::move(all.shards), std::move(all.index_runs)); },
          .failed = [this](Status status) { Fail(std::move(status)); },
          .ended = [this](Status status) { End(std::move(status)); },
          .quiet = [this] { AbandonIfIdle(); },
          .moved = [this] { Move(); },
          .bug = [this](Status bug) { OnBug(std::move(bug)); }};
}

ShardWriter::Callbacks SaveJob::WriterCallbacks() {
  return {.begun =
              [this] {
                if (running()) capture_->CopyInto(writer_->stream());
                SealIfWritten();
              },
          .sealed = [this] { OnSealed(); },
          .committed = [this](Status status) { OnCommitted(std::move(status)); },
          .failed = [this](Status status) { Fail(std::move(status)); },
          .quiet = [this] { AbandonIfIdle(); },
          .bug = [this](Status bug) { OnBug(std::move(bug)); }};
}

Capture::Callbacks SaveJob::CaptureCallbacks() {
  return {.filled =
              [this](std::shared_ptr<FilledChunk> chunk) {
                if (running()) writer_->Add(std::move(chunk));
              },
          .failed = [this](Status status) { Fail(std::move(status)); },
          .captured =
              [this] {
                TellCaptured();
                SealIfWritten();
              },
          .summed = [this] { SealIfWritten(); },
          .quiet = [this] { AbandonIfIdle(); },
          .bug = [this](Status bug) { OnBug(std::move(bug)); }};
}

void SaveJob::Start(Status given_up) {
  if (!given_up.ok()) return Fail(std::move(given_up));
  if (!context_.scanning) NameAttempt();
  if (ended()) return;  // It is moved.
  if (task_->snapshot().laid_out()) return OnLaidOut();
  laying_out_ = true;
  if (context_.kept != nullptr && !context_.kept->changed) kept_ = context_.kept;
  // What it replaces, if anything, was surely what its step was: so is what comes instead.
  const bool replaces = kept_ != nullptr && kept_->shard.kept->step == task_->plan().step;
  const bool anew = replaces || task_->plan().sequence % context_.parts.frozen_every == 0;
  context_.parts.workers->Post([self = shared_from_this(), inbox = context_.inbox, anew] {
    Snapshot& snapshot = self->task_->snapshot();
    const std::uint64_t chunk = self->context_.parts.pool->chunk_bytes();
    // In memory all is written, so that one slot is as large as another.
    const bool keeps_frozen = snapshot.table().has_frozen() && !self->context_.parts.in_memory;
    const KeptRules rules{.anew = anew, .checksums = self->context_.parts.options.checksums};
    snapshot.LayOut(chunk, keeps_frozen ? ChooseKept(snapshot.shared_table(), self->kept_.get(), rules) : KeptChoice());
    inbox->Post([self] { self->OnLaidOut(); });
  });
}

void SaveJob::OnLaidOut() {
  laying_out_ = false;
  if (!running()) return AbandonIfIdle();
  if (moves_) return Move();
  capture_ = std::make_shared<Capture>(context_, *task_, CaptureCallbacks());
  writer_->Expect(*capture_, std::move(kept_));
  MakeHeaderIfNamed();
}

void SaveJob::ForgetKept(const TensorTable& targets) {
  if (running() && MayChangeFrozen(task_->snapshot().table(), targets)) writer_->ForgetKept();
}

void SaveJob::MakeHeaderIfNamed() {
  if (capture_ != nullptr && coordination_->named()) writer_->MakeHeader(coordination_->folder());
}

void SaveJob::TellCaptured() {
  if (!running()) return;
  task_->MarkCaptured();
  if (task_->snapshot().copy() != nullptr) return;  // It was captured before.
  context_.Notify({.kind = EventKind::kSaveCaptured,
                   .step = task_->plan().step,
                   .phase = "save",
                   .duration = SaveTask::Clock::now() - task_->begun()});
}

Deadline SaveJob::wakes_at() const {
  const std::optional<Deadline> release_by = running() ? writer_->release_by() : std::nullopt;
  Deadline wake = coordination_->wakes_at();
  if (release_by && release_by->when() < wake.when()) wake = *release_by;
  if (!settled_ && settle_by_.when() < wake.when()) wake = settle_by_;
  if (running() && writer_->polls_room_at().when() < wake.when()) wake = writer_->polls_room_at();
  return wake;
}

void SaveJob::PollRequests() {
  coordination_->OnTime();
  if (running()) writer_->PollRoom();
  if (!settled_ && settle_by_.passed()) {
    settle_by_ = Deadline::Infinite();
    tells_failure_ = true;
    return SettleFailure();
  }
  if (!running() || moves_ || writer_->sealing()) return;
  if (const std::optional<Status> why = task_->cancelled()) return Fail(*why);
  const std::optional<Deadline> release_by = writer_->release_by();
  if (!release_by) return;
  if (!task_->held()) return SealIfWritten();
  if (release_by->passed()) {
    Fail(Error(StatusCode::kDeadlineExceeded, "step {}: written, but its commit was not released within {} s",
               task_->plan().step, std::chrono::duration<double>(task_->plan().hold).count()));
  }
}

void SaveJob::Advance(bool chunks) {
  // Keeps the capture alive: a failure inside may end the save and release it.
  const std::shared_ptr<Capture> capture = capture_;
  if (running() && capture != nullptr) capture->Advance(chunks);
}

void SaveJob::SealIfWritten() {
  if (running()) writer_->SealIfWritten();
}

void SaveJob::OnSealed() {
  if (closing_) return Fail(Closed());
  coordination_->Prepare(writer_->shard(), writer_->kept_shard());
}

void SaveJob::OnCommitted(Status status) {
  if (settled_ && !status.ok() && status.code() != StatusCode::kUnknownOutcome) return Fail(std::move(status));
  if (settled_) return End(std::move(status));
  coordination_->AnnounceOutcome(status);
  if (status.ok() || status.code() == StatusCode::kUnknownOutcome) return End(std::move(status));
  Fail(std::move(status));
}

Status SaveJob::Closed() const {
  return Error(StatusCode::kDeadlineExceeded, "step {}: abandoned: the checkpointer was closed before it was durable",
               task_->plan().step);
}

void SaveJob::Close() {
  if (ended() || std::exchange(closing_, true)) return;
  if (!running()) return AbandonIfIdle();
  writer_->Hurry();
  // Until it has sent its message the save can still fail (see OnSealed); a commit in progress ends by itself.
  writer_->sealing() ? coordination_->Close(Closed()) : Fail(Closed());
}

void SaveJob::Fail(Status status) {
  if (!running()) return AbandonIfIdle();
  if (!stage_.MoveTo(Stage::kFailing)) return;
  failure_ = std::move(status);
  settle_by_ = Deadline::In(kRemovalPatience);
  coordination_->FailLocally(failure_);
  writer_->Stop();
  if (capture_ != nullptr) capture_->Stop();
  AbandonIfIdle();
}

void SaveJob::OnBug(Status bug) {
  context_.Notify({.severity = Severity::kError,
                   .step = task_->plan().step,
                   .status = bug,
                   .message = bug.message(),
                   .phase = "save"});
  if (running()) Fail(std::move(bug));
}

void SaveJob::AbandonIfIdle() {
  if (stage_ != Stage::kFailing || (capture_ != nullptr && !capture_->idle())) return;
  task_->ReleaseTensors(failure_);
  if (tells_failure_) SettleFailure();
  if (laying_out_ || !writer_->idle()) return;
  if (coordination_->idle() || closing_) Abandon();
}

void SaveJob::Abandon() {
  if (!stage_.MoveTo(Stage::kAbandoning)) return;
  writer_->Abandon(coordination_->folder(), [this, self = shared_from_this()](const Status& status) {
    if (!status.ok()) {
      context_.Notify(
          {.severity = Severity::kWarning,
           .step = task_->plan().step,
           .status = status,
           .message = fmt::format("step {}: its abandoned attempt remains until the next sweep", task_->plan().step),
           .phase = "save"});
    }
    End(failure_);
  });
}

void SaveJob::OnDiskHangs(const Status& hangs) {
  if (settled_) return;
  if (!running()) {
    tells_failure_ = true;
    return SettleFailure();
  }
  if (writer_->durable()) return OnRemovalHangs(hangs);
  if (coordination_->OnDiskHangs(hangs)) return;
  const std::uint64_t step = task_->plan().step;
  Status why = Error(hangs.code(), hangs.detail(), "step {}: {}", step, hangs.message());
  if (writer_->GiveUp(why)) {
    tells_failure_ = true;
    return Fail(std::move(why));
  }
  why =
      Error(StatusCode::kUnknownOutcome, hangs.detail(), "step {} may be committed or not: {}", step, hangs.message());
  coordination_->AnnounceOutcome(why);
  Settle(std::move(why));
}

void SaveJob::OnRemovalHangs(const Status& hangs) {
  if (settled_ || !running()) return;
  if (writer_->durable()) {
    coordination_->AnnounceOutcome(Status::Ok());
    return Settle(Status::Ok());
  }
  // It waits for the sweep, or for room.
  if ((context_.scanning && coordination_->folder() == nullptr) || writer_->awaits_room()) OnDiskHangs(hangs);
}

void SaveJob::SettleFailure() {
  if (settled_ || running() || laying_out_ || (capture_ != nullptr && !capture_->idle())) return;
  task_->ReleaseTensors(failure_);
  Settle(failure_);
}

void SaveJob::Move() {
  moves_ = true;
  if (!running() || laying_out_ || !stage_.MoveTo(Stage::kEnded)) return;
  settled_ = true;
  outcome_ = Error(StatusCode::kCancelled, "step {}: goes to the disk", task_->plan().step);
  if (capture_ != nullptr) capture_->Stop();
  capture_.reset();
  writer_.reset();
  coordination_->Detach();
}

Severity SaveJob::SeverityOf(const Status& failure) {
  if (failure.code() == StatusCode::kCancelled) return Severity::kInfo;
  if (!task_->drains()) return Severity::kError;
  // It is kept. If no drain after it fares better, nothing is new.
  if (std::exchange(context_.drains_fail_with, failure.code()) != failure.code()) context_.drains_failed = 0;
  const std::uint64_t before = context_.drains_failed++;
  return before == 0 ? Severity::kError : before == 1 ? Severity::kWarning : Severity::kInfo;
}

void SaveJob::Settle(Status status) {
  settled_ = true;
  if (coordination_->folder() != nullptr) attempt_ = coordination_->folder()->uuid();
  const SavePlan& plan = task_->plan();
  const bool in_memory = context_.parts.in_memory;
  if (status.ok()) {
    context_.drains_failed = 0;
    if (plan.admitted)
      context_.parts.ledger->Committed(plan, coordination_->folder()->uuid(), writer_->nonfinite(), writer_->frozen());
    writer_->RememberKept();
    writer_->HandOver();
    // Another rank cannot tell the coordinator's commit from the agreement before it.
    task_->Reach(context_.parts.ledger != nullptr ? SavePoint::kCommitted : SavePoint::kAgreed);
    const auto took = SaveTask::Clock::now() - task_->begun();
    in_memory ? context_.parts.metrics->kept.Observe(took) : task_->AddPhases(*context_.parts.metrics);
    context_.Notify({.kind = in_memory ? EventKind::kSaveKept : EventKind::kSaveDurable,
                     .step = plan.step,
                     .phase = "save",
                     .duration = took,
                     .path = JoinPath(context_.parts.root, StepName(plan.step)).text()});
  } else {
    if (plan.admitted && status.code() == StatusCode::kUnknownOutcome) {
      context_.parts.ledger->WithdrawUnknown(plan, /*decided=*/stage_ == Stage::kEnded);
    } else if (plan.admitted) {
      context_.parts.ledger->Withdraw(plan);
    }
    if (context_.parts.admitted_by != nullptr && plan.admitted) context_.parts.admitted_by->Withdraw(plan);
    context_.Notify({.kind = EventKind::kSaveFailed,
                     .severity = SeverityOf(status),
                     .step = plan.step,
                     .status = status,
                     .message = status.message(),
                     .phase = "save",
                     .duration = SaveTask::Clock::now() - task_->begun()});
  }
  const auto now = SaveTask::Clock::now();
  context_.parts.trace->Span("saves",
                             !status.ok() ? "failed"
                             : in_memory  ? "kept"
                                          : "durable",
                             task_->begun(), now, plan.step, task_->stats().bytes);
  outcome_ = std::move(status);
}

void SaveJob::End(Status status) {
  if (!stage_.MoveTo(Stage::kEnded)) return;
  if (capture_ != nullptr) capture_->ReleaseStaging();
  if (!settled_) {
    Settle(std::move(status));
  } else if (task_->plan().admitted && outcome_.code() == StatusCode::kUnknownOutcome) {
    context_.parts.ledger->DecideUnknown(task_->plan());
  }
  // Handles may live long; free what they do not need.
  capture_.reset();
  writer_.reset();
  coordination_->Detach();
  // A drain's may be needed again.
  if (!keeps() && !task_->drains()) task_->DropSnapshot();
}

}  // namespace cairn
