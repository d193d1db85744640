#include "engine/pairing.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

Pairing::TimePoint After(Pairing::TimePoint now, std::chrono::nanoseconds span) {
  return span >= Pairing::TimePoint::max() - now ? Pairing::TimePoint::max() : now + span;
}

/// Of two steps that differ, one failed by itself, because of `why`.
Status Instead(const Status& different, const Status& why) {
  return Error(different.code(), different.detail(), "{}, which failed at once: {}", different.message(),
               why.message());
}

}  // namespace

std::uint64_t Pairing::Call(std::uint64_t step, TimePoint now) {
  calls_.push_back({.id = ++last_id_, .step = step, .until = After(now, timeout_)});
  return last_id_;
}

void Pairing::CallAgain(std::uint64_t call, std::uint64_t step, const Status& why, TimePoint now) {
  calls_.push_front({.id = call, .step = step, .until = Patience(now), .why = why});
}

void Pairing::CallGivenUp(std::uint64_t step, const Status& why) {
  calls_.push_back(
      {.id = ++last_id_, .step = step, .until = TimePoint::max(), .why = why, .ended = true, .given_up = true});
}

void Pairing::GiveUp(std::uint64_t call, const Status& why) {
  const auto it = std::ranges::find_if(calls_, [&](const Called& one) { return one.id == call; });
  if (it == calls_.end() || it->ended) return;
  it->ended = it->given_up = true;
  it->why = why;
}

void Pairing::FailAll(const Status& why) {
  for (Called& call : calls_) {
    if (!call.ended) Fail(call, why);
  }
  calls_.clear();
}

void Pairing::Attempt(std::uint64_t number, AttemptProposal attempt) {
  last_step_ = attempt.step;
  const bool refused = !attempt.refusal.ok();
  attempts_.push_back({.number = number, .proposal = std::move(attempt), .answered = refused});
}

void Pairing::Outcome(std::uint64_t number, const Status& outcome) {
  const auto it = std::ranges::find_if(attempts_, [&](const Attempted& one) { return one.number == number; });
  if (it == attempts_.end()) return;
  it->why = outcome;
  if (outcome.detail() != StatusDetail::kStepsDiffer) return;
  for (Called& call : calls_) {
    if (!call.ended && call.id <= it->refused_calls) Fail(call, outcome);
  }
}

std::vector<Pairing::Answer> Pairing::Settle(TimePoint now) {
  while (SettlePair(now) || SettleDifferent()) continue;
  Hasten(now);
  EndOverdue(now);
  Forget();
  return std::exchange(answers_, {});
}

Pairing::TimePoint Pairing::wakes_at() const {
  TimePoint first = TimePoint::max();
  for (const Called& call : calls_) first = call.ended ? first : std::min(first, call.until);
  for (const Attempted& attempt : attempts_) first = std::min(first, attempt.until);
  return first;
}

bool Pairing::AreCounterparts(const Attempted& attempt, const Called& call) {
  const std::uint64_t step = attempt.proposal.step;
  const bool refused = !attempt.proposal.refusal.ok();
  return step == call.step || (call.given_up && call.step == kAnyStep && (refused || !attempt.answered)) ||
         (refused && step == kAnyStep && (call.given_up || !call.ended));
}

std::deque<Pairing::Attempted>::iterator Pairing::RefusedThere() {
  return std::ranges::find_if(attempts_, [](const Attempted& one) { return !one.proposal.refusal.ok(); });
}

std::deque<Pairing::Called>::iterator Pairing::GivenUpHere() {
  return std::ranges::find_if(calls_, [](const Called& one) { return one.given_up; });
}

void Pairing::Hasten(TimePoint now) {
  const auto call = std::ranges::find_if(calls_, [](const Called& one) { return !one.ended; });
  if (call != calls_.end() && RefusedThere() != attempts_.end()) call->until = std::min(call->until, Patience(now));
  const auto attempt = std::ranges::find_if(attempts_, [](const Attempted& one) { return !one.answered; });
  if (attempt != attempts_.end() && GivenUpHere() != calls_.end()) {
    attempt->until = std::min(attempt->until, Patience(now));
  }
}

void Pairing::EndOverdue(TimePoint now) {
  for (Called& call : calls_) {
    if (!call.ended && call.until <= now) Fail(call, Overdue(call));
  }
  std::erase_if(attempts_, [&](Attempted& attempt) {
    if (attempt.until > now) return false;
    const auto counterpart = GivenUpHere();
    if (attempt.why.ok()) {
      attempt.until = TimePoint::max();
      if (counterpart == calls_.end()) return false;  // It is forgotten.
      attempt.why = Instead(DifferentSteps(attempt.proposal.step, rank_, counterpart->step), counterpart->why);
      calls_.erase(counterpart);
    }
    Refuse(attempt, attempt.why);
    return true;
  });
}

