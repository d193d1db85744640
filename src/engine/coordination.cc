#include "engine/coordination.h"

#include <utility>

#include "base/status_macros.h"
#include "base/uuid.h"
#include "engine/agreement.h"
#include "store/commit.h"

namespace cairn {

using Stage = CoordinationStage;

Coordination::Coordination(EngineContext& context, const SavePlan& plan, Callbacks callbacks)
    : context_(context), plan_(plan), callbacks_(std::move(callbacks)) {}

void Coordination::Gather(const std::string& key, std::string word, void (Coordination::*then)(Words)) {
  ++awaited_;
  context_.parts.group->AllGather(key, std::move(word), Deadline::In(context_.parts.options.group_deadline),
                                  [self = shared_from_this(), then, inbox = context_.inbox](Words words) {
                                    inbox->Post([self, then, words = std::move(words)]() mutable {
                                      --self->awaited_;
                                      if (*self->stage_ != Stage::kDetached) ((*self).*then)(std::move(words));
                                    });
                                  });
}

bool Coordination::prepared() const {
  return stage_ == Stage::kPrepared || stage_ == Stage::kDecided || stage_ == Stage::kLooking;
}

void Coordination::NameAttempt() {
  if (*stage_ != Stage::kSilent) return;
  stage_.MoveTo(Stage::kNaming);
  const AttemptWord word{.uuid = coordinator() ? MakeUuid() : std::string(),
                         .step = plan_.step,
                         .generation = plan_.generation,
                         .parent = plan_.parent ? plan_.parent->attempt : std::string(),
                         .admitted = plan_.admitted,
                         .alike = plan_.alike != nullptr ? plan_.alike->digest : std::string()};
  Gather(fmt::format("attempt/{}", plan_.sequence), EncodeAttemptWord(word), &Coordination::OnNamed);
}

void Coordination::OnNamed(Words words) {
  Result<std::string> uuid = words.ok() ? AgreeOnAttempt(*words) : Result<std::string>(words.status());
  if (!uuid.ok()) return callbacks_.failed(uuid.status());
  if (const int bucket = FirstDifference(AlikeDigests(*words)); bucket >= 0) {
    // Every rank knows and none goes on; one that has failed already is still asked what it gave.
    stage_.MoveTo(Stage::kComparing);
    const std::string texts = EncodeBucket(plan_.alike != nullptr ? plan_.alike->all : std::vector<Alike>(), bucket);
    return Gather("alike/" + *uuid, texts, &Coordination::OnCompared);
  }
  stage_.MoveTo(Stage::kNamed);
  uuid_ = *std::move(uuid);
  callbacks_.named();
}

void Coordination::OnCompared(Words words) {
  callbacks_.failed(words.ok() ? CompareBuckets(plan_.step, *words) : words.status());
}

void Coordination::Prepare(const ManifestShard& shard) {
  stage_.MoveTo(Stage::kPrepared);
  Gather("prepared/" + uuid_, EncodePrepared(shard), &Coordination::OnPrepared);
}

void Coordination::OnPrepared(Words words) {
  if (stage_ == Stage::kLooking) return;
  if (stage_ == Stage::kFailed) return callbacks_.quiet();
  // The coordinator may have heard all the same: the disk knows, or nobody.
  if (!words.ok() && !coordinator()) return LookUp();
  Result<std::vector<ManifestShard>> shards =
      words.ok() ? AgreeOnShards(*words) : Result<std::vector<ManifestShard>>(words.status());
  if (!shards.ok()) {
    // Others may have heard from all ranks and wait for the outcome.
    if (!words.ok()) TellOutcome(shards.status());
    return callbacks_.failed(shards.status());
  }
  stage_.MoveTo(Stage::kDecided);
  if (coordinator()) return callbacks_.commit(*std::move(shards));
  Gather("outcome/" + uuid_, "", &Coordination::OnOutcome);
}

void Coordination::TellOutcome(const Status& outcome) {
  if (context_.parts.group->size() == 1) return;
  context_.parts.group->AllGather("outcome/" + uuid_, EncodeOutcome(outcome),
                                  Deadline::In(context_.parts.options.group_deadline), [](const auto&) {});
}

void Coordination::OnOutcome(Words words) {
  if (stage_ == Stage::kLooking) return;
  if (!words.ok()) return LookUp();
  Status status = DecodeOutcome(words->front());
  const bool known = !status.ok() && status.code() != StatusCode::kUnknownOutcome;
  known ? callbacks_.failed(std::move(status)) : callbacks_.ended(std::move(status));
}

void Coordination::LookUp() {
  stage_.MoveTo(Stage::kLooking);
  ++awaited_;
  FindCommitted(*context_.queue, context_.parts.root, plan_.step, uuid_,
                [self = shared_from_this(), inbox = context_.inbox](const Status& status) {
                  inbox->Post([self, status] {
                    --self->awaited_;
                    if (*self->stage_ != Stage::kDetached) self->OnLookedUp(status);
                  });
                });
}

void Coordination::OnLookedUp(const Status& status) {
  if (status.ok()) return callbacks_.ended(status);
  // Not there yet says nothing: the coordinator may be about to commit. The attempt's files are left to it.
  callbacks_.ended(Error(StatusCode::kUnknownOutcome, "step {}: the coordinator was not heard in time, and on disk: {}",
                         plan_.step, status.message()));
}

void Coordination::TellFailure(const Status& why) {
  if (context_.parts.group->size() == 1 || *stage_ != Stage::kNamed) return;
  stage_.MoveTo(Stage::kFailed);
  Gather("prepared/" + uuid_, EncodeFailure(why), &Coordination::OnFailureTold);
}

void Coordination::OnFailureTold(Words /*words*/) { callbacks_.quiet(); }

void Coordination::Close(const Status& why) {
  if (idle() || (*stage_ != Stage::kPrepared && *stage_ != Stage::kDecided)) return;
  if (!coordinator()) return LookUp();
  TellOutcome(why);
  stage_.MoveTo(Stage::kFailed);
  callbacks_.failed(why);
}

}  // namespace cairn
