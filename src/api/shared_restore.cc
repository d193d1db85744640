#include "api/shared_restore.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/agreement.h"
#include "group/blocking.h"
#include "store/late_name.h"
#include "store/list.h"

namespace cairn {
namespace {

/// What a status means for the restore. Of several ranks' statuses the first in this order is the verdict.
enum class Verdict : std::uint8_t { kFailed, kGone, kDamaged, kRead };

Verdict VerdictOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return Verdict::kRead;
    case StatusCode::kCorrupt:
      return Verdict::kDamaged;
    case StatusCode::kNotFound:
      return Verdict::kGone;
    default:
      return Verdict::kFailed;
  }
}

/// One rank's search for a checkpoint that is undamaged on all of them.
class Search {
 public:
  explicit Search(const SharedRestore& call) : call_(call) {}
  [[nodiscard]] Result<Restored> Run();

 private:
  // On rank 0.
  [[nodiscard]] Result<ChoiceMessage> Choose();
  [[nodiscard]] Result<ChoiceMessage> ChooseNext();
  void PauseForLateRank(const ChoiceMessage& choice);
  void ChooseAgain(const Status& gone);
  [[nodiscard]] bool KnownDamaged(const StoredCheckpoint& checkpoint) const;
  [[nodiscard]] Result<VerdictMessage> Judge(const ChoiceMessage& choice, const Status& own);
  // On the other ranks.
  [[nodiscard]] Result<ChoiceMessage> AwaitChoice();
  [[nodiscard]] Result<VerdictMessage> AwaitVerdict(const ChoiceMessage& choice, const Status& own);

  [[nodiscard]] Result<StoredCheckpoint> Find(const ChoiceMessage& choice) const;
  [[nodiscard]] Status NotSeen(const ChoiceMessage& choice, const Status& found);
  [[nodiscard]] Result<Restored> Read(const ChoiceMessage& choice);
  void PassOver(const ChoiceMessage& choice, const VerdictMessage& verdict);

  [[nodiscard]] bool chooses() const { return call_.group.rank() == 0; }
  [[nodiscard]] std::string Key(const char* kind) const { return fmt::format("{}/{}/{}", kind, call_.number, round_); }
  /// The status, beginning with "rank R: " if it is another rank's.
  [[nodiscard]] Status WithRank(const VerdictMessage& verdict) const;

  const SharedRestore& call_;
  std::uint64_t round_ = 0;
  std::vector<std::string> damaged_;        // Attempts.
  std::vector<std::string> damaged_paths_;  // Of those whose manifests do not verify.
  std::vector<std::string> passed_over_;
  std::optional<Status> first_failure_;  // Why the first was passed over.

  // This rank's part of the last choice: in a further round with the same one it is not read again.
  std::string read_attempt_;
  Result<Restored> read_ = Status();
  // On other ranks: the choice that this one does not see. On rank 0: the choice that another rank does not see.
  std::string late_attempt_;
  std::optional<LateName> late_;

  // On rank 0: the candidates, tried from `next_` on. Empty before the first choice, and before choosing again.
  std::vector<StoredCheckpoint> candidates_;
  std::size_t next_ = 0;
  int times_chosen_ = 0;
  Status gone_;
};

Result<Restored> Search::Run() {
  for (;; ++round_) {
    CAIRN_ASSIGN_OR_RETURN(const ChoiceMessage choice, chooses() ? Choose() : AwaitChoice());
    if (!choice.damage.ok()) {
      PassOver(choice, {.rank = 0, .status = choice.damage});
      continue;
    }
    if (read_attempt_ != choice.attempt || !read_.ok()) read_ = Read(choice);
    read_attempt_ = choice.attempt;
    const Status& own = read_.status();
    CAIRN_ASSIGN_OR_RETURN(const VerdictMessage verdict, chooses() ? Judge(choice, own) : AwaitVerdict(choice, own));
    switch (VerdictOf(verdict.status)) {
      case Verdict::kFailed:
        return WithRank(verdict);
      case Verdict::kDamaged:
        PassOver(choice, verdict);
        break;
      case Verdict::kGone:
        if (chooses() && own.ok()) PauseForLateRank(choice);
        ChooseAgain(WithRank(verdict));
        break;
      case Verdict::kRead:
        if (own.ok()) read_->passed_over = std::move(passed_over_);
        return std::move(read_);
    }
  }
}

