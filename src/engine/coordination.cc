#include "engine/coordination.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "engine/replicas.h"
#include "store/commit.h"

namespace cairn {
namespace {

// The pause between two looks at the disk when messages have stopped; doubled each time.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::seconds kLastPause{1};
// No save takes longer, whatever the disk: a wait that nobody ends must not stay in the group for ever.
constexpr std::chrono::hours kLongestSave{24};
// How many ranks one message names.
constexpr std::size_t kNamedRanks = 16;

std::chrono::nanoseconds Twice(std::chrono::nanoseconds span) {
  return 2 * std::min(span, std::chrono::nanoseconds::max() / 2);
}

}  // namespace

Coordination::Coordination(EngineContext& context, const SavePlan& plan, Callbacks callbacks)
    : context_(context), plan_(plan), callbacks_(std::move(callbacks)), pause_(kFirstPause) {
  if (coordinator()) number_ = plan_.sequence;
}

std::string Coordination::Key(const char* kind) const { return fmt::format("{}/{}", kind, *number_); }

std::string Coordination::Restored() const { return plan_.parent ? plan_.parent->attempt : std::string(); }

template <typename... Args>
std::function<void(Args...)> Coordination::Later(void (Coordination::*then)(Args...)) {
  return [self = shared_from_this(), then, inbox = context_.inbox](Args... args) {
    inbox->Post([self, then, ... args = std::move(args)]() mutable { ((*self).*then)(std::move(args)...); });
  };
}

Deadline Coordination::WriteDeadline() const {
  return Deadline::In(std::max<std::chrono::nanoseconds>(kLongestSave, Twice(context_.parts.options.group_timeout)));
}

bool Coordination::prepared() const {
  return stage_ == Stage::kPrepared || stage_ == Stage::kCommitting || stage_ == Stage::kLooking;
}

void Coordination::Begin() {
  if (*stage_ != Stage::kSilent) return;
  if (!coordinator()) return AwaitAttempt();
  shards_.resize(static_cast<std::size_t>(group().size()));
  if (!alone()) return OpenFolder(MakeUuid(), &AttemptFolder::Make);
  // No other rank waits for the folder: it is made together with the first file.
  NameFolder(MakeUuid());
  if (!stage_.MoveTo(Stage::kNamed)) return;
  callbacks_.named();
}

void Coordination::NameFolder(const std::string& uuid) {
  folder_ = std::make_shared<AttemptFolder>(context_.parts.root, uuid, context_.parts.options.directory_mode);
}

void Coordination::OpenFolder(const std::string& uuid, IoTask<Status> (AttemptFolder::*how)()) {
  NameFolder(uuid);
  if (!stage_.MoveTo(Stage::kEntering)) return;
  RunOpening(how);
}

void Coordination::RunOpening(IoTask<Status> (AttemptFolder::*how)()) {
  RunTask(
      *context_.queue, (*folder_.*how)(),
      [folder = folder_, then = Later(&Coordination::OnFolderOpen)](const Status& status) { then(folder, status); });
}

void Coordination::OnFolderOpen(std::shared_ptr<AttemptFolder> folder, Status status) {
  if (folder != folder_) return;  // Of an earlier attempt.
  if (stage_ == Stage::kFailed) {
    StopWaiting();
    return callbacks_.quiet();
  }
  if (stage_ != Stage::kEntering) return;
  if (!coordinator() && status.code() == StatusCode::kNotFound) {
    OnFolderNotFound();
    if (!late_folder_->expired()) return;
    PreparedMessage missing;  // If rank 0 knows more, it says so in its outcome.
    missing.failure = late_folder_->Missing();
    return AnswerThat(missing, missing.failure);
  }
  if (!status.ok()) {
    NotifyRanksOfFailure(status);
    StopWaiting();
    return callbacks_.failed(std::move(status));
  }
  if (coordinator()) AnnounceAttempt();
  if (!stage_.MoveTo(Stage::kNamed)) return;
  callbacks_.named();
}

void Coordination::StopWaiting() {
  if (!stage_.MoveTo(Stage::kQuiet)) return;
  wakes_at_ = Deadline::Infinite();
}

void Coordination::Detach() {
  if (!stage_.MoveTo(Stage::kDetached)) return;
  wakes_at_ = Deadline::Infinite();
  if (checks_ != nullptr) checks_->Stop();
  // A message that never comes keeps this object alive as long as the group. Do not keep the folder's descriptor too.
  checks_.reset();
  folder_.reset();
}

void Coordination::Prepare(const ManifestShard& shard) {
  if (!stage_.MoveTo(Stage::kPrepared)) return;
  const std::chrono::nanoseconds timeout = context_.parts.options.group_timeout;
  if (coordinator()) {
    wakes_at_ = Deadline::In(timeout);
    shards_[0] = PreparedShard{.shard = shard, .checked = true};  // Sealing has checked it.
    return CommitIfPrepared();
  }
  wakes_at_ = Deadline::In(Twice(timeout));
  group().Send(Key("prepared"), EncodePrepared({.step = plan_.step, .restored = Restored(), .shard = shard}));
}

void Coordination::FailLocally(const Status& why) {
  switch (*stage_) {
    case Stage::kFailed:
    case Stage::kQuiet:
    case Stage::kDetached:
      return;
    default:
      break;
  }
  NotifyRanksOfFailure(why);
  const bool making = coordinator() && stage_ == Stage::kEntering;
  if (!stage_.MoveTo(making ? Stage::kFailed : Stage::kQuiet)) return;
  wakes_at_ = Deadline::Infinite();
}

void Coordination::NotifyRanksOfFailure(const Status& why) {
  if (alone()) return;
  if (!coordinator()) {
    if (stage_ == Stage::kSilent) return context_.line->CallGivenUp(plan_.step, why);
    if (!number_) return context_.line->GiveUp(call_, why);
    const bool spoke = stage_ == Stage::kAnswered || prepared();
    if (!spoke) SendFailure(why);
    return;
  }
  const Status named = Error(why.code(), why.detail(), "rank 0: {}", why.message());
  const bool announced = stage_ != Stage::kSilent && stage_ != Stage::kEntering;
  announced ? group().Announce(Key("outcome"), EncodeOutcome(named))
            : group().Announce(Key("attempt"), EncodeAttempt({.step = plan_.step, .refusal = named}));
}

void Coordination::Close(const Status& why) {
  if (coordinator()) {
    if (stage_ == Stage::kPrepared) FailForAll(why);
    return;
  }
  look_until_ = Deadline::In({});
  may_abort_ = false;
  const bool pauses = stage_ == Stage::kLooking && !wakes_at_.infinite();
  if (stage_ == Stage::kPrepared || pauses) CheckDisk();
}

Deadline Coordination::wakes_at() const {
  const bool checks = checks_ != nullptr && (stage_ == Stage::kNamed || stage_ == Stage::kPrepared);
  return checks ? Deadline::At(std::min(wakes_at_.when(), checks_->wakes_at().when())) : wakes_at_;
}

void Coordination::OnTime() {
  if (!wakes_at().passed()) return;
  if (!wakes_at_.passed()) return checks_->OnTime();
  wakes_at_ = Deadline::Infinite();
  switch (*stage_) {
    case Stage::kPrepared:
      if (coordinator()) return FailForAll(Missing());
      [[fallthrough]];
    case Stage::kAnswered:
      return OnNoOutcome(Error(StatusCode::kDeadlineExceeded, StatusDetail::kRanksMissing,
                               "nothing from rank 0 within group_timeout"));
    case Stage::kEntering:
      return RunOpening(&AttemptFolder::OpenAgain);
    case Stage::kLooking:
      return CheckDisk();
    default:
      return;
  }
}

// The coordinator.

void Coordination::AnnounceAttempt() {
  checks_ = std::make_shared<ShardChecks>(*context_.queue, folder_, context_.parts.options.group_timeout,
                                          [this](const Event& event) { context_.Notify(event); });
  group().Announce(
      Key("attempt"),
      EncodeAttempt({.uuid = folder_->uuid(),
                     .step = plan_.step,
                     .generation = plan_.generation,
                     .parent = plan_.parent,
                     .replace = plan_.replace,
                     .replica_digests = plan_.replicated != nullptr ? plan_.replicated->digest : std::string()}));
  group().Collect(Key("prepared"), WriteDeadline(), Later(&Coordination::OnPrepared),
                  Later(&Coordination::OnCollected));
}

void Coordination::OnPrepared(int rank, std::string text) {
  if (stage_ != Stage::kNamed && stage_ != Stage::kPrepared) return;
  const Status taken = HandlePrepared(rank, text);
  if (!taken.ok()) FailForAll(taken);
}

Status Coordination::HandlePrepared(int rank, const std::string& text) {
  CAIRN_ASSIGN_OR_RETURN(PreparedMessage sent, DecodePrepared(rank, text));
  if (!sent.failure.ok()) {
    // An unknown outcome on that rank is none here: nothing is committed.
    const bool unknown = sent.failure.code() == StatusCode::kUnknownOutcome;
    return Error(unknown ? StatusCode::kInternal : sent.failure.code(), sent.failure.detail(), "rank {}: {}", rank,
                 sent.failure.message());
  }
  if (sent.bucket >= 0) {
    const std::string mine =
        EncodeBucket(plan_.replicated != nullptr ? *plan_.replicated : ReplicatedValues(), sent.bucket);
    return CompareBuckets(plan_.step, mine, rank, sent.texts);
  }
  CAIRN_RETURN_IF_ERROR(CheckSameLine(plan_.step, Restored(), rank, sent.step, sent.restored));
  const auto index = static_cast<std::size_t>(rank);
  context_.line->Heard(rank, plan_.step);
  shards_[index] = PreparedShard{.shard = sent.shard};
  checks_->Add(index, std::move(sent.shard), [index, then = Later(&Coordination::OnChecked)](Result<std::string> run) {
    then(index, std::move(run));
  });
  return Status::Ok();
}

void Coordination::OnChecked(std::size_t rank, Result<std::string> run) {
  if (stage_ != Stage::kNamed && stage_ != Stage::kPrepared) return;
  if (!run.ok())
    return FailForAll(
        Error(run.status().code(), run.status().detail(), "step {}: {}", plan_.step, run.status().message()));
  shards_[rank]->checked = true;
  index_bytes_ += run->size();
  // A larger index is not made, so drop the run.
  if (index_bytes_ <= kMaxIndexBytes) shards_[rank]->index_run = *std::move(run);
  CommitIfPrepared();
}

void Coordination::OnCollected(Status status) {
  if (stage_ != Stage::kNamed && stage_ != Stage::kPrepared) return;
  if (!status.ok()) FailForAll(Error(status.code(), status.detail(), "step {}: {}", plan_.step, status.message()));
}

Status Coordination::Missing() const {
  const bool heard = std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard.has_value(); });
  if (const Status late = checks_->Late(); heard && !late.ok()) {
    return Error(late.code(), "step {}: {}", plan_.step, late.message());
  }
  std::vector<std::size_t> missing;
  for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
    if (!shards_[rank] || (heard && !shards_[rank]->checked)) missing.push_back(rank);
  }
  const std::size_t more = missing.size() - std::min(missing.size(), kNamedRanks);
  missing.resize(missing.size() - more);
  const auto last = context_.line->LastStep(static_cast<int>(missing.front()));
  return Error(StatusCode::kDeadlineExceeded, StatusDetail::kRanksMissing,
               "step {}: {} rank {}{} within group_timeout{}", plan_.step,
               heard ? "rank 0 could not check the shard of" : "nothing from", fmt::join(missing, ", "),
               more == 0 ? "" : fmt::format(" and {} more", more),
               heard || !last ? "" : fmt::format("; the last save of rank {} was of step {}", missing.front(), *last));
}

