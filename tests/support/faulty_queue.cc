#include "support/faulty_queue.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "testing/forwarding_queue.h"

namespace cairn {
namespace {

bool Matches(const FaultMatch& match, const SeenOperation& seen) {
  if (match.op.has_value() && *match.op != seen.op) return false;
  if (match.rename.has_value() && (seen.op != IoOp::kRename || *match.rename != seen.rename)) return false;
  return seen.path.find(match.path) != std::string::npos || seen.path2.find(match.path) != std::string::npos;
}

void KillThisProcess() { ::kill(::getpid(), SIGKILL); }

}  // namespace

/// One queue under a plan: judges each operation as it is submitted.
class FaultyQueue : public ForwardingQueue {
 public:
  FaultyQueue(std::shared_ptr<FaultPlan> plan, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), plan_(std::move(plan)) {
    MutexLock lock(plan_->mutex_);
    plan_->queues_.insert(inner_.get());
  }
  ~FaultyQueue() override {
    MutexLock lock(plan_->mutex_);
    plan_->queues_.erase(inner_.get());
  }

  void Submit(IoRequest request, IoDone done) override {
    ++pending_;
    FaultPlan::Verdict verdict = plan_->Judge(request);
    switch (verdict.action.kind) {
      case FaultPlan::Kind::kFail:
        failed_.push_back({verdict.index, -verdict.action.error, std::move(done)});
        return;
      case FaultPlan::Kind::kHold:
        held_.push_back({std::move(verdict), std::move(request), std::move(done)});
        return;
      case FaultPlan::Kind::kKillBefore:
        return KillThisProcess();
      case FaultPlan::Kind::kBefore:
        verdict.action.hook(verdict.seen);
        break;
      default:
        break;
    }
    Pass(std::move(verdict), std::move(request), std::move(done));
  }

  Result<std::size_t> RunOnce(Deadline deadline) override {
    PassReleased();
    called_ = 0;
    std::vector<Failed> failed = std::exchange(failed_, {});
    const auto ran = inner_->RunOnce(failed.empty() ? deadline : Deadline::At(Deadline::Clock::now()));
    for (Failed& operation : failed) Finish(operation.index, operation.result, operation.done);
    if (!ran.ok()) return ran.status();
    return called_;
  }

  [[nodiscard]] std::size_t pending() const override { return pending_; }

 private:
  struct Failed {
    std::size_t index;
    std::int64_t result;
    IoDone done;
  };
  struct Held {
    FaultPlan::Verdict verdict;
    IoRequest request;
    IoDone done;
  };

  void Pass(FaultPlan::Verdict verdict, IoRequest request, IoDone done) {
    if (verdict.action.kind == FaultPlan::Kind::kShorten) {
      // The request stays valid for O_DIRECT; the caller gets a smaller count.
      const std::uint64_t bytes = std::min(verdict.action.bytes, request.length);
      request.length = std::min(AlignUp(bytes, kBlock), request.length);
    }
    if (request.op == IoOp::kClose) plan_->fds_.Closing(request.fd);
    const IoOp op = request.op;
    const std::string path = request.path.text();
    inner_->Submit(std::move(request),
                   [this, op, path, verdict = std::move(verdict), done = std::move(done)](std::int64_t result) mutable {
                     if (op == IoOp::kOpen && result >= 0) plan_->fds_.Opened(static_cast<int>(result), path);
                     if (verdict.action.kind == FaultPlan::Kind::kKillAfter) KillThisProcess();
                     if (verdict.action.kind == FaultPlan::Kind::kFailAfter) result = -verdict.action.error;
                     if (verdict.action.kind == FaultPlan::Kind::kShorten) {
                       result = std::min(result, static_cast<std::int64_t>(verdict.action.bytes));
                     }
                     verdict.seen.result = result;
                     if (verdict.action.kind == FaultPlan::Kind::kAfter) verdict.action.hook(verdict.seen);
                     Finish(verdict.index, result, done);
                   });
  }

  void PassReleased() {
    std::vector<Held> released;
    {
      MutexLock lock(plan_->mutex_);
      for (auto it = held_.begin(); it != held_.end();) {
        if (it->verdict.action.gate->open) {
          released.push_back(std::move(*it));
          it = held_.erase(it);
        } else {
          ++it;
        }
      }
    }
    for (Held& held : released) Pass(std::move(held.verdict), std::move(held.request), std::move(held.done));
  }

  void Finish(std::size_t index, std::int64_t result, const IoDone& done) {
    plan_->Finished(index, result);
    --pending_;
    ++called_;
    done(result);
  }

