#include "api/memory_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "engine/agreement.h"
#include "group/blocking.h"
#include "group/node_ranks.h"

namespace cairn {
namespace {

constexpr const char* kJoined = "memory/joined";
constexpr const char* kBegin = "memory/begin";

/// What a rank has said of itself, beginning with its name.
Status OfRank(int rank, std::string_view message) {
  const std::optional<Status> said = DecodeOutcome(message);
  if (!said) return InvalidMessage(rank, message);
  if (said->ok()) return {};
  return Error(said->code(), said->detail(), "rank {}: {}", rank, said->message());
}

/// What rank 0 has said to all.
Status FromRank0(const std::string& message) { return DecodeOutcome(message).value_or(InvalidMessage(0, message)); }

}  // namespace

std::string SayMemory(const MemoryOfRank0& memory) {
  return fmt::format("{}\n{}\n{}", NodeName(), memory.writer_id, memory.found_attempt);
}

Result<MemoryOfRank0> CheckMemoryOfRank0(const Options& options, int rank, const std::string& said) {
  if (said.empty() != options.memory_root.empty()) {
    const auto of = [](bool none) { return none ? "none" : "one"; };
    return Error(StatusCode::kInvalidArgument, "memory_root: expected {}, as on rank 0, found {} on rank {}",
                 of(said.empty()), of(options.memory_root.empty()), rank);
  }
  std::istringstream lines(said);
  std::string node;
  MemoryOfRank0 memory;
  for (std::string* const line : {&node, &memory.writer_id, &memory.found_attempt}) std::getline(lines, *line);
  if (!said.empty() && node != NodeName()) {
    return Error(StatusCode::kInvalidArgument,
                 "memory_root: expected all ranks on one node, found rank {} on another one than rank 0", rank);
  }
  return memory;
}

Status MeetInMemory(const Options& options, const std::string& said, const Status& opened) {
  Group* const group = options.group.get();
  if (group == nullptr || group->size() == 1 || options.read_only) return {};
  if (said.empty()) {
    if (group->rank() == 0 || opened.ok()) return {};
    // Rank 0 may have one, which this rank has not heard, or not know that this rank has: it hears it with its first
    // save.
    group->Send(kJoined, EncodeOutcome(opened));
    PreparedMessage refused;
    refused.failure = opened;
    if (!options.memory_root.empty()) group->Send("prepared/0", EncodePrepared(refused));
    return {};
  }
  if (group->rank() != 0) {
    group->Send(kJoined, EncodeOutcome(opened));
    if (!opened.ok()) return {};
    const auto twice = 2 * std::min(options.group_timeout, std::chrono::nanoseconds::max() / 2);
    const Result<std::string> heard = AwaitMessage(*group, kBegin, Deadline::In(twice)).get();
    if (heard.ok()) return FromRank0(*heard);
    return Error(heard.status().code(), "memory_root: rank 0 did not say that all ranks have it: {}",
                 heard.status().message());
  }
  if (!opened.ok()) return {};
  const CollectedMessages heard = CollectMessages(*group, kJoined, Deadline::In(options.group_timeout)).get();
  Status verdict;
  for (const auto& [rank, message] : heard.messages) {
    if (verdict.ok()) verdict = OfRank(rank, message);
  }
  if (verdict.ok() && !heard.end.ok()) {
    verdict = Error(heard.end.code(), "memory_root: not all ranks have opened it: {}", heard.end.message());
  }
  group->Announce(kBegin, EncodeOutcome(verdict));
  return verdict;
}

std::string RoomOfRanks::Key(const char* kind) const { return fmt::format("memory/{}/{}", kind, round_); }

void RoomOfRanks::Begin() {
  const std::shared_ptr<Group> group = group_.lock();
  if (group == nullptr) return;
  const auto self = shared_from_this();
  if (rank_ != 0) {
    return group->Await(Key("verdict"), Deadline::Infinite(), [self](const Result<std::string>& heard) {
      self->OnVerdict(heard.ok() ? FromRank0(*heard) : heard.status());
    });
  }
  const auto first = std::make_shared<Status>();
  group->Collect(
      Key("room"), Deadline::Infinite(),
      [first](int rank, const std::string& message) {
        if (first->ok()) *first = OfRank(rank, message);
      },
      [self, first](const Status& end) { self->OnAll(first->ok() ? end : *first); });
}

void RoomOfRanks::Say(const Status& own) {
  {
    MutexLock lock(mutex_);
    if (own_) return;
    own_ = own;
  }
  if (rank_ == 0) return Announce();
  if (const auto group = group_.lock(); group != nullptr) group->Send(Key("room"), EncodeOutcome(own));
}

std::optional<Status> RoomOfRanks::Verdict(Deadline deadline) const {
  MutexLock lock(mutex_);
  while (!verdict_ && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
  return verdict_;
}

void RoomOfRanks::OnAll(const Status& others) {
  {
    MutexLock lock(mutex_);
    others_ = others;
  }
  Announce();
}

void RoomOfRanks::Announce() {
  Status verdict;
  {
    MutexLock lock(mutex_);
    if (!own_ || !others_ || verdict_) return;
    verdict = own_->ok() ? *others_ : Error(own_->code(), "rank 0: {}", own_->message());
    verdict_ = verdict;
    changed_.NotifyAll();
  }
  if (const auto group = group_.lock(); group != nullptr) group->Announce(Key("verdict"), EncodeOutcome(verdict));
}

void RoomOfRanks::OnVerdict(const Status& verdict) {
  MutexLock lock(mutex_);
  if (!verdict_) verdict_ = verdict;
  changed_.NotifyAll();
}

}  // namespace cairn
