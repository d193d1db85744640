#include "api/shared_restore.h"

#include <algorithm>
#include <future>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/human.h"
#include "base/status_macros.h"
#include "engine/agreement.h"
#include "group/blocking.h"
#include "store/late_name.h"
#include "store/list.h"
#include "store/locks.h"

namespace cairn {
namespace {

// Between choices, because the last one was gone: none, then these.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::seconds kLongestPause{1};
// How long a process alone chooses again: longer than NFS caches names.
constexpr std::chrono::minutes kPatienceAlone{1};
constexpr std::chrono::milliseconds kInterruptible{100};
// In planned/, from a rank that has waited for the choice in vain.
constexpr const char* kWithdrawn = "withdrawn";
constexpr const char* kAllCall = ": every rank must restore, within group_timeout";

/// What a status means for the restore. Of several ranks' statuses the first in this order is the verdict.
enum class Verdict : std::uint8_t { kFailed, kGone, kDamaged, kGood };

Verdict VerdictOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return Verdict::kGood;
    case StatusCode::kCorrupt:
      return Verdict::kDamaged;
    case StatusCode::kNotFound:
      return Verdict::kGone;
    default:
      return Verdict::kFailed;
  }
}

std::string Asked(const Selector& selector) {
  const std::string what = !selector.folder().empty() ? "a folder"
                           : selector.step()          ? fmt::format("step {}", *selector.step())
                                                      : "the newest";
  return what + (selector.fall_back() ? " or an older one" : "");
}

std::chrono::nanoseconds Twice(std::chrono::nanoseconds span) {
  return 2 * std::min(span, std::chrono::nanoseconds::max() / 2);
}

/// One rank's search for a checkpoint that is undamaged on all of them.
class Search {
 public:
  explicit Search(const SharedRestore& shared) : shared_(shared) {}
  /// None if the ranks did not meet: see RestoreTogether.
  [[nodiscard]] std::optional<Result<Restored>> Run();

 private:
  // On rank 0.
  [[nodiscard]] Result<ChoiceMessage> Choose();
  [[nodiscard]] Result<ChoiceMessage> ChooseNext();
  [[nodiscard]] Status PauseBeforeChoice();
  void ChooseAgain(const Status& gone);
  [[nodiscard]] Result<VerdictMessage> Judge(const ChoiceMessage& choice, const char* kind, const char* reply);
  // On the other ranks.
  [[nodiscard]] Result<ChoiceMessage> AwaitChoice();
  [[nodiscard]] Result<VerdictMessage> AwaitVerdict(const ChoiceMessage& choice, const char* kind, const char* reply);
  [[nodiscard]] Result<std::string> Await(const std::string& key, std::chrono::nanoseconds timeout);
  [[nodiscard]] Result<StoredCheckpoint> Find(const ChoiceMessage& choice) const;
  [[nodiscard]] Status NotSeen(const ChoiceMessage& choice, const Status& found);

  [[nodiscard]] Status Hold(const StoredCheckpoint& checkpoint);
  [[nodiscard]] Status Plan(const ChoiceMessage& choice);
  [[nodiscard]] Status PlanChosen(const ChoiceMessage& choice);
  [[nodiscard]] Status Read();
  /// The verdict on what this rank's `own_` is one of.
  [[nodiscard]] Result<VerdictMessage> Agree(const ChoiceMessage& choice, const char* kind, const char* reply);
  void PassOver(const ChoiceMessage& choice, const VerdictMessage& verdict);

  [[nodiscard]] int rank() const { return shared_.group.rank(); }
  [[nodiscard]] bool chooses() const { return rank() == 0; }
  [[nodiscard]] bool alone() const { return shared_.group.size() == 1; }
  [[nodiscard]] std::string Key(const char* kind) const { return fmt::format("{}/{}", kind, round_); }
  [[nodiscard]] static Status Cancelled() { return {StatusCode::kCancelled, "the restore was cancelled"}; }
  [[nodiscard]] bool goes_on() const { return !shared_.call.goes_on || shared_.call.goes_on(); }
  /// The answer, or `cancelled` if the caller does not go on.
  template <typename T>
  [[nodiscard]] T WaitFor(std::future<T> answer, T cancelled) const;
  /// The status, beginning with "rank R: " if it is another rank's.
  [[nodiscard]] Status WithRank(const VerdictMessage& verdict) const;

  const SharedRestore& shared_;
  std::uint64_t round_ = 0;
  std::set<std::pair<std::string, std::string>> damaged_;  // Path, attempt; none where the manifest does not verify.
  std::vector<std::string> passed_over_;
  std::optional<Status> first_failure_;  // Why the first was passed over.

