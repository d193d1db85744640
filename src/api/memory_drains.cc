#include "api/memory_drains.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/agreement.h"
#include "engine/engine.h"
#include "engine/ledger.h"

namespace cairn {
namespace {

std::pair<std::uint64_t, std::uint64_t> PlaceInTime(const SaveTask& task) {
  return {task.plan().line, task.plan().step};
}

Status Overtaken(const SaveTask& task, const SaveTask& by) {
  return Error(
      StatusCode::kCancelled,
      "step {}: kept in memory, and left out of the disk: step {} was kept before the disk was free, or before "
      "it was due",
      task.plan().step, by.plan().step);
}

}  // namespace

MemoryDrains::MemoryDrains(Parts parts) : parts_(std::move(parts)) {}

void MemoryDrains::Expect(const std::shared_ptr<SaveTask>& task) {
  MutexLock lock(mutex_);
  expected_.push_back(task);
}

void MemoryDrains::Forget(const std::shared_ptr<SaveTask>& task) {
  MutexLock lock(mutex_);
  std::erase(expected_, task);
  changed_.NotifyAll();
}

void MemoryDrains::GiveUp(std::uint64_t step, std::string_view reason, Deadline deadline) {
  if (!leads()) return;
  const Status why =
      Error(StatusCode::kCancelled, "step {}: kept in memory, and {} before the disk had it", step, reason);
  std::shared_ptr<SaveTask> drain;
  {
    MutexLock lock(mutex_);
    const auto is_of = [step](const auto& task) { return task != nullptr && task->plan().step == step; };
    const auto is_kept = [&](const auto& task) { return is_of(task) && task->stats().phase == SavePhase::kKept; };
    // Its caller has heard that it is kept, and its engine is about to say so here.
    while (std::ranges::any_of(expected_, is_kept) && !deadline.passed()) changed_.WaitUntil(mutex_, deadline);
    if (is_of(drain_)) given_up_ = drain_->plan().attempt;  // It may have failed just now.
    // What has failed is in flight no more, so that the step is not refused.
    const bool failed = is_of(waiting_) && FailureOf(*waiting_) != nullptr;
    // A newer one: this step is refused.
    const auto is_newer = [step](const auto& task) { return task->plan().step >= step; };
    if (!failed && std::ranges::any_of(expected_, is_newer)) return;
    if (is_of(waiting_)) return LeaveOut(std::exchange(waiting_, nullptr), why);
    if (is_of(drain_) && (waiting_ == nullptr || parts_.ledger->IsAbandoned(step))) drain = drain_;
    if (drain == nullptr) return;
  }
  static_cast<void>(drain->RequestCancel(why));
  static_cast<void>(drain->WaitEnded(deadline));
}

void MemoryDrains::Keep(const std::shared_ptr<SaveTask>& task, const std::string& attempt) {
  MutexLock lock(mutex_);
  std::erase(expected_, task);
  changed_.NotifyAll();
  const std::uint64_t step = task->plan().step;
  parts_.memory_ledger->SetPinned(step, true);
  if (stopping_) {
    return LeaveOut(task,
                    Error(StatusCode::kCancelled, "step {}: kept in memory alone: the checkpointer was closed", step));
  }
  leads() ? Queue(task) : Await(task, attempt);
}

void MemoryDrains::Queue(const std::shared_ptr<SaveTask>& task) {
  // A younger one may have been kept before it.
  const std::shared_ptr<SaveTask>& other = waiting_ != nullptr ? waiting_ : drain_;
  const bool newer = other == nullptr || PlaceInTime(*other) < PlaceInTime(*task);
  if (!newer) return LeaveOut(task, Overtaken(*task, *other));
  if (waiting_ != nullptr) LeaveOut(waiting_, Overtaken(*waiting_, *task));
  waiting_ = task;
  // Before it is known whether somebody does.
  task->OnWanted([this, inbox = parts_.engine->inbox()] {
    inbox->Post([this] {
      MutexLock lock(mutex_);
      Begin();
    });
  });
  Begin();
}

bool MemoryDrains::IsDue(const SaveTask& task) const {
  if (const Failed* const failed = FailureOf(task)) return failed->why.detail() == StatusDetail::kDiskHangs;
  const std::uint64_t every = parts_.disk_every;
  if (every == 0 || task.wanted()) return true;
  const std::optional<Ledger::Newest> newest = parts_.ledger->FindNewest();
  // After a restore of an older one it is below.
  return !newest || task.plan().step < newest->step || task.plan().step - newest->step >= every;
}

const MemoryDrains::Failed* MemoryDrains::FailureOf(const SaveTask& task) const {
  const auto last = std::ranges::find(failed_.rbegin(), failed_.rend(), task.plan().attempt,
                                      [](const Failed& one) { return one.drain->plan().attempt; });
  return last == failed_.rend() ? nullptr : &*last;
}

bool MemoryDrains::IsForWaiters(const SaveTask& task) const {
  const Failed* const failed = FailureOf(task);
  return failed == nullptr || failed == &failed_.front() || failed->drain->heard();
}

bool MemoryDrains::IsTriedAgain(const SaveTask& drain, const Status& outcome) const {
  if (drain.plan().attempt == given_up_) return false;
  switch (outcome.code()) {
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kCorrupt:
    case StatusCode::kUnknownOutcome:
      return false;
    default:
      return alone() && waiting_ == nullptr && !stopping_;
  }
}

void MemoryDrains::Forgive(const SaveTask& task) {
  std::erase_if(failed_, [&](const Failed& one) {
    const bool of_it = one.drain->plan().attempt == task.plan().attempt;
    if (of_it) one.drain->MarkHeard();
    return of_it;
  });
}

void MemoryDrains::Begin(bool wanted) {
  if (drain_ != nullptr || waiting_ == nullptr || stopping_ || !Hangs().ok()) return;
  if (!IsDue(*waiting_) && !(wanted && IsForWaiters(*waiting_))) return;
  const std::shared_ptr<SaveTask> next = std::exchange(waiting_, nullptr);
  Drain(next, next->plan().attempt);
}

void MemoryDrains::Await(const std::shared_ptr<SaveTask>& task, const std::string& attempt) {
  undecided_.emplace(attempt, task);
  WatchRank0();
  // Nothing is posted any more once that engine has stopped, and this ends later.
  parts_.group->Await("attempt/" + attempt, Deadline::Infinite(),
                      [this, attempt, inbox = parts_.engine->inbox()](Result<std::string> heard) {
                        inbox->Post([this, attempt, heard = std::move(heard)] { OnDecided(attempt, heard); });
                      });
}

void MemoryDrains::WatchRank0() {
  if (std::exchange(watching_, true)) return;
  // Nobody announces it: its deadline is what it is for.
  parts_.group->Await(fmt::format("memory/watch/{}", watches_++), Deadline::In(parts_.group_timeout),
                      [this, inbox = parts_.engine->inbox()](const Result<std::string>& heard) {
                        inbox->Post([this, ended = heard.status()] { OnWatched(ended); });
                      });
}

void MemoryDrains::OnWatched(const Status& ended) {
  MutexLock lock(mutex_);
  watching_ = false;
  // If the group is lost, what is undecided hears it.
  if (undecided_.empty() || ended.code() != StatusCode::kDeadlineExceeded) return;
  if (parts_.rank0_lives()) return WatchRank0();
  for (const auto& [attempt, task] : std::exchange(undecided_, {})) {
    LeaveOut(task, Error(StatusCode::kDeadlineExceeded, StatusDetail::kRanksMissing,
                         "step {}: kept in memory alone: rank 0 has ended before the disk had it", task->plan().step));
  }
  changed_.NotifyAll();
}

void MemoryDrains::OnDecided(const std::string& attempt, const Result<std::string>& heard) {
  MutexLock lock(mutex_);
  const auto found = undecided_.extract(attempt);
  if (found.empty()) return;
  const std::shared_ptr<SaveTask>& task = found.mapped();
  const Result<AttemptProposal> said = heard.ok() ? DecodeAttempt(*heard) : heard.status();
  if (said.ok() && said->refusal.ok()) {
    Drain(task, attempt);
  } else if (said.ok()) {
    LeaveOut(task, said->refusal);
  } else {
    LeaveOut(task,
             Error(said.status().code(), "step {}: kept in memory; rank 0 did not say whether the disk gets it: {}",
                   task->plan().step, said.status().message()));
  }
  changed_.NotifyAll();
}

void MemoryDrains::Drain(const std::shared_ptr<SaveTask>& task, const std::string& attempt) {
  SavePlan plan = task->plan();
  plan.attempt = attempt;
  plan.drain = true;
  plan.hold = {};  // Its caller has released it.
  if (FailureOf(*task) != nullptr && !parts_.ledger->Readmit(plan)) {
    return LeaveOut(
        task, Error(StatusCode::kCancelled, "step {}: kept in memory, and not needed on the disk any more", plan.step));
  }
  hangs_ = {};
  drain_ = std::make_shared<SaveTask>(std::move(plan), task->TakeSnapshot(), std::vector<DeviceEvents>(), task->begun(),
                                      parts_.engine->inbox());
  drain_->Drain(task);
  ++drains_;
  parts_.engine->Submit(drain_);
}

void MemoryDrains::AnnounceLeftOut(std::uint64_t step, const std::string& attempt, const Status& why) const {
  if (parts_.group->size() == 1) return;
  parts_.group->Announce("attempt/" + attempt, EncodeAttempt({.step = step, .refusal = why}));
}

void MemoryDrains::LeaveOut(const std::shared_ptr<SaveTask>& task, Status why) {
  const SavePlan& plan = task->plan();
  Forgive(*task);
  if (parts_.ledger != nullptr) parts_.ledger->Withdraw(plan);
  if (leads()) AnnounceLeftOut(plan.step, plan.attempt, why);
  task->DropSnapshot();
  Unpin(plan);
  task->Finish(std::move(why));
}

void MemoryDrains::Unpin(const SavePlan& plan) {
  // The step may have been saved anew meanwhile.
  Ledger& memory = *parts_.memory_ledger;
  if (memory.AttemptOf(plan.step) == plan.attempt) memory.SetPinned(plan.step, false);
}

void MemoryDrains::OnGone(const std::shared_ptr<SaveTask>& task, const Status& outcome) {
  if (!task->drains()) return;
  MutexLock lock(mutex_);
  if (!leads() && !outcome.ok()) {
    gone_.push_back(task->plan().attempt);
    TellGone();
  }
  if (drain_ != task) return task->DropSnapshot();
  drain_ = nullptr;
  if (IsTriedAgain(*task, outcome)) {
    failed_.push_back({task, outcome});
    SavePlan plan = task->plan();
    plan.drain = false;
    waiting_ = std::make_shared<SaveTask>(std::move(plan), task->TakeSnapshot(), std::vector<DeviceEvents>(),
                                          task->begun(), parts_.engine->inbox());
    waiting_->MarkInMemory();
  } else {
    // Nobody misses what a newer one overtakes.
    Forgive(*task);
    if (alone() && waiting_ != nullptr && !outcome.ok() && outcome.code() != StatusCode::kCorrupt) task->MarkHeard();
    Unpin(task->plan());
    task->DropSnapshot();
  }
  // If it may be committed, another rank may have found that it is.
  const bool hangs = outcome.detail() == StatusDetail::kDiskHangs && outcome.code() != StatusCode::kUnknownOutcome;
  if (hangs && parts_.group->size() > 1) {
    hangs_ = outcome;
    leads() ? AwaitGone(task->plan().attempt) : AwaitAnswers(task->plan().attempt);
  }
  Begin();
  parts_.retire();
  changed_.NotifyAll();
}

void MemoryDrains::OnAnswers() {
  MutexLock lock(mutex_);
  TellGone();
  Begin();
  changed_.NotifyAll();
}

void MemoryDrains::AwaitGone(const std::string& attempt) {
  // A rank that has not taken part says nothing. If all that can be known is that time has passed, another try tells.
  parts_.group->Collect(
      "gone/" + attempt, Deadline::In(parts_.group_timeout), [](int /*rank*/, const std::string& /*message*/) {},
      [this, attempt, inbox = parts_.engine->inbox()](const Status& /*end*/) {
        inbox->Post([this, attempt] { OnAllGone(attempt); });
      });
}

void MemoryDrains::AwaitAnswers(const std::string& attempt) {
  parts_.group->Await("answers/" + attempt, Deadline::Infinite(),
                      [this, attempt, inbox = parts_.engine->inbox()](const Result<std::string>& /*heard*/) {
                        inbox->Post([this, attempt] { OnAllGone(attempt); });
                      });
}

void MemoryDrains::OnAllGone(const std::string& attempt) {
  if (leads()) parts_.group->Announce("answers/" + attempt, "answers");
  MutexLock lock(mutex_);
  hangs_ = {};
  Begin();
  changed_.NotifyAll();
}

void MemoryDrains::TellGone() {
  if (!parts_.engine->DiskHangs().ok()) return;
  for (const std::string& attempt : std::exchange(gone_, {})) parts_.group->Send("gone/" + attempt, "gone");
}

Status MemoryDrains::Hangs() const {
  const Status own = parts_.engine->DiskHangs();
  return own.ok() ? hangs_ : own;
}

Status MemoryDrains::DiskHangs() const {
  MutexLock lock(mutex_);
  return Hangs();
}

Status MemoryDrains::Failure() const {
  MutexLock lock(mutex_);
  for (const auto& task : {waiting_, drain_}) {
    if (task == nullptr || task->ended()) continue;
    if (const Failed* const failed = FailureOf(*task)) return failed->why;
  }
  return Status::Ok();
}

bool MemoryDrains::WaitIdle(Deadline deadline) {
  while (true) {
    std::shared_ptr<SaveTask> drain;
    {
      MutexLock lock(mutex_);
      if (!deadline.passed() && expected_.empty()) Begin(/*wanted=*/true);
      // Its waiters may have been told while the disk still has a part of it.
      const bool drains = drain_ != nullptr && !drain_->ended();
      const bool hangs = !Hangs().ok();
      // What has failed is in flight only if it is tried again now, or once nothing of the last try is.
      const bool fails = waiting_ != nullptr && !hangs && FailureOf(*waiting_) != nullptr &&
                         (deadline.passed() || !IsForWaiters(*waiting_));
      const bool waits = (waiting_ != nullptr && !fails) ||
                         (drain_ != nullptr && drain_->ended() && IsTriedAgain(*drain_, drain_->outcome()));
      if (expected_.empty() && !waits && undecided_.empty() && !drains) return true;
      if (deadline.passed() || (expected_.empty() && !drains && hangs)) return false;
      if (!drains) {
        changed_.WaitUntil(mutex_, deadline);
        continue;
      }
      drain = drain_;
    }
    static_cast<void>(drain->WaitEnded(deadline));
  }
}

std::string MemoryDrains::Busy() const {
  MutexLock lock(mutex_);
  const std::shared_ptr<SaveTask> waits = undecided_.empty() ? waiting_ : undecided_.begin()->second;
  if (waits != nullptr) return fmt::format("step {}, kept in memory, waits for the disk", waits->plan().step);
  if (drain_ == nullptr) return {};
  return fmt::format("step {}, kept in memory, is written to the disk", drain_->plan().step);
}

void MemoryDrains::AddStats(CheckpointerStats& stats) const {
  MutexLock lock(mutex_);  // So that none begins.
  parts_.engine->AddStats(stats);
  stats.saves_started -= drains_;
}

void MemoryDrains::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  std::vector<std::shared_ptr<SaveTask>> left;
  if (waiting_ != nullptr) left.push_back(std::exchange(waiting_, nullptr));
  for (const auto& [attempt, task] : std::exchange(undecided_, {})) left.push_back(task);
  for (const std::shared_ptr<SaveTask>& task : left) {
    LeaveOut(task, Error(StatusCode::kCancelled,
                         "step {}: kept in memory alone: the checkpointer was closed before the disk was free",
                         task->plan().step));
  }
}

}  // namespace cairn
