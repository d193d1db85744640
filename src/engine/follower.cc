#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/agreement.h"
#include "engine/coordination.h"
#include "engine/replicas.h"
#include "engine/save_line.h"
#include "store/commit.h"
#include "store/late_name.h"

namespace cairn {
namespace {

// The pause between two looks at the disk when messages have stopped; doubled each time.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::seconds kLastPause{1};

class Follower final : public Coordination {
 public:
  Follower(EngineContext& context, const SavePlan& plan, Callbacks callbacks)
      : Coordination(context, plan, std::move(callbacks)) {}

  void Begin() override {
    if (*stage_ != Stage::kSilent || !stage_.MoveTo(Stage::kNaming)) return;
    if (plan_.drain) {
      AwaitOutcome(0);
      return Enter(plan_.attempt);
    }
    call_ = context_.line->Call(plan_.step, LineCallbacks());
  }

  void Prepare(const ManifestShard& shard, const std::optional<ManifestShard>& kept) override {
    if (!stage_.MoveTo(Stage::kPrepared)) return;
    wakes_at_ = Deadline::In(twice_the_timeout());
    group().Send(Key("prepared"),
                 EncodePrepared({.step = plan_.step, .restored = Restored(), .shard = shard, .kept = kept}));
  }

  void FailLocally(const Status& why) override {
    if (over()) return;
    if (stage_ == Stage::kSilent && !plan_.drain) {
      context_.line->CallGivenUp(plan_.step, why);
    } else if (!number_ && !plan_.drain) {
      context_.line->GiveUp(call_, why);
    } else if (stage_ != Stage::kAnswered && !has_written()) {
      SendFailure(why);
    }
    StopWaiting();
  }

  void Close(const Status& /*why*/) override {
    look_until_ = Deadline::In({});
    may_abort_ = false;
    const bool pauses = stage_ == Stage::kLooking && !wakes_at_.infinite();
    if (stage_ == Stage::kPrepared || pauses) CheckDisk();
  }

  [[nodiscard]] bool OnDiskHangs(const Status& why) override {
    if (!has_written()) return false;
    if (stage_ != Stage::kLooking) return true;
    StopWaiting();
    callbacks_.ended(Error(StatusCode::kUnknownOutcome, why.detail(),
                           "step {}: no outcome from the coordinator in time, and {}", plan_.step, why.message()));
    return true;
  }

  void OnTime() override {
    if (!wakes_at_.passed()) return;
    wakes_at_ = Deadline::Infinite();
    switch (*stage_) {
      case Stage::kPrepared:
      case Stage::kAnswered:
        return OnNoOutcome(Error(StatusCode::kDeadlineExceeded, StatusDetail::kRanksMissing,
                                 "nothing from rank 0 within group_timeout"));
      case Stage::kEntering:
        return OpenFolder(&AttemptFolder::OpenAgain);
      case Stage::kLooking:
        return CheckDisk();
      default:
        return;
    }
  }

  [[nodiscard]] bool has_written() const override { return stage_ == Stage::kPrepared || stage_ == Stage::kLooking; }

 private:
  using Heard = Result<std::string>;

  [[nodiscard]] SaveLine::Callbacks LineCallbacks() {
    const auto self = std::static_pointer_cast<Follower>(shared_from_this());
    return {.joined = [self](std::uint64_t number, const AttemptProposal& attempt) { self->Join(number, attempt); },
            .failed = [self](Status why) { self->callbacks_.failed(std::move(why)); },
            .moved = [self] { self->callbacks_.moved(); }};
  }

  void AwaitOutcome(std::uint64_t number) {
    number_ = number;
    group().Await(Key("outcome"), WriteDeadline(),
                  [number, then = Later(&Follower::OnOutcome)](Heard heard) { then(number, std::move(heard)); });
  }

  void Enter(const std::string& attempt) {
    NameFolder(attempt);
    if (stage_.MoveTo(Stage::kEntering)) OpenFolder(&AttemptFolder::Open);
  }

  void Join(std::uint64_t number, const AttemptProposal& attempt) {
    AwaitOutcome(number);
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
    Enter(attempt.uuid);
  }

  void AnswerThat(const PreparedMessage& message, const Status& why) {
    if (!stage_.MoveTo(Stage::kAnswered)) return;
    answered_ = why;
    wakes_at_ = Deadline::In(timeout());
    group().Send(Key("prepared"), EncodePrepared(message));
  }