Result<ChoiceMessage> Search::Choose() {
  const Result<ChoiceMessage> chosen = ChooseNext();
  const std::string message = EncodeChoice(chosen.ok() ? *chosen : ChoiceMessage{.end = chosen.status()});
  call_.group.Announce(Key("choice"), message);
  // Decoded again, so that rank 0 acts on the same message as the others: long texts are cut.
  return chosen.ok() ? DecodeChoice(message) : chosen;
}

Result<ChoiceMessage> Search::ChooseNext() {
  CAIRN_RETURN_IF_ERROR(call_.readable);
  while (true) {
    if (candidates_.empty()) {
      CAIRN_RETURN_IF_ERROR(PauseBeforeChoice(times_chosen_++, gone_));
      CAIRN_ASSIGN_OR_RETURN(candidates_, ChooseCheckpoints(call_.root, call_.selector));
      next_ = 0;
    }
    if (next_ == candidates_.size()) break;
    const StoredCheckpoint& candidate = candidates_[next_++];
    const CheckpointInfo& info = candidate.info;
    if (KnownDamaged(candidate)) {
      if (call_.parts.on_damaged) call_.parts.on_damaged(info);
      continue;
    }
    switch (VerdictOf(info.status)) {
      case Verdict::kFailed:
        return info.status;
      case Verdict::kGone:
        ChooseAgain(info.status);
        break;
      case Verdict::kDamaged:
      case Verdict::kRead:
        return ChoiceMessage{.step = info.step, .attempt = info.attempt, .path = info.path, .damage = info.status};
    }
  }
  if (first_failure_) return *first_failure_;
  return Error(StatusCode::kCorrupt, "{}: known to be damaged, and there is no older one",
               candidates_.front().info.path);
}

// The other rank ends this once it has looked for long enough.
void Search::PauseForLateRank(const ChoiceMessage& choice) {
  if (std::exchange(late_attempt_, choice.attempt) != choice.attempt) {
    late_.emplace(choice.path, /*rank=*/0, std::chrono::nanoseconds::max());
  } else {
    --times_chosen_;
  }
  std::this_thread::sleep_until(late_->NextLook().when());
}

void Search::ChooseAgain(const Status& gone) {
  gone_ = gone;
  candidates_.clear();
}

bool Search::KnownDamaged(const StoredCheckpoint& checkpoint) const {
  const auto among = [](const std::vector<std::string>& known, const std::string& one) {
    return std::find(known.begin(), known.end(), one) != known.end();
  };
  return checkpoint.info.status.ok() ? among(damaged_, checkpoint.info.attempt)
                                     : among(damaged_paths_, checkpoint.info.path);
}

Result<VerdictMessage> Search::Judge(const ChoiceMessage& choice, const Status& own) {
  const CollectedMessages said = CollectMessages(call_.group, Key("read"), Deadline::In(call_.group_timeout));
  VerdictMessage verdict{.rank = 0, .status = own};
  for (const auto& [rank, message] : said.messages) {
    const std::optional<Status> status = DecodeOutcome(message);
    const VerdictMessage its{.rank = status ? rank : 0, .status = status ? *status : InvalidMessage(rank, message)};
    if (VerdictOf(its.status) < VerdictOf(verdict.status)) verdict = its;
  }
  if (!said.end.ok() && VerdictOf(verdict.status) != Verdict::kFailed) {
    verdict = {.rank = 0,
               .status = Error(said.end.code(), "{}: not every rank has said whether it could read it: {}", choice.path,
                               said.end.message())};
  }
  const std::string message = EncodeVerdict(verdict);
  call_.group.Announce(Key("verdict"), message);
  return DecodeVerdict(message);
}

