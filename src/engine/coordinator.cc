#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "engine/agreement.h"
#include "engine/coordination.h"
#include "engine/replicas.h"
#include "engine/save_line.h"
#include "store/shard_check.h"

namespace cairn {
namespace {

// How many ranks one message names.
constexpr std::size_t kNamedRanks = 16;

class Coordinator final : public Coordination {
 public:
  Coordinator(EngineContext& context, const SavePlan& plan, Callbacks callbacks)
      : Coordination(context, plan, std::move(callbacks)),
        shards_(static_cast<std::size_t>(group().size())),
        kept_(shards_.size()) {
    if (!alone()) number_ = plan.drain ? 0 : context.line->NextNumber();
  }

  void Begin() override {
    if (*stage_ != Stage::kSilent) return;
    NameFolder(plan_.attempt.empty() ? MakeUuid() : plan_.attempt);
    // No other rank waits for the folder: it is made together with the first file.
    if (alone()) return StartWriting();
    if (stage_.MoveTo(Stage::kEntering)) OpenFolder(&AttemptFolder::Make);
  }

  void Prepare(const ManifestShard& shard, const std::optional<ManifestShard>& kept) override {
    if (!stage_.MoveTo(Stage::kPrepared)) return;
    wakes_at_ = Deadline::In(timeout());
    shards_[0] = PreparedShard{.shard = shard, .checked = true};  // Sealing has checked them.
    if (kept) kept_[0] = PreparedShard{.shard = *kept, .checked = true};
    CommitIfPrepared();
  }

  void AnnounceOutcome(const Status& outcome) override {
    if (stage_ == Stage::kQuiet) return;  // Announced as unknown, because the disk hung.
    if (!alone()) group().Announce(Key("outcome"), EncodeOutcome(outcome));
    StopWaiting();
  }

  void FailLocally(const Status& why) override {
    if (over()) return;
    AnnounceFailure(why);
    if (!stage_.MoveTo(stage_ == Stage::kEntering ? Stage::kFailed : Stage::kQuiet)) return;
    wakes_at_ = Deadline::Infinite();
  }

  void Close(const Status& why) override {
    if (stage_ == Stage::kPrepared) FailForAll(why);
  }

  void Detach() override {
    Coordination::Detach();
    if (checks_ != nullptr) checks_->Stop();
    checks_.reset();
  }

  [[nodiscard]] Deadline wakes_at() const override {
    return checks_ != nullptr && waiting() ? Deadline::At(std::min(wakes_at_.when(), checks_->wakes_at().when()))
                                           : wakes_at_;
  }

  void OnTime() override {
    if (!wakes_at().passed()) return;
    if (!wakes_at_.passed()) return checks_->OnTime();
    wakes_at_ = Deadline::Infinite();
    if (stage_ == Stage::kPrepared) FailForAll(Missing());
  }

 private:
  struct PreparedShard {
    ManifestShard shard;
    bool checked = false;
    std::string index_run = {};
  };

  [[nodiscard]] bool alone() const { return group().size() == 1; }
  /// Messages of other ranks matter.
  [[nodiscard]] bool waiting() const { return stage_ == Stage::kNamed || stage_ == Stage::kPrepared; }

  void OnOpened(Status status) override {
    if (stage_ == Stage::kFailed) {
      StopWaiting();
      return callbacks_.quiet();
    }
    if (stage_ != Stage::kEntering) return;
    if (status.ok()) {
      AnnounceAttempt();
      return StartWriting();
    }
    AnnounceFailure(status);
    StopWaiting();
    callbacks_.failed(std::move(status));
  }

  void AnnounceAttempt() {
    checks_ = std::make_shared<ShardChecks>(*context_.queue, folder_, timeout(),
                                            [this](const Event& event) { context_.Notify(event); });
    group().Announce(
        Key("attempt"),
        EncodeAttempt({.uuid = folder_->uuid(),
                       .step = plan_.step,
                       .line = plan_.line,
                       .parent = plan_.parent,
                       .replace = plan_.replace,
                       .replica_digests = plan_.replicated != nullptr ? plan_.replicated->digest : std::string()}));
    group().Collect(Key("prepared"), WriteDeadline(), Later(&Coordinator::OnPrepared),
                    Later(&Coordinator::OnCollected));
  }

  void AnnounceFailure(const Status& why) {
    if (alone()) return;
    const Status named = Error(why.code(), why.detail(), "rank 0: {}", why.message());
    const bool announced = stage_ != Stage::kSilent && stage_ != Stage::kEntering;
    announced ? group().Announce(Key("outcome"), EncodeOutcome(named))
              : group().Announce(Key("attempt"), EncodeAttempt({.step = plan_.step, .refusal = named}));
  }

