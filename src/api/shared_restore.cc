#include "api/shared_restore.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/agreement.h"
#include "group/blocking.h"
#include "store/list.h"
#include "store/names.h"

namespace cairn {
namespace {

/// Which of several ranks' statuses counts: that of the least weight.
enum class Weight : std::uint8_t { kEnds, kGone, kDamaged, kRead };

Weight WeightOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return Weight::kRead;
    case StatusCode::kCorrupt:
      return Weight::kDamaged;
    case StatusCode::kNotFound:
      return Weight::kGone;
    default:
      return Weight::kEnds;
  }
}

/// One rank's search for a checkpoint that is undamaged on all of them.
class Search {
 public:
  explicit Search(const SharedRestore& call) : call_(call), damaged_(call.which.damaged()) {}
  [[nodiscard]] Result<Restored> Run();

 private:
  // On rank 0.
  [[nodiscard]] Result<ChoiceWord> Choose();
  [[nodiscard]] Result<ChoiceWord> ChooseNext();
  void ChooseAnew(const Status& gone);
  [[nodiscard]] bool KnownDamaged(const StoredCheckpoint& checkpoint) const;
  [[nodiscard]] Result<VerdictWord> Judge(const ChoiceWord& choice, const Status& own);
  // On the others.
  [[nodiscard]] Result<ChoiceWord> HearChoice();
  [[nodiscard]] Result<VerdictWord> HearVerdict(const ChoiceWord& choice, const Status& own);

  [[nodiscard]] Result<StoredCheckpoint> Find(const ChoiceWord& choice) const;
  [[nodiscard]] Result<Restored> Read(const ChoiceWord& choice) const;
  void PassOver(const ChoiceWord& choice, const VerdictWord& verdict);

  [[nodiscard]] bool chooses() const { return call_.group.rank() == 0; }
  [[nodiscard]] std::string Key(const char* kind) const { return fmt::format("{}/{}/{}", kind, call_.number, round_); }
  [[nodiscard]] Status Named(const VerdictWord& verdict) const;

  const SharedRestore& call_;
  std::uint64_t round_ = 0;
  std::vector<std::string> damaged_;        // Attempts.
  std::vector<std::string> damaged_paths_;  // Of those whose manifests do not tell.
  std::vector<std::string> passed_over_;
  std::optional<Status> first_;  // Why the first was passed over.

  // Rank 0's: what is to be tried, from `next_` on. Empty before the first choice, and where it is to be made anew.
  std::vector<StoredCheckpoint> candidates_;
  std::size_t next_ = 0;
  int times_chosen_ = 0;
  Status gone_;
};

Result<Restored> Search::Run() {
  for (;; ++round_) {
    CAIRN_ASSIGN_OR_RETURN(const ChoiceWord choice, chooses() ? Choose() : HearChoice());
    if (!choice.damage.ok()) {
      PassOver(choice, {.rank = 0, .status = choice.damage});
      continue;
    }
    Result<Restored> own = Read(choice);
    CAIRN_ASSIGN_OR_RETURN(const VerdictWord verdict,
                           chooses() ? Judge(choice, own.status()) : HearVerdict(choice, own.status()));
    switch (WeightOf(verdict.status)) {
      case Weight::kEnds:
        return Named(verdict);
      case Weight::kDamaged:
        PassOver(choice, verdict);
        break;
      case Weight::kGone:
        ChooseAnew(Named(verdict));
        break;
      case Weight::kRead:
        if (own.ok()) own->passed_over = std::move(passed_over_);
        return own;
    }
  }
}

Result<ChoiceWord> Search::Choose() {
  const Result<ChoiceWord> chosen = ChooseNext();
  const std::string word = EncodeChoice(chosen.ok() ? *chosen : ChoiceWord{.end = chosen.status()});
  call_.group.Announce(Key("choice"), word);
  // What it says itself it takes as the others do: cut where a message is long.
  return chosen.ok() ? DecodeChoice(word) : chosen;
}

Result<ChoiceWord> Search::ChooseNext() {
  CAIRN_RETURN_IF_ERROR(call_.readable);
  while (true) {
    if (candidates_.empty()) {
      CAIRN_RETURN_IF_ERROR(PauseBeforeChoice(times_chosen_++, gone_));
      CAIRN_ASSIGN_OR_RETURN(candidates_, ChooseCheckpoints(call_.root, call_.which));
      next_ = 0;
    }
    if (next_ == candidates_.size()) break;
    const StoredCheckpoint& candidate = candidates_[next_++];
    const CheckpointInfo& info = candidate.info;
    if (KnownDamaged(candidate)) {
      if (call_.parts.on_damaged) call_.parts.on_damaged(info);
      continue;
    }
    switch (WeightOf(info.status)) {
      case Weight::kEnds:
        return info.status;
      case Weight::kGone:
        ChooseAnew(info.status);
        break;
      case Weight::kDamaged:
      case Weight::kRead:
        return ChoiceWord{.step = info.step, .attempt = info.attempt, .path = info.path, .damage = info.status};
    }
  }
  if (first_) return *first_;
  return Error(StatusCode::kCorrupt, "{}: known to be damaged, and there is no older one",
               candidates_.front().info.path);
}