  // This rank's part of the round.
  StoredCheckpoint found_;
  std::optional<ReadLock> hold_;
  ReadPlan plan_;
  Restored restored_;
  Status own_;
  // On other ranks: the choice that this one does not see.
  std::string late_attempt_;
  std::optional<LateName> late_;

  // On rank 0: the candidates, tried from `next_` on. Empty before the first choice, and before choosing again.
  std::vector<StoredCheckpoint> candidates_;
  std::size_t next_ = 0;
  Status gone_;
  int times_gone_ = 0;
  std::chrono::steady_clock::time_point gone_since_;
  std::chrono::nanoseconds pause_{};
};

std::optional<Result<Restored>> Search::Run() {
  while (true) {
    round_ = shared_.next_round++;
    CAIRN_ASSIGN_OR_RETURN(const ChoiceMessage choice, chooses() ? Choose() : AwaitChoice());
    own_ = Plan(choice);
    CAIRN_ASSIGN_OR_RETURN(VerdictMessage verdict, Agree(choice, "planned", "begin"));
    if (verdict.again || verdict.missing.find(fmt::format(",{},", rank())) != std::string::npos) return std::nullopt;
    if (verdict.status.ok()) {
      own_ = Read();
      CAIRN_ASSIGN_OR_RETURN(verdict, Agree(choice, "read", "verdict"));
    }
    plan_ = {};
    hold_.reset();
    const Verdict is = VerdictOf(verdict.status);
    if (is == Verdict::kGood) {
      restored_.passed_over = std::move(passed_over_);
      return std::move(restored_);
    }
    if (choice.path.empty() && is == Verdict::kDamaged && first_failure_) return *first_failure_;
    if (choice.path.empty() || is == Verdict::kFailed) return WithRank(verdict);
    if (is == Verdict::kGone) {
      ChooseAgain(WithRank(verdict));
      continue;
    }
    PassOver(choice, verdict);
    if (!shared_.selector.fall_back() && !choice.has_copy) return *first_failure_;
  }
}

Result<ChoiceMessage> Search::Choose() {
  Result<ChoiceMessage> chosen = ChooseNext();
  if (!chosen.ok()) chosen = ChoiceMessage{.refusal = chosen.status()};
  if (alone()) return chosen;
  const std::string message = EncodeChoice(*chosen);
  shared_.group.Announce(Key("choice"), message);
  // Decoded again, so that rank 0 acts on the same message as the others: long texts are cut.
  return chosen->path.empty() ? chosen : DecodeChoice(message);
}

Result<ChoiceMessage> Search::ChooseNext() {
  CAIRN_RETURN_IF_ERROR(shared_.readable);
  while (true) {
    if (candidates_.empty()) {
      CAIRN_RETURN_IF_ERROR(PauseBeforeChoice());
      CAIRN_ASSIGN_OR_RETURN(candidates_, ChooseCheckpoints(shared_.root, shared_.selector, shared_.parts.memory));
      next_ = 0;
    }
    if (next_ == candidates_.size()) return *first_failure_;
    found_ = std::move(candidates_[next_++]);
    const CheckpointInfo& info = found_.info;
    if (damaged_.contains({info.path, info.attempt})) {
      if (shared_.parts.on_damaged) shared_.parts.on_damaged(info);
      continue;
    }
    const Status status = info.status.ok() ? Hold(found_) : info.status;
    switch (VerdictOf(status)) {
      case Verdict::kFailed:
        return status;
      case Verdict::kGone:
        ChooseAgain(status);
        break;
      case Verdict::kDamaged:
      case Verdict::kGood:
        return ChoiceMessage{.asked = Asked(shared_.selector),
                             .step = info.step,
                             .attempt = info.attempt,
                             .path = info.path,
                             .in_memory = shared_.parts.memory.Has(info),
                             .has_copy = next_ < candidates_.size(),
                             .refusal = status};
    }
  }
}

Status Search::PauseBeforeChoice() {
  if (gone_.ok()) return Status::Ok();
  if (times_gone_++ == 0) gone_since_ = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - gone_since_;
  if (waited >= (alone() ? kPatienceAlone : Twice(shared_.group_timeout))) {
    return Error(StatusCode::kFailedPrecondition,
                 "chosen {} times in {}, but each time it was gone or being removed or replaced: {}", times_gone_,
                 HumanDuration(waited), gone_.message());
  }
  for (const Deadline end = Deadline::In(pause_); !end.passed();) {
    if (!goes_on()) return Cancelled();
    std::this_thread::sleep_until(std::min(end.when(), std::chrono::steady_clock::now() + kInterruptible));
  }
  pause_ = std::clamp<std::chrono::nanoseconds>(2 * pause_, kFirstPause, kLongestPause);
  return Status::Ok();
}