void Coordination::FailForAll(const Status& why) {
  group().Announce(Key("outcome"), EncodeOutcome(why));
  StopWaiting();
  callbacks_.failed(why);
}

void Coordination::CommitIfPrepared() {
  if (stage_ != Stage::kPrepared) return;
  const bool all =
      std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard && shard->checked; });
  if (!all) return;
  if (!stage_.MoveTo(Stage::kCommitting)) return;
  wakes_at_ = Deadline::Infinite();
  PreparedShards prepared;
  for (std::optional<PreparedShard>& shard : shards_) {
    prepared.shards.push_back(std::move(shard->shard));
    prepared.index_runs.push_back(std::move(shard->index_run));
  }
  callbacks_.commit(std::move(prepared));
}

void Coordination::AnnounceOutcome(const Status& outcome) {
  if (stage_ == Stage::kQuiet) return;  // Announced as unknown, because the disk hung.
  if (!alone()) group().Announce(Key("outcome"), EncodeOutcome(outcome));
  if (!stage_.MoveTo(Stage::kQuiet)) return;
}

// The other ranks.

bool Coordination::OnDiskHangs(const Status& why) {
  if (coordinator() || !prepared()) return false;
  if (stage_ != Stage::kLooking) return true;
  StopWaiting();
  callbacks_.ended(Error(StatusCode::kUnknownOutcome, why.detail(),
                         "step {}: no outcome from the coordinator in time, and {}", plan_.step, why.message()));
  return true;
}

