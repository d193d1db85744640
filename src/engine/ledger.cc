#include "engine/ledger.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/metrics.h"
#include "base/status_macros.h"
#include "store/list.h"

namespace cairn {

Ledger::Ledger(std::vector<CheckpointInfo> committed, std::uint64_t keep_last, std::uint64_t keep_every,
               std::uint64_t line, Times committed_at)
    : keep_last_(keep_last), keep_every_(keep_every), committed_at_(std::move(committed_at)), line_(line) {
  std::uint64_t newest = 0;
  for (const CheckpointInfo& one : committed) newest = std::max(newest, one.line);
  newest_line_ = std::max(newest, line_);
  if (!committed.empty() && newest >= line_) BeginLine();
  continued_ = {newest, line_};
  for (CheckpointInfo& one : committed) {
    // A damaged checkpoint's line is unknown: assume the newest.
    if (!one.status.ok()) one.line = newest;
    committed_.emplace(one.step, std::move(one));
  }
}

void Ledger::BeginLine() {
  // The last number is for all that would come after it.
  if (newest_line_ != std::numeric_limits<std::uint64_t>::max()) ++newest_line_;
  line_ = newest_line_;
  used_ = false;
  highest_.reset();
  continued_.insert(line_);
}

std::optional<std::uint64_t> Ledger::NewestOfLine() const {
  std::optional<std::uint64_t> newest = floor_;
  const auto count = [&newest](std::uint64_t step) { newest = newest ? std::max(*newest, step) : step; };
  for (const auto& [step, one] : committed_) {
    if (continued_.contains(one.line)) count(step);
  }
  for (const auto& [step, save] : in_flight_) {
    if (continued_.contains(save.line)) count(step);
  }
  return newest;
}

bool Ledger::IsNewest(std::uint64_t step, std::uint64_t line, const std::string& attempt) const {
  const auto found = committed_.find(step);
  const auto resumed = in_flight_.find(step);
  const bool is_committed = found != committed_.end() && found->second.line == line && found->second.attempt == attempt;
  const bool is_resumed =
      resumed != in_flight_.end() && resumed->second.line == line && resumed->second.attempt == attempt;
  if (!is_committed && !is_resumed) return false;
  const auto newer = [&](std::uint64_t a_step, std::uint64_t a_line) {
    return std::pair(a_line, a_step) > std::pair(line, step);
  };
  return std::none_of(committed_.begin(), committed_.end(),
                      [&](const auto& one) { return newer(one.first, one.second.line); }) &&
         std::none_of(in_flight_.begin(), in_flight_.end(),
                      [&](const auto& one) { return newer(one.first, one.second.line); });
}

Status Ledger::AwaitRemoval(std::uint64_t step, Deadline deadline) {
  while (retiring_.contains(step)) {
    if (removal_ended_.WaitUntil(mutex_, deadline) || !retiring_.contains(step)) continue;
    return Error(StatusCode::kDeadlineExceeded, "step {}: its old checkpoint is still being removed", step);
  }
  return Status::Ok();
}

void Ledger::ShareOrder() {
  MutexLock lock(mutex_);
  shares_order_ = true;
}

Status Ledger::Accept(const SavePlan& plan, Deadline deadline) {
  MutexLock lock(mutex_);
  CAIRN_RETURN_IF_ERROR(AwaitRemoval(plan.step, deadline));
  in_flight_.emplace(plan.step, InFlight{.line = plan.line});
  return Status::Ok();
}

void Ledger::Resume(SavePlan& plan) {
  MutexLock lock(mutex_);
  plan.admitted = true;
  plan.replace = committed_.contains(plan.step);
  in_flight_.insert_or_assign(plan.step, InFlight{.line = plan.line, .attempt = plan.attempt});
  continued_ = {plan.line, line_};
  floor_ = plan.step;  // Also if the disk does not get it.
}

bool Ledger::IsAbandoned(std::uint64_t step) const {
  MutexLock lock(mutex_);
  const auto found = in_flight_.find(step);
  return found != in_flight_.end() && !continued_.contains(found->second.line);
}

Result<SavePlan> Ledger::Admit(std::uint64_t step, IfExists if_exists, Deadline deadline) {
  MutexLock lock(mutex_);
  CAIRN_RETURN_IF_ERROR(AwaitRemoval(step, deadline));
  if (in_flight_.contains(step)) {
    return Error(StatusCode::kAlreadyExists, "step {}: a save of this step is in flight", step);
  }
  const auto found = committed_.find(step);
  const bool exists = found != committed_.end();
  const bool of_this_line = exists && continued_.contains(found->second.line);
  if (of_this_line && if_exists == IfExists::kFail) {
    const std::string& path = found->second.path;  // Known only for checkpoints that existed at Open.
    return Error(StatusCode::kAlreadyExists, StatusDetail::kStepCommitted, "step {} is committed already{}{}", step,
                 path.empty() ? "" : ", in ", path);
  }
  const std::optional<std::uint64_t> newest = NewestOfLine();
  if ((!of_this_line && newest && step < *newest) || (floor_ && step < *floor_)) {
    return Error(StatusCode::kFailedPrecondition,
                 "step {} is below the newest one, {}: first restore the step that training continues from", step,
                 *newest);
  }
  if (shares_order_ && highest_ && step <= *highest_) BeginLine();
  highest_ = step;
  in_flight_.emplace(step, InFlight{.line = line_});
  used_ = true;
  return SavePlan{
      .step = step, .line = line_, .parent = parent_, .admitted = true, .replace = exists || unknown_.contains(step)};
}

void Ledger::Withdraw(const SavePlan& plan) {
  MutexLock lock(mutex_);
  // The step may have been accepted again since, in another line.
  const auto found = in_flight_.find(plan.step);
  if (found != in_flight_.end() && found->second.line == plan.line) in_flight_.erase(found);
}

bool Ledger::Readmit(SavePlan& plan) {
  MutexLock lock(mutex_);
  const bool newer = std::any_of(committed_.begin(), committed_.end(), [&](const auto& one) {
    return std::pair(one.second.line, one.first) > std::pair(plan.line, plan.step);
  });
  if (newer || in_flight_.contains(plan.step) || retiring_.contains(plan.step)) return false;
  plan.replace = committed_.contains(plan.step) || unknown_.contains(plan.step);
  in_flight_.emplace(plan.step, InFlight{.line = plan.line, .attempt = plan.attempt});
  return true;
}

void Ledger::WithdrawUnknown(const SavePlan& plan, bool decided) {
  MutexLock lock(mutex_);
  in_flight_.erase(plan.step);
  Unknown unknown{.decided = decided};
  if (const auto old = committed_.find(plan.step); plan.replace && old != committed_.end()) {
    unknown.before = std::move(old->second);
    committed_.erase(old);
  }
  unknown_.insert_or_assign(plan.step, std::move(unknown));
}

void Ledger::DecideUnknown(const SavePlan& plan) {
  MutexLock lock(mutex_);
  if (const auto unknown = unknown_.find(plan.step); unknown != unknown_.end()) unknown->second.decided = true;
}

bool Ledger::BeginRelist() {
  MutexLock lock(mutex_);
  for (auto& [step, unknown] : unknown_) unknown.listing = unknown.decided;
  return !unknown_.empty();
}

bool Ledger::Relist(const std::vector<CheckpointInfo>& found) {
  MutexLock lock(mutex_);
  std::map<std::uint64_t, Unknown> still;
  bool known = true;
  for (auto& [step, unknown] : unknown_) {
    const auto one = std::ranges::find_if(found, [wanted = step](const auto& info) { return info.step == wanted; });
    if (unknown.listing && one == found.end()) continue;
    if (!unknown.listing || !one->status.ok()) {
      known = false;
      still.emplace(step, std::move(unknown));
    } else if (unknown.before && unknown.before->attempt == one->attempt) {
      committed_.emplace(step, *std::move(unknown.before));
    } else {
      unknown.found = *one;
      still.emplace(step, std::move(unknown));
    }
  }
  unknown_ = std::move(still);
  return known;
}

void Ledger::Committed(const SavePlan& plan, const std::string& attempt, NonFinite nonfinite, Frozen frozen) {
  CheckpointInfo one{.step = plan.step,
                     .line = plan.line,
                     .attempt = attempt,
                     .pinned = plan.pin,
                     .nonfinite = nonfinite,
                     .frozen = frozen};
  MutexLock lock(mutex_);
  in_flight_.erase(plan.step);
  unknown_.erase(plan.step);
  // The new checkpoint of a step inherits the pin.
  if (const auto old = committed_.find(plan.step); old != committed_.end())
    one.pinned = one.pinned || old->second.pinned;
  committed_.insert_or_assign(plan.step, std::move(one));
  committed_at_[plan.step] = UnixSeconds();
}

void Ledger::Restored(std::uint64_t step, std::uint64_t line, const std::string& attempt) {
  MutexLock lock(mutex_);
  if (!IsNewest(step, line, attempt)) {
    continued_.clear();
  } else if (!continued_.contains(line)) {
    continued_ = {line};
  }
  newest_line_ = std::max(newest_line_, line);
  if (used_ || line >= line_) BeginLine();
  continued_.insert(line_);
  parent_ = ManifestParent{step, attempt};
  floor_ = step;
}

std::vector<const CheckpointInfo*> Ledger::InOrder() const {
  std::vector<const CheckpointInfo*> list;
  for (const auto& [step, one] : committed_) {
    if (!retiring_.contains(step)) list.push_back(&one);
  }
  std::ranges::sort(list, [](const CheckpointInfo* a, const CheckpointInfo* b) {
    return std::pair(a->line, a->step) < std::pair(b->line, b->step);
  });
  return list;
}

std::vector<const CheckpointInfo*> Ledger::Counted() const {
  std::vector<const CheckpointInfo*> list = InOrder();
  std::erase_if(list, [](const CheckpointInfo* one) { return !one->status.ok(); });
  return list;
}

std::vector<std::uint64_t> Ledger::UnknownBelowKept() const {
  std::vector<std::uint64_t> below;
  const std::vector<const CheckpointInfo*> durable = Counted();
  if (keep_last_ == 0 || durable.size() < keep_last_) return below;
  const CheckpointInfo& oldest = *durable[durable.size() - keep_last_];
  for (const auto& [step, unknown] : unknown_) {
    const bool kept = !unknown.found || unknown.found->pinned || (keep_every_ != 0 && step % keep_every_ == 0);
    if (kept || retiring_.contains(step)) continue;
    if (std::pair(unknown.found->line, step) < std::pair(oldest.line, oldest.step)) below.push_back(step);
  }
  return below;
}

void Ledger::RetireDamaged() {
  MutexLock lock(mutex_);
  retires_damaged_ = true;
}

std::vector<std::uint64_t> Ledger::DamagedBelowNewest() const {
  std::vector<std::uint64_t> below;
  const std::vector<const CheckpointInfo*> good = Counted();
  if (!retires_damaged_ || good.empty()) return below;
  const std::pair newest(good.back()->line, good.back()->step);
  for (const CheckpointInfo* one : InOrder()) {
    const bool damaged = !one->status.ok() && !one->pinned;
    if (damaged && std::pair(one->line, one->step) < newest) below.push_back(one->step);
  }
  return below;
}

std::vector<std::uint64_t> Ledger::Retire() {
  MutexLock lock(mutex_);
  std::vector<std::uint64_t> steps = ChooseRetired(InOrder(), keep_last_, keep_every_);
  for (const std::vector<std::uint64_t>& more : {UnknownBelowKept(), DamagedBelowNewest()}) {
    steps.insert(steps.end(), more.begin(), more.end());
  }
  // A checkpoint that a save is about to replace is removed by that save's exchange.
  std::erase_if(steps, [this](std::uint64_t step) CAIRN_REQUIRES(mutex_) { return in_flight_.contains(step); });
  retiring_.insert(steps.begin(), steps.end());
  return steps;
}

std::vector<CheckpointInfo> Ledger::NewestFirst() const {
  MutexLock lock(mutex_);
  std::vector<CheckpointInfo> list;
  for (const CheckpointInfo* one : Counted()) list.push_back(*one);
  std::reverse(list.begin(), list.end());
  return list;
}

std::optional<Ledger::Newest> Ledger::FindNewest() const {
  MutexLock lock(mutex_);
  const std::vector<const CheckpointInfo*> counted = Counted();
  if (counted.empty()) return std::nullopt;
  Newest newest{.step = counted.back()->step};
  if (const auto at = committed_at_.find(newest.step); at != committed_at_.end()) newest.at = at->second;
  return newest;
}

void Ledger::FoundDamaged(std::uint64_t step, const std::string& attempt) {
  MutexLock lock(mutex_);
  const auto found = committed_.find(step);
  if (found == committed_.end() || found->second.attempt != attempt) return;
  found->second.status = Error(StatusCode::kCorrupt, "step {} was found damaged", step);
}

bool Ledger::FoundMissing(std::uint64_t step, const std::string& attempt) {
  MutexLock lock(mutex_);
  const auto found = committed_.find(step);
  if (found == committed_.end() || found->second.attempt != attempt) return false;
  if (in_flight_.contains(step) || retiring_.contains(step)) return false;
  committed_.erase(found);
  unknown_.insert_or_assign(step, Unknown{});
  return true;
}

Status Ledger::BeginRemoval(std::uint64_t step) {
  MutexLock lock(mutex_);
  if (in_flight_.contains(step))
    return Error(StatusCode::kFailedPrecondition, "step {}: a save of it is in flight", step);
  if (!retiring_.insert(step).second) {
    return Error(StatusCode::kFailedPrecondition, "step {} is being removed already", step);
  }
  return Status::Ok();
}

void Ledger::Removed(std::uint64_t step) {
  MutexLock lock(mutex_);
  retiring_.erase(step);
  committed_.erase(step);
  committed_at_.erase(step);
  unknown_.erase(step);
  removal_ended_.NotifyAll();
}

void Ledger::CancelRetirement(std::uint64_t step) {
  MutexLock lock(mutex_);
  retiring_.erase(step);
  removal_ended_.NotifyAll();
}

std::string Ledger::AttemptOf(std::uint64_t step) const {
  MutexLock lock(mutex_);
  if (const auto found = committed_.find(step); found != committed_.end()) return found->second.attempt;
  const auto unknown = unknown_.find(step);
  return unknown != unknown_.end() && unknown->second.found ? unknown->second.found->attempt : std::string();
}

void Ledger::SetPinned(std::uint64_t step, bool pinned) {
  MutexLock lock(mutex_);
  if (const auto found = committed_.find(step); found != committed_.end()) found->second.pinned = pinned;
}

}  // namespace cairn