void Search::ChooseAgain(const Status& gone) {
  gone_ = gone;
  candidates_.clear();
}

Result<VerdictMessage> Search::Agree(const ChoiceMessage& choice, const char* kind, const char* reply) {
  if (alone()) return VerdictMessage{.rank = 0, .status = own_};
  CAIRN_ASSIGN_OR_RETURN(VerdictMessage verdict,
                         chooses() ? Judge(choice, kind, reply) : AwaitVerdict(choice, kind, reply));
  // Its own in full: long texts are cut.
  if (verdict.rank == rank() && own_.message().starts_with(verdict.status.message())) verdict.status = own_;
  const Verdict own = VerdictOf(own_);
  if (verdict.status.code() == StatusCode::kDeadlineExceeded && (own == Verdict::kGone || own == Verdict::kDamaged)) {
    verdict.status = Error(verdict.status.code(), "{} (on this rank: {})", verdict.status.message(), own_.message());
  }
  return verdict;
}

Result<VerdictMessage> Search::Judge(const ChoiceMessage& choice, const char* kind, const char* reply) {
  const CollectedMessages said =
      WaitFor(CollectMessages(shared_.group, Key(kind), Deadline::In(shared_.group_timeout)), {{}, Cancelled()});
  VerdictMessage verdict{.rank = 0, .status = own_};
  for (const auto& [of, message] : said.messages) {
    if (message == kWithdrawn) {
      verdict.again = true;
      continue;
    }
    const std::optional<Status> status = DecodeOutcome(message);
    const VerdictMessage its{.rank = status ? of : 0, .status = status ? *status : InvalidMessage(of, message)};
    if (VerdictOf(its.status) < VerdictOf(verdict.status)) verdict = {its.rank, its.status, {}, verdict.again};
  }
  const bool late = said.end.code() == StatusCode::kDeadlineExceeded;
  if (!said.end.ok() && VerdictOf(verdict.status) != Verdict::kFailed) {
    verdict.rank = 0;
    verdict.status = Error(said.end.code(), "{}: not every rank has said whether it could read it: {}{}",
                           choice.path.empty() ? shared_.root : choice.path, said.end.message(), late ? kAllCall : "");
  }
  if (late) verdict.missing += ',';
  for (int of = 1; late && of < shared_.group.size(); ++of) {
    if (!said.messages.contains(of)) verdict.missing += fmt::format("{},", of);
  }
  const std::string message = EncodeVerdict(verdict);
  shared_.group.Announce(Key(reply), message);
  return DecodeVerdict(message);
}

Result<ChoiceMessage> Search::AwaitChoice() {
  const Result<std::string> heard = Await(Key("choice"), shared_.group_timeout);
  if (!heard.ok()) {
    shared_.group.Send(Key("planned"), kWithdrawn);
    const StatusCode code = heard.status().code();
    return Error(code, "{}: rank 0 did not say which checkpoint it chose: {}{}", shared_.root, heard.status().message(),
                 code == StatusCode::kDeadlineExceeded ? kAllCall : "");
  }
  Result<ChoiceMessage> choice = DecodeChoice(*heard);
  if (!choice.ok()) shared_.group.Send(Key("planned"), EncodeOutcome(choice.status()));
  return choice;
}

Result<VerdictMessage> Search::AwaitVerdict(const ChoiceMessage& choice, const char* kind, const char* reply) {
  shared_.group.Send(Key(kind), EncodeOutcome(own_));
  const Result<std::string> heard = Await(Key(reply), Twice(shared_.group_timeout));
  Result<VerdictMessage> verdict =
      heard.ok() ? DecodeVerdict(*heard)
                 : Error(heard.status().code(), "{}: rank 0 did not say whether every rank could read it: {}",
                         choice.path, heard.status().message());
  // The others may have begun.
  if (!verdict.ok() && std::string_view(kind) == "planned") {
    shared_.group.Send(Key("read"), EncodeOutcome(verdict.status()));
  }
  return verdict;
}

Result<std::string> Search::Await(const std::string& key, std::chrono::nanoseconds timeout) {
  return WaitFor<Result<std::string>>(AwaitMessage(shared_.group, key, Deadline::In(timeout)), Cancelled());
}

template <typename T>
T Search::WaitFor(std::future<T> answer, T cancelled) const {
  while (answer.wait_for(kInterruptible) != std::future_status::ready) {
    if (!goes_on()) return cancelled;
  }
  return answer.get();
}