void Coordination::AwaitAttempt() {
  if (!stage_.MoveTo(Stage::kNaming)) return;
  call_ = context_.line->Call(plan_.step, LineCallbacks());
}

SaveLine::Callbacks Coordination::LineCallbacks() {
  return {.joined = [self = shared_from_this()](std::uint64_t number,
                                                const AttemptProposal& attempt) { self->Join(number, attempt); },
          .failed = [self = shared_from_this()](Status why) { self->callbacks_.failed(std::move(why)); }};
}

void Coordination::Join(std::uint64_t number, const AttemptProposal& attempt) {
  number_ = number;
  group().Await(
      Key("outcome"), WriteDeadline(), [self = shared_from_this(), number, inbox = context_.inbox](Heard heard) {
        inbox->Post([self, number, heard = std::move(heard)]() mutable { self->OnOutcome(number, std::move(heard)); });
      });
  const Status same = CheckSameLine(attempt.step, attempt.parent ? attempt.parent->attempt : std::string(),
                                    group().rank(), plan_.step, Restored());
  if (!same.ok()) return callbacks_.failed(same);
  const ReplicatedValues nothing;
  const ReplicatedValues& mine = plan_.replicated != nullptr ? *plan_.replicated : nothing;
  if (const int bucket = FirstDifference(attempt.replica_digests, mine.digest); bucket >= 0) {
    PreparedMessage differs;
    differs.bucket = bucket;
    differs.texts = EncodeBucket(mine, bucket);
    return AnswerThat(differs, Status::Ok());
  }
  OpenFolder(attempt.uuid, &AttemptFolder::Open);
}