void Search::ChooseAnew(const Status& gone) {
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

Result<VerdictWord> Search::Judge(const ChoiceWord& choice, const Status& own) {
  const CollectedWords said = CollectWords(call_.group, Key("read"), Deadline::In(call_.group_deadline));
  VerdictWord verdict{.rank = 0, .status = own};
  for (const auto& [rank, word] : said.words) {
    const std::optional<Status> status = DecodeOutcome(word);
    const VerdictWord its{.rank = status ? rank : 0, .status = status ? *status : NotAWord(rank, word)};
    if (WeightOf(its.status) < WeightOf(verdict.status)) verdict = its;
  }
  if (!said.end.ok() && WeightOf(verdict.status) != Weight::kEnds) {
    verdict = {.rank = 0,
               .status = Error(said.end.code(), "{}: not every rank has said whether it could read it: {}", choice.path,
                               said.end.message())};
  }
  const std::string word = EncodeVerdict(verdict);
  call_.group.Announce(Key("verdict"), word);
  return DecodeVerdict(word);
}

Result<ChoiceWord> Search::HearChoice() {
  const Result<std::string> heard = AwaitWord(call_.group, Key("choice"), Deadline::In(call_.group_deadline));
  if (!heard.ok()) {
    return Error(heard.status().code(), "{}: rank 0 was not heard to choose a checkpoint: {}", call_.root,
                 heard.status().message());
  }
  Result<ChoiceWord> choice = DecodeChoice(*heard);
  if (!choice.ok()) {
    call_.group.Send(Key("read"), EncodeOutcome(choice.status()));
    return choice;
  }
  if (choice->end.ok()) return choice;
  if (choice->end.code() == StatusCode::kCorrupt && first_) return *first_;
  return Named({.rank = 0, .status = choice->end});
}

Result<VerdictWord> Search::HearVerdict(const ChoiceWord& choice, const Status& own) {
  call_.group.Send(Key("read"), EncodeOutcome(own));
  const std::chrono::nanoseconds twice = 2 * std::min(call_.group_deadline, std::chrono::nanoseconds::max() / 2);
  const Result<std::string> heard = AwaitWord(call_.group, Key("verdict"), Deadline::In(twice));
  if (heard.ok()) return DecodeVerdict(*heard);
  return Error(heard.status().code(), "{}: rank 0 was not heard to say whether every rank could read it: {}",
               choice.path, heard.status().message());
}

Result<StoredCheckpoint> Search::Find(const ChoiceWord& choice) const {
  if (chooses()) return candidates_[next_ - 1];
  const std::string& folder = call_.which.folder();
  CAIRN_ASSIGN_OR_RETURN(StoredCheckpoint found,
                         ReadCheckpointFolder(folder.empty() ? call_.root + "/" + StepName(choice.step) : folder));
  if (found.info.attempt == choice.attempt) return found;
  return Error(StatusCode::kNotFound, "{}: expected attempt {}, found {}: it was replaced meanwhile", found.info.path,
               choice.attempt, found.info.attempt);
}

Result<Restored> Search::Read(const ChoiceWord& choice) const {
  CAIRN_RETURN_IF_ERROR(call_.readable);
  CAIRN_ASSIGN_OR_RETURN(const StoredCheckpoint found, Find(choice));
  return RestoreCheckpoint(call_.parts, found, call_.group.rank(), call_.state, call_.options);
}

void Search::PassOver(const ChoiceWord& choice, const VerdictWord& verdict) {
  choice.damage.ok() ? damaged_.push_back(choice.attempt) : damaged_paths_.push_back(choice.path);
  passed_over_.push_back(fmt::format("{}: rank {}: {}", choice.path, verdict.rank, verdict.status.message()));
  if (!first_) first_ = Named(verdict);
  if (!call_.parts.on_damaged) return;
  call_.parts.on_damaged(
      {.step = choice.step, .attempt = choice.attempt, .path = choice.path, .status = choice.damage});
}

Status Search::Named(const VerdictWord& verdict) const {
  if (verdict.rank == call_.group.rank()) return verdict.status;
  return Error(verdict.status.code(), "rank {}: {}", verdict.rank, verdict.status.message());
}

}  // namespace

Result<Restored> RestoreTogether(const SharedRestore& call) { return Search(call).Run(); }

}  // namespace cairn