  void JoinAnother(const Status& why) {
    if (!stage_.MoveTo(Stage::kNaming)) return;
    wakes_at_ = Deadline::Infinite();
    number_.reset();
    folder_.reset();
    late_folder_.reset();
    context_.line->CallAgain(call_, plan_.step, why, LineCallbacks());
  }

  void OnOpened(Status status) override {
    if (stage_ != Stage::kEntering) return;
    if (status.ok()) return StartWriting();
    if (status.code() == StatusCode::kNotFound) return OnFolderNotFound();
    SendFailure(status);
    StopWaiting();
    callbacks_.failed(std::move(status));
  }

  void OnFolderNotFound() {
    if (!late_folder_) {
      // Shorter than rank 0 waits for this rank, so that rank 0 hears the reason.
      late_folder_.emplace(fmt::format("{}, which rank 0 has made,", folder_->path()), group().rank(), timeout() / 2);
    }
    wakes_at_ = late_folder_->NextLook();
    if (const auto event = late_folder_->NotYet()) context_.Notify(*event);
    if (!late_folder_->expired()) return;
    PreparedMessage missing;  // If rank 0 knows more, it says so in its outcome.
    missing.failure = late_folder_->Missing();
    AnswerThat(missing, missing.failure);
  }

  void SendFailure(const Status& why) {
    PreparedMessage sent;
    sent.failure = why;
    group().Send(Key("prepared"), EncodePrepared(sent));
  }

  void OnOutcome(std::uint64_t number, Heard heard) {
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
    if (!begun && !plan_.drain && outcome->detail() == StatusDetail::kRanksMissing) return JoinAnother(*outcome);
    StopWaiting();
    callbacks_.failed(*outcome);
  }

  void OnNoOutcome(const Status& why) {
    if (stage_ == Stage::kPrepared) {
      // The coordinator may have received the message anyway, so look at the disk. After the deadline, look once. If
      // the group broke, the coordinator may be about to commit, so keep looking.
      const bool late = why.code() == StatusCode::kDeadlineExceeded;
      look_until_ = Deadline::In(late ? std::chrono::nanoseconds(0) : timeout());
      return CheckDisk();
    }
    const Status failure = answered_.ok() ? Error(why.code(), why.detail(), "step {}: cannot receive the outcome: {}",
                                                  plan_.step, why.message())
                                          : answered_;
    if (stage_ == Stage::kEntering || stage_ == Stage::kNamed) SendFailure(failure);
    StopWaiting();
    callbacks_.failed(failure);
  }

  void CheckDisk() {
    if (stage_ != Stage::kLooking && !stage_.MoveTo(Stage::kLooking)) return;
    wakes_at_ = Deadline::Infinite();
    FindCommitted(*context_.queue, context_.parts.root, plan_.step, folder_->uuid(),
                  [then = Later(&Follower::OnDiskChecked)](const Status& found) { then(found); });
  }

  void OnDiskChecked(Status found) {
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
                 [then = Later(&Follower::OnAborted)](const Status& outcome) { then(outcome); });
  }

  void OnAborted(Status outcome) {
    if (stage_ != Stage::kLooking) return;
    if (outcome.ok()) return callbacks_.ended(std::move(outcome));
    if (outcome.code() == StatusCode::kCancelled) {
      StopWaiting();
      return callbacks_.failed(
          Error(StatusCode::kDeadlineExceeded,
                "step {}: no outcome from the coordinator in time, so the attempt was given up: {}", plan_.step,
                outcome.message()));
    }
    callbacks_.ended(Error(StatusCode::kUnknownOutcome,
                           "step {}: no outcome from the coordinator in time; on the disk: {}", plan_.step,
                           outcome.message()));
  }

  // The call in the line, and what it has answered unless its values differ.
  std::uint64_t call_ = 0;
  Status answered_;
  // The folder was not found.
  std::optional<LateName> late_folder_;
  // How long and how often to look at the disk. Then the attempt is given up, unless this rank is closing: it may have
  // missed messages.
  Deadline look_until_ = Deadline::Infinite();
  std::chrono::nanoseconds pause_ = kFirstPause;
  bool may_abort_ = true;
};

}  // namespace

std::shared_ptr<Coordination> MakeFollower(EngineContext& context, const SavePlan& plan,
                                           Coordination::Callbacks callbacks) {
  return std::make_shared<Follower>(context, plan, std::move(callbacks));
}

}  // namespace cairn