bool Pairing::SettlePair(TimePoint now) {
  for (std::size_t a = 0; a < attempts_.size(); ++a) {
    const auto call =
        std::ranges::find_if(calls_, [&](const Called& one) { return AreCounterparts(attempts_[a], one); });
    if (call == calls_.end()) continue;
    PassOver(a, static_cast<std::size_t>(call - calls_.begin()));
    Attempted& attempt = attempts_.front();
    Called& called = calls_.front();
    const Status& refusal = attempt.proposal.refusal;
    if (!called.ended && refusal.ok() && attempt.answered) {  // It has ended without this rank.
      called.until = std::min(called.until, Patience(now));
      called.why = attempt.why;
      attempts_.pop_front();
      return true;
    }
    if (called.ended && !called.given_up && !attempt.answered) {
      attempt.until = std::min(attempt.until, Patience(now));
      attempt.why = called.why;
      calls_.pop_front();
      return true;
    }
    if (called.ended) {
      Refuse(attempt, called.why);
    } else if (!refusal.ok()) {
      Fail(called, refusal);
    } else {
      answers_.push_back({.kind = Answer::Kind::kJoin,
                          .call = called.id,
                          .number = attempt.number,
                          .attempt = std::move(attempt.proposal)});
    }
    attempts_.pop_front();
    calls_.pop_front();
    return true;
  }
  return false;
}

void Pairing::PassOver(std::size_t attempts, std::size_t calls) {
  for (; calls > 0; --calls) {
    Called& call = calls_.front();
    if (!call.ended) Fail(call, DifferentSteps(attempts_[attempts].proposal.step, rank_, call.step));
    calls_.pop_front();
  }
  for (; attempts > 0; --attempts) {
    Attempted& attempt = attempts_.front();
    Refuse(attempt, attempt.why.ok() ? DifferentSteps(attempt.proposal.step, rank_, calls_.front().step) : attempt.why);
    attempts_.pop_front();
  }
}

bool Pairing::SettleDifferent() {
  const auto attempt = std::ranges::find_if(attempts_, [](const auto& one) { return !one.answered; });
  const auto live = std::ranges::find_if(calls_, [](const auto& one) { return !one.ended; });
  if (attempt == attempts_.end() || live == calls_.end()) return false;
  if (!attempt->why.ok()) {  // Its own call has ended before, and was not made again.
    Refuse(*attempt, attempt->why);
    attempts_.erase(attempt);
    return true;
  }
  // One that was given up stands for itself alone.
  const auto given_up = std::find_if(calls_.begin(), live, [](const auto& one) { return one.given_up; });
  attempt->refused_calls = given_up == live ? calls_.back().id : given_up->id;
  attempt->why = DifferentSteps(attempt->proposal.step, rank_, given_up->step);
  Refuse(*attempt, attempt->why);
  if (given_up != live) calls_.erase(given_up);
  return true;
}

void Pairing::Fail(Called& call, const Status& why) {
  call.ended = true;
  call.why = why;
  answers_.push_back({.kind = Answer::Kind::kFail, .call = call.id, .why = why});
}

void Pairing::Refuse(Attempted& attempt, const Status& why) {
  if (attempt.answered) return;
  attempt.answered = true;
  attempt.until = TimePoint::max();
  answers_.push_back(
      {.kind = Answer::Kind::kRefuse, .number = attempt.number, .attempt = attempt.proposal, .why = why});
}

void Pairing::Forget() {
  while (calls_.size() > kRemembered && calls_.front().ended) calls_.pop_front();
  while (attempts_.size() > kRemembered && attempts_.front().answered) attempts_.pop_front();
}

Status Pairing::Overdue(const Called& call) {
  if (!call.why.ok()) return call.why;
  if (const auto refused = RefusedThere(); refused != attempts_.end()) {
    const Attempted counterpart = *refused;
    attempts_.erase(refused);
    return Instead(DifferentSteps(counterpart.proposal.step, rank_, call.step), counterpart.proposal.refusal);
  }
  return Error(StatusCode::kDeadlineExceeded, StatusDetail::kRanksMissing,
               "rank {} called save of step {}, and rank 0 did not within group_timeout{}", rank_, call.step,
               last_step_ ? fmt::format(": its last call was of step {}", *last_step_) : std::string());
}

Pairing::TimePoint Pairing::Patience(TimePoint now) const {
  return After(now, std::min<std::chrono::nanoseconds>(timeout_, kPatience));
}

}  // namespace cairn