  void OnPrepared(int rank, std::string text) {
    if (!waiting()) return;
    const Status taken = HandlePrepared(rank, text);
    if (!taken.ok()) FailForAll(taken);
  }

  [[nodiscard]] Status HandlePrepared(int rank, const std::string& text) {
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
    if (sent.kept) kept_[index] = PreparedShard{.shard = *sent.kept};
    Check(index, false, std::move(sent.shard));
    if (sent.kept) Check(index, true, *std::move(sent.kept));
    return Status::Ok();
  }

  void Check(std::size_t rank, bool of_kept, ManifestShard shard) {
    checks_->Add(rank, std::move(shard),
                 [rank, of_kept, then = Later(&Coordinator::OnChecked)](Result<std::string> run) {
                   then(rank, of_kept, std::move(run));
                 });
  }

  void OnChecked(std::size_t rank, bool of_kept, Result<std::string> run) {
    if (!waiting()) return;
    if (!run.ok()) return FailStep(run.status());
    PreparedShard& checked = *(of_kept ? kept_ : shards_)[rank];
    checked.checked = true;
    index_bytes_ += run->size();
    // A larger index is not made, so drop the run.
    if (index_bytes_ <= kMaxIndexBytes) checked.index_run = *std::move(run);
    CommitIfPrepared();
  }

  void OnCollected(Status status) {
    if (waiting() && !status.ok()) FailStep(status);
  }

  [[nodiscard]] Status Missing() const {
    const bool heard = std::ranges::all_of(shards_, [](const auto& shard) { return shard.has_value(); });
    if (const Status late = checks_->Late(); heard && !late.ok()) {
      return Error(late.code(), "step {}: {}", plan_.step, late.message());
    }
    std::vector<std::size_t> missing;
    for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
      if (!shards_[rank] || (heard && !IsChecked(rank))) missing.push_back(rank);
    }
    const std::size_t more = missing.size() - std::min(missing.size(), kNamedRanks);
    missing.resize(missing.size() - more);
    const auto last = context_.line->LastStep(static_cast<int>(missing.front()));
    return Error(
        StatusCode::kDeadlineExceeded, StatusDetail::kRanksMissing, "step {}: {} rank {}{} within group_timeout{}",
        plan_.step, heard ? "rank 0 could not check the shard of" : "nothing from", fmt::join(missing, ", "),
        more == 0 ? "" : fmt::format(" and {} more", more),
        heard || !last ? "" : fmt::format("; the last save of rank {} was of step {}", missing.front(), *last));
  }

  void FailStep(const Status& why) {
    FailForAll(Error(why.code(), why.detail(), "step {}: {}", plan_.step, why.message()));
  }

  void FailForAll(const Status& why) {
    group().Announce(Key("outcome"), EncodeOutcome(why));
    StopWaiting();
    callbacks_.failed(why);
  }

  void CommitIfPrepared() {
    if (stage_ != Stage::kPrepared) return;
    for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
      if (!shards_[rank] || !IsChecked(rank)) return;
    }
    if (!stage_.MoveTo(Stage::kCommitting)) return;
    wakes_at_ = Deadline::Infinite();
    PreparedShards prepared;
    for (auto* files : {&shards_, &kept_}) {
      for (std::optional<PreparedShard>& file : *files) {
        if (!file) continue;
        prepared.shards.push_back(std::move(file->shard));
        prepared.index_runs.push_back(std::move(file->index_run));
      }
    }
    callbacks_.commit(std::move(prepared));
  }

  // Of a rank that is prepared.
  [[nodiscard]] bool IsChecked(std::size_t rank) const {
    return shards_[rank]->checked && (!kept_[rank] || kept_[rank]->checked);
  }

  // By rank, once prepared; and the kept files of those that have one.
  std::vector<std::optional<PreparedShard>> shards_;
  std::vector<std::optional<PreparedShard>> kept_;
  // Total size of the index runs.
  std::uint64_t index_bytes_ = 0;
  std::shared_ptr<ShardChecks> checks_;
};

}  // namespace

std::shared_ptr<Coordination> MakeCoordinator(EngineContext& context, const SavePlan& plan,
                                              Coordination::Callbacks callbacks) {
  return std::make_shared<Coordinator>(context, plan, std::move(callbacks));
}

}  // namespace cairn