Result<StoredCheckpoint> Search::Find(const ChoiceMessage& choice) const {
  if (choice.in_memory && shared_.parts.memory.path.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "memory_root: expected the one of rank 0, which reads {}, found none on rank {}", choice.path, rank());
  }
  const bool in_root = shared_.selector.folder().empty();
  Result<std::vector<StoredCheckpoint>> found = ChooseCheckpoints(
      choice.in_memory ? shared_.parts.memory.path : shared_.root, in_root ? Step(choice.step) : shared_.selector);
  // Rank 0 has read this manifest: one that does not verify here is not there yet, like a folder without one.
  const bool unseen = found.status().code() == StatusCode::kCorrupt;
  if (!found.ok()) return unseen ? Status(StatusCode::kNotFound, found.status().message()) : found.status();
  const CheckpointInfo& info = found->front().info;
  if (info.attempt == choice.attempt) return std::move(found->front());
  return Error(StatusCode::kNotFound, "{}: expected attempt {}, found {}", info.path, choice.attempt, info.attempt);
}

// Gone, or not visible yet: whether rank 0 chooses it again tells.
Status Search::NotSeen(const ChoiceMessage& choice, const Status& found) {
  if (std::exchange(late_attempt_, choice.attempt) != choice.attempt) {
    late_.emplace(fmt::format("{}, which rank 0 has chosen,", choice.path), rank(), shared_.group_timeout);
  }
  static_cast<void>(late_->NextLook());  // Rank 0 paces the rounds.
  if (const auto event = late_->NotYet(); event && shared_.parts.on_event) shared_.parts.on_event(*event);
  return late_->expired() ? late_->Missing(found.message()) : found;
}

Status Search::Hold(const StoredCheckpoint& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(ReadLock lock, ReadLock::Take(checkpoint.info.path));
  hold_.emplace(std::move(lock));
  return Status::Ok();
}

Status Search::Plan(const ChoiceMessage& choice) {
  for (const Status* status : {&choice.refusal, &shared_.readable}) CAIRN_RETURN_IF_ERROR(*status);
  if (const std::string asked = Asked(shared_.selector); !alone() && asked != choice.asked) {
    return Error(StatusCode::kInvalidArgument, "restore: expected {}, as on rank 0; found {}", choice.asked, asked);
  }
  Status planned = PlanChosen(choice);
  return chooses() || planned.code() != StatusCode::kNotFound ? planned : NotSeen(choice, planned);
}

Status Search::PlanChosen(const ChoiceMessage& choice) {
  if (!chooses()) {
    CAIRN_ASSIGN_OR_RETURN(found_, Find(choice));
    CAIRN_RETURN_IF_ERROR(Hold(found_));
  }
  CAIRN_ASSIGN_OR_RETURN(plan_, shared_.call.plan(found_.info));
  return Status::Ok();
}

Status Search::Read() {
  if (plan_.begin) CAIRN_RETURN_IF_ERROR(plan_.begin());
  RestoreParts parts = shared_.parts;
  parts.own_shard = plan_.own_shard;
  parts.values = plan_.values;
  if (plan_.verify) {
    restored_ = {.step = found_.info.step, .attempt = found_.info.attempt};
    return VerifyCheckpoint(parts, found_, plan_.options.progress);
  }
  CAIRN_ASSIGN_OR_RETURN(restored_, RestoreCheckpoint(parts, found_, shared_.rank, plan_.state, plan_.options));
  return plan_.finish ? plan_.finish() : Status::Ok();
}

void Search::PassOver(const ChoiceMessage& choice, const VerdictMessage& verdict) {
  if (!first_failure_) first_failure_ = WithRank(verdict);
  const CheckpointInfo info{
      .step = choice.step, .attempt = choice.attempt, .path = choice.path, .status = choice.refusal};
  damaged_.emplace(info.path, info.attempt);
  if (shared_.parts.on_damaged) shared_.parts.on_damaged(info);
  if (!shared_.selector.fall_back() && !choice.has_copy) return;
  const std::string who = alone() ? "" : fmt::format("rank {}: ", verdict.rank);
  passed_over_.push_back(fmt::format("{}: {}{}", choice.path, who, verdict.status.message()));
  if (!shared_.parts.on_event) return;
  shared_.parts.on_event({.kind = EventKind::kFallBack,
                          .severity = Severity::kWarning,
                          .step = choice.step,
                          .status = verdict.status,
                          .message = "passed over: " + passed_over_.back(),
                          .phase = "restore",
                          .path = choice.path});
}

Status Search::WithRank(const VerdictMessage& verdict) const {
  if (verdict.rank == rank()) return verdict.status;
  return Error(verdict.status.code(), verdict.status.detail(), "rank {}: {}", verdict.rank, verdict.status.message());
}

}  // namespace

Result<Restored> RestoreTogether(const SharedRestore& shared) {
  while (true) {
    if (std::optional<Result<Restored>> restored = Search(shared).Run()) return *std::move(restored);
  }
}

}  // namespace cairn