void Coordination::AnswerThat(const PreparedMessage& message, const Status& why) {
  if (!stage_.MoveTo(Stage::kAnswered)) return;
  answered_ = why;
  wakes_at_ = Deadline::In(context_.parts.options.group_timeout);
  group().Send(Key("prepared"), EncodePrepared(message));
}

void Coordination::JoinAnother(const Status& why) {
  if (!stage_.MoveTo(Stage::kNaming)) return;
  wakes_at_ = Deadline::Infinite();
  number_.reset();
  folder_.reset();
  late_folder_.reset();
  context_.line->CallAgain(call_, plan_.step, why, LineCallbacks());
}

void Coordination::OnFolderNotFound() {
  if (!late_folder_) {
    late_folder_.emplace(fmt::format("{}, which rank 0 has made,", folder_->path()), group().rank(),
                         context_.parts.options.group_timeout);
  }
  wakes_at_ = late_folder_->NextLook();
  if (const auto event = late_folder_->NotYet()) context_.Notify(*event);
}

void Coordination::SendFailure(const Status& why) {
  PreparedMessage sent;
  sent.failure = why;
  group().Send(Key("prepared"), EncodePrepared(sent));
}

void Coordination::OnOutcome(std::uint64_t number, Heard heard) {
  if (number_ != number) return;  // Of an earlier attempt.
  const bool writes = stage_ == Stage::kEntering || stage_ == Stage::kNamed;
  if (!writes && stage_ != Stage::kAnswered && stage_ != Stage::kPrepared) return;
  if (!heard.ok()) return OnNoOutcome(heard.status());
  const std::optional<Status> outcome = DecodeOutcome(*heard);
  const bool may_be_committed = outcome && (outcome->ok() || outcome->code() == StatusCode::kUnknownOutcome);
  if (!outcome || (may_be_committed && stage_ != Stage::kPrepared)) {
    return OnNoOutcome(Error(StatusCode::kInternal, "unexpected outcome from rank 0: {}", *heard));
  }
  if (may_be_committed) return callbacks_.ended(*outcome);
  // Its only message, so that the coordinator need not wait for it any more.
  if (writes) SendFailure(*outcome);
  const bool begun = stage_ == Stage::kNamed || stage_ == Stage::kPrepared;
  if (!begun && outcome->detail() == StatusDetail::kRanksMissing) return JoinAnother(*outcome);
  StopWaiting();
  callbacks_.failed(*outcome);
}