Result<ChoiceMessage> Search::AwaitChoice() {
  const Result<std::string> heard = AwaitMessage(call_.group, Key("choice"), Deadline::In(call_.group_timeout));
  if (!heard.ok()) {
    return Error(heard.status().code(), "{}: rank 0 did not say which checkpoint it chose: {}", call_.root,
                 heard.status().message());
  }
  Result<ChoiceMessage> choice = DecodeChoice(*heard);
  if (!choice.ok()) {
    call_.group.Send(Key("read"), EncodeOutcome(choice.status()));
    return choice;
  }
  if (choice->end.ok()) return choice;
  if (choice->end.code() == StatusCode::kCorrupt && first_failure_) return *first_failure_;
  return WithRank({.rank = 0, .status = choice->end});
}

Result<VerdictMessage> Search::AwaitVerdict(const ChoiceMessage& choice, const Status& own) {
  call_.group.Send(Key("read"), EncodeOutcome(own));
  const std::chrono::nanoseconds twice = 2 * std::min(call_.group_timeout, std::chrono::nanoseconds::max() / 2);
  const Result<std::string> heard = AwaitMessage(call_.group, Key("verdict"), Deadline::In(twice));
  if (heard.ok()) return DecodeVerdict(*heard);
  return Error(heard.status().code(), "{}: rank 0 did not say whether every rank could read it: {}", choice.path,
               heard.status().message());
}

Result<StoredCheckpoint> Search::Find(const ChoiceMessage& choice) const {
  if (chooses()) return candidates_[next_ - 1];
  const bool in_root = call_.selector.folder().empty();
  Result<std::vector<StoredCheckpoint>> found =
      ChooseCheckpoints(call_.root, in_root ? Step(choice.step) : call_.selector);
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
    late_.emplace(fmt::format("{}, which rank 0 has chosen,", choice.path), call_.group.rank(), call_.group_timeout);
  }
  static_cast<void>(late_->NextLook());  // Rank 0 paces the rounds.
  if (const auto event = late_->NotYet(); event && call_.parts.on_event) call_.parts.on_event(*event);
  return late_->expired() ? late_->Missing(found.message()) : found;
}

Result<Restored> Search::Read(const ChoiceMessage& choice) {
  CAIRN_RETURN_IF_ERROR(call_.readable);
  const Result<StoredCheckpoint> found = Find(choice);
  Result<Restored> read = found.ok()
                              ? RestoreCheckpoint(call_.parts, *found, call_.group.rank(), call_.state, call_.options)
                              : found.status();
  if (chooses() || read.status().code() != StatusCode::kNotFound) return read;
  return NotSeen(choice, read.status());
}

void Search::PassOver(const ChoiceMessage& choice, const VerdictMessage& verdict) {
  choice.damage.ok() ? damaged_.push_back(choice.attempt) : damaged_paths_.push_back(choice.path);
  passed_over_.push_back(fmt::format("{}: rank {}: {}", choice.path, verdict.rank, verdict.status.message()));
  if (!first_failure_) first_failure_ = WithRank(verdict);
  if (!call_.parts.on_damaged) return;
  call_.parts.on_damaged(
      {.step = choice.step, .attempt = choice.attempt, .path = choice.path, .status = choice.damage});
}

Status Search::WithRank(const VerdictMessage& verdict) const {
  if (verdict.rank == call_.group.rank()) return verdict.status;
  return Error(verdict.status.code(), verdict.status.detail(), "rank {}: {}", verdict.rank, verdict.status.message());
}

}  // namespace

Result<Restored> RestoreTogether(const SharedRestore& call) { return Search(call).Run(); }

}  // namespace cairn
