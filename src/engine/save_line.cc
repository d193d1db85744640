#include "engine/save_line.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "base/status_macros.h"
#include "engine/context.h"

namespace cairn {
namespace {

// In attempt/.
constexpr const char* kOff = "off";

}  // namespace

SaveLine::SaveLine(EngineContext& context)
    : context_(context), pairing_(group().rank(), context.parts.options.group_timeout) {}

Group& SaveLine::group() const { return *context_.parts.group; }

std::uint64_t SaveLine::Call(std::uint64_t step, Callbacks callbacks) {
  const std::uint64_t call = pairing_.Call(step, Deadline::Clock::now());
  callbacks_.emplace(call, std::move(callbacks));
  Settle();
  return call;
}

void SaveLine::CallAgain(std::uint64_t call, std::uint64_t step, const Status& why, Callbacks callbacks) {
  pairing_.CallAgain(call, step, why, Deadline::Clock::now());
  callbacks_.emplace(call, std::move(callbacks));
  Settle();
}

void SaveLine::CallGivenUp(std::uint64_t step, const Status& why) {
  pairing_.CallGivenUp(step, why);
  Settle();
}

void SaveLine::GiveUp(std::uint64_t call, const Status& why) {
  pairing_.GiveUp(call, why);
  callbacks_.erase(call);
  Settle();
}

void SaveLine::OnTime() {
  if (wakes_at().passed()) Settle();
}

void SaveLine::Listen() {
  const auto there = std::make_shared<std::atomic<bool>>(false);
  if (!listening_ && !off_ && pairing_.listens()) {
    listening_ = true;
    group().Await(fmt::format("attempt/{}", next_), Deadline::Infinite(),
                  [self = shared_from_this(), there, inbox = context_.inbox](Result<std::string> heard) {
                    *there = true;
                    inbox->Post([self, heard = std::move(heard)] { self->OnAttempt(heard); });
                  });
  }
  if (!*there) AwaitOutcomes();
}

void SaveLine::OnAttempt(const Result<std::string>& heard) {
  listening_ = false;
  if (!heard.ok()) {
    pairing_.FailAll(heard.status());
    return Settle();
  }
  if (*heard == kOff) {
    off_ = true;
    return MoveAll();
  }
  const std::uint64_t number = next_++;
  Result<AttemptProposal> attempt = DecodeAttempt(*heard);
  if (attempt.ok()) {
    pairing_.Attempt(number, *std::move(attempt));
  } else {  // Its step is unknown.
    Refuse(number, attempt.status());
    pairing_.FailAll(attempt.status());
  }
  Settle();
}

void SaveLine::Refuse(std::uint64_t number, const Status& why) {
  PreparedMessage sent;
  sent.failure = why;
  group().Send(fmt::format("prepared/{}", number), EncodePrepared(sent));
  refused_.push_back(number);
}

void SaveLine::AwaitOutcomes() {
  for (const std::uint64_t number : std::exchange(refused_, {})) {
    group().Await(fmt::format("outcome/{}", number), Deadline::Infinite(),
                  [self = shared_from_this(), number, inbox = context_.inbox](Result<std::string> said) {
                    inbox->Post([self, number, said = std::move(said)] { self->OnOutcome(number, said); });
                  });
  }
}

void SaveLine::OnOutcome(std::uint64_t number, const Result<std::string>& heard) {
  const std::optional<Status> outcome = heard.ok() ? DecodeOutcome(*heard) : std::nullopt;
  if (!outcome || outcome->ok()) return;
  pairing_.Outcome(number, *outcome);
  Settle();
}

void SaveLine::AnnounceOff() {
  if (group().size() > 1) group().Announce(fmt::format("attempt/{}", NextNumber()), kOff);
}

void SaveLine::AnnounceToDisk(std::uint64_t step) {
  group().Announce(fmt::format("attempt/{}", NextNumber()), EncodeAttempt({.step = step, .to_disk = true}));
}

void SaveLine::MoveAll() {
  for (const auto& [call, callbacks] : std::exchange(callbacks_, {})) callbacks.moved();
}

void SaveLine::Settle() {
  if (off_) return MoveAll();
  if (std::exchange(settling_, true)) return;
  // What is called may call this object.
  for (auto answers = pairing_.Settle(Deadline::Clock::now()); !answers.empty();
       answers = pairing_.Settle(Deadline::Clock::now())) {
    for (const Pairing::Answer& answer : answers) {
      const bool to_disk = answer.attempt.to_disk;
      if (answer.kind == Pairing::Answer::Kind::kRefuse) {
        to_disk ? context_.parts.on_not_moved(answer.attempt.step, answer.why) : Refuse(answer.number, answer.why);
        continue;
      }
      const auto called = callbacks_.extract(answer.call);
      if (called.empty()) continue;
      if (answer.kind == Pairing::Answer::Kind::kFail) {
        called.mapped().failed(answer.why);
      } else {
        to_disk ? called.mapped().moved() : called.mapped().joined(answer.number, answer.attempt);
      }
    }
  }
  settling_ = false;
  Listen();
}

void SaveLine::Heard(int rank, std::uint64_t step) {
  last_steps_.resize(static_cast<std::size_t>(group().size()));
  last_steps_[static_cast<std::size_t>(rank)] = step;
}

std::optional<std::uint64_t> SaveLine::LastStep(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < last_steps_.size() ? last_steps_[index] : std::nullopt;
}

}  // namespace cairn