  const std::shared_ptr<FaultPlan> plan_;
  std::vector<Failed> failed_;  // Called back by the next RunOnce.
  std::deque<Held> held_;
  std::size_t pending_ = 0;
  std::size_t called_ = 0;
};

std::string ToString(const std::vector<SeenOperation>& seen) {
  std::string text;
  for (const SeenOperation& operation : seen) {
    text += std::string(IoOpName(operation.op)) + " " + operation.path;
    if (!operation.path2.empty()) text += " -> " + operation.path2;
    text += operation.result.has_value() ? " = " + std::to_string(*operation.result) + "\n" : " (under way)\n";
  }
  return text;
}

bool FaultGate::WaitHeld(Deadline deadline) const {
  MutexLock lock(plan_->mutex_);
  while (!state_->reached) {
    if (!plan_->held_.WaitUntil(plan_->mutex_, deadline)) break;
  }
  return state_->reached;
}

void FaultGate::Release() const {
  MutexLock lock(plan_->mutex_);
  state_->open = true;
  for (IoQueue* queue : plan_->queues_) queue->Wake();
}

IoQueueFactory FaultPlan::Wrap(IoQueueFactory inner) {
  return WrapQueues<FaultyQueue>(shared_from_this(), std::move(inner));
}

void FaultPlan::Fail(FaultMatch match, int error) { Add(std::move(match), {.kind = Kind::kFail, .error = error}); }
void FaultPlan::RefuseRenameFlags() {
  for (const RenameMode mode : {RenameMode::kNoReplace, RenameMode::kExchange})
    Fail({.path = {}, .rename = mode}, EINVAL);
}
void FaultPlan::FailAfter(FaultMatch match, int error) {
  Add(std::move(match), {.kind = Kind::kFailAfter, .error = error});
}
void FaultPlan::Shorten(FaultMatch match, std::uint64_t bytes) {
  Add(std::move(match), {.kind = Kind::kShorten, .bytes = bytes});
}
void FaultPlan::KillBefore(FaultMatch match) { Add(std::move(match), {.kind = Kind::kKillBefore}); }
void FaultPlan::KillAfter(FaultMatch match) { Add(std::move(match), {.kind = Kind::kKillAfter}); }
void FaultPlan::CallBefore(FaultMatch match, std::function<void(const SeenOperation&)> hook) {
  Add(std::move(match), {.kind = Kind::kBefore, .hook = std::move(hook)});
}
void FaultPlan::CallAfter(FaultMatch match, std::function<void(const SeenOperation&)> hook) {
  Add(std::move(match), {.kind = Kind::kAfter, .hook = std::move(hook)});
}

FaultGate FaultPlan::Hold(FaultMatch match) {
  auto state = std::make_shared<FaultGate::State>();
  Add(std::move(match), {.kind = Kind::kHold, .gate = state});
  return {shared_from_this(), std::move(state)};
}

void FaultPlan::Clear() {
  MutexLock lock(mutex_);
  rules_.clear();
}

std::vector<SeenOperation> FaultPlan::Seen() const {
  MutexLock lock(mutex_);
  return seen_;
}

std::size_t FaultPlan::Count(const FaultMatch& match) const {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      seen_.begin(), seen_.end(), [&match](const SeenOperation& operation) { return Matches(match, operation); }));
}

void FaultPlan::Add(FaultMatch match, Action action) {
  MutexLock lock(mutex_);
  rules_.push_back({std::move(match), std::move(action)});
}

FaultPlan::Verdict FaultPlan::Judge(const IoRequest& request) {
  const std::string path = request.path.empty() ? fds_.Find(request.fd) : request.path.text();
  MutexLock lock(mutex_);
  Verdict verdict{.index = seen_.size(),
                  .seen = {request.op, path, request.path2.text(), request.offset, request.length, {}, request.rename},
                  .action = {}};
  seen_.push_back(verdict.seen);
  for (Rule& rule : rules_) {
    if (!Matches(rule.match, verdict.seen)) continue;
    ++rule.matched;
    const bool acts = rule.match.nth == 0 || rule.match.nth == rule.matched;
    const bool passed = rule.action.kind == Kind::kHold && rule.action.gate->open;
    if (acts && !passed && verdict.action.kind == Kind::kNone) verdict.action = rule.action;
  }
  if (verdict.action.kind == Kind::kHold) {
    verdict.action.gate->reached = true;
    held_.NotifyAll();
  }
  return verdict;
}

void FaultPlan::Finished(std::size_t index, std::int64_t result) {
  MutexLock lock(mutex_);
  seen_[index].result = result;
}

}  // namespace cairn
