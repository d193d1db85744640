#include "testing/rate_limited_queue.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <vector>

#include "base/status_macros.h"
#include "testing/forwarding_queue.h"

namespace cairn {

/// Holds back each completion until the disk would have finished the operation.
class RateLimitedQueue : public ForwardingQueue {
 public:
  RateLimitedQueue(std::shared_ptr<RateLimitedDisk> disk, std::unique_ptr<IoQueue> inner)
      : ForwardingQueue(std::move(inner)), disk_(std::move(disk)) {}

  void Submit(IoRequest request, IoDone done) override {
    ++pending_;
    const bool data = request.op == IoOp::kWrite ||
                      (request.op == IoOp::kRead && disk_->limits_ == RateLimitedDisk::Limits::kReadsAndWrites);
    const auto due = data ? disk_->Take(request.length) : Clock::time_point::min();
    inner_->Submit(std::move(request), [this, due, done = std::move(done)](std::int64_t result) mutable {
      finished_.emplace(due, Finished{std::move(done), result});
    });
  }

  Result<std::size_t> RunOnce(Deadline deadline) override {
    if (disk_->time_ != nullptr) return RunModelled(deadline);
    while (true) {
      const auto next = finished_.empty() ? Clock::time_point::max() : finished_.begin()->first;
      CAIRN_RETURN_IF_ERROR(inner_->RunOnce(Deadline::At(std::min(deadline.when(), next))).status());
      const std::size_t called = CallDue();
      // The inner queue may have returned for a completion and for Wake at once, so it alone can't tell.
      if (woken_.exchange(false) || called > 0 || deadline.passed()) return called;
    }
  }

  void Wake() override {
    woken_ = true;
    inner_->Wake();
  }
  [[nodiscard]] std::size_t pending() const override { return pending_; }

 private:
  using Clock = RateLimitedDisk::Clock;
  struct Finished {
    IoDone done;
    std::int64_t result;
  };

  // What is under way has taken its place on the disk: all of it completes, then time goes on to what is due first.
  Result<std::size_t> RunModelled(Deadline deadline) {
    do {
      if (inner_->pending() == 0 && !finished_.empty()) {
        disk_->time_->AdvanceTo(finished_.begin()->first);
        return CallDue();
      }
      CAIRN_RETURN_IF_ERROR(inner_->RunOnce(deadline).status());
    } while (!woken_.exchange(false) && !deadline.passed());
    return CallDue();
  }

  std::size_t CallDue() {
    const auto end = finished_.upper_bound(disk_->Now());
    std::vector<Finished> due;
    for (auto it = finished_.begin(); it != end; ++it) due.push_back(std::move(it->second));
    finished_.erase(finished_.begin(), end);
    for (Finished& operation : due) {
      --pending_;
      operation.done(operation.result);
    }
    return due.size();
  }

  const std::shared_ptr<RateLimitedDisk> disk_;
  std::multimap<Clock::time_point, Finished> finished_;
  std::atomic<bool> woken_ = false;
  std::size_t pending_ = 0;
};

IoQueueFactory RateLimitedDisk::Wrap(IoQueueFactory inner) {
  return WrapQueues<RateLimitedQueue>(shared_from_this(), std::move(inner));
}

void RateLimitedDisk::SetRate(std::uint64_t bytes_per_second) {
  MutexLock lock(mutex_);
  rate_ = bytes_per_second;
}

std::uint64_t RateLimitedDisk::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

RateLimitedDisk::Clock::time_point RateLimitedDisk::Take(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const std::chrono::duration<double> taken(static_cast<double>(bytes) / static_cast<double>(rate_));
  busy_until_ = std::max(busy_until_, Now()) + std::chrono::duration_cast<Clock::duration>(taken);
  bytes_ += bytes;
  return busy_until_;
}

}  // namespace cairn