void Coordination::OnNoOutcome(const Status& why) {
  if (stage_ == Stage::kPrepared) {
    // The coordinator may have received the message anyway, so look at the disk. After the deadline, look once. If the
    // group broke, the coordinator may be about to commit, so keep looking.
    const bool late = why.code() == StatusCode::kDeadlineExceeded;
    look_until_ = Deadline::In(late ? std::chrono::nanoseconds(0) : context_.parts.options.group_timeout);
    return CheckDisk();
  }
  const Status failure = answered_.ok() ? Error(why.code(), why.detail(), "step {}: cannot receive the outcome: {}",
                                                plan_.step, why.message())
                                        : answered_;
  if (stage_ == Stage::kEntering || stage_ == Stage::kNamed) SendFailure(failure);
  StopWaiting();
  callbacks_.failed(failure);
}

void Coordination::CheckDisk() {
  if (stage_ != Stage::kLooking && !stage_.MoveTo(Stage::kLooking)) return;
  wakes_at_ = Deadline::Infinite();
  FindCommitted(*context_.queue, context_.parts.root, plan_.step, folder_->uuid(),
                [then = Later(&Coordination::OnDiskChecked)](const Status& found) { then(found); });
}

void Coordination::OnDiskChecked(Status found) {
  if (stage_ != Stage::kLooking) return;
  if (found.ok()) return callbacks_.ended(std::move(found));
  // Repeat only if it is not there: after a failed fsync, another one would succeed and prove nothing.
  if (found.code() == StatusCode::kNotFound && !look_until_.passed()) {
    const Deadline next = Deadline::In(pause_);
    wakes_at_ = next.when() < look_until_.when() ? next : look_until_;
    pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, kLastPause);
    return;
  }
  const bool late = found.code() == StatusCode::kNotFound && may_abort_;
  if (!late) return OnAborted(std::move(found));
  AbortAttempt(*context_.queue, folder_, plan_.step,
               [then = Later(&Coordination::OnAborted)](const Status& outcome) { then(outcome); });
}

void Coordination::OnAborted(Status outcome) {
  if (stage_ != Stage::kLooking) return;
  if (outcome.ok()) return callbacks_.ended(std::move(outcome));
  if (outcome.code() == StatusCode::kCancelled) {
    StopWaiting();
    return callbacks_.failed(Error(StatusCode::kDeadlineExceeded,
                                   "step {}: no outcome from the coordinator in time, so the attempt was given up: {}",
                                   plan_.step, outcome.message()));
  }
  callbacks_.ended(Error(StatusCode::kUnknownOutcome,
                         "step {}: no outcome from the coordinator in time; on the disk: {}", plan_.step,
                         outcome.message()));
}

}  // namespace cairn
