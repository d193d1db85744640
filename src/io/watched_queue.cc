#include "io/watched_queue.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/human.h"
#include "base/status_macros.h"

namespace cairn {

std::string DescribeWait(const UnansweredOp& one) {
  return fmt::format("{} has waited for the disk for {}", one.what, HumanDuration(Deadline::Clock::now() - one.since));
}

Status DiskHangs(const UnansweredOp& one, std::chrono::nanoseconds stall_timeout) {
  return Error(StatusCode::kDeadlineExceeded, StatusDetail::kDiskHangs, "{}, beyond stall_timeout ({})",
               DescribeWait(one), HumanDuration(stall_timeout));
}

void WatchedQueue::Submit(IoRequest request, IoDone done) {
  Order& order = waiting_[request.background && (request.op == IoOp::kUnlink || request.op == IoOp::kRmdir) ? 1 : 0];
  // A copy without the call, which may own anything.
  order.push_back({.request = {.op = request.op,
                               .fd = request.fd,
                               .length = request.length,
                               .offset = request.offset,
                               .path = request.path,
                               .path2 = request.path2,
                               .rename = request.rename,
                               .name = request.name},
                   .since = Deadline::Clock::now()});
  // Callers go on after a short write, and read again when they are interrupted.
  const std::int64_t whole = request.op == IoOp::kWrite ? static_cast<std::int64_t>(request.length) : 0;
  const bool reads = request.op == IoOp::kRead;
  inner_->Submit(std::move(request),
                 [this, whole, reads, &order, at = std::prev(order.end()), done = std::move(done)](std::int64_t value) {
                   order.erase(at);
                   const bool cut = value >= 0 ? value < whole : reads && (value == -EINTR || value == -EAGAIN);
                   if (cut && repeated_ != nullptr) ++*repeated_;
                   done(value);
                 });
}

Deadline::Clock::time_point WatchedQueue::OldestSince(bool removals) const {
  const Order& order = waiting_[removals ? 1 : 0];
  return order.empty() ? Deadline::Clock::time_point::max() : order.front().since;
}

std::optional<UnansweredOp> WatchedQueue::Oldest(bool removals) const {
  const Order& order = waiting_[removals ? 1 : 0];
  if (order.empty()) return std::nullopt;
  const Waiting& first = order.front();
  return UnansweredOp{.what = Describe(first.request), .path = FileOf(first.request), .since = first.since};
}

Result<std::size_t> LimitedQueue::RunOnce(Deadline deadline) {
  if (stall_timeout_.count() == 0 || stalled_) return WatchedQueue::RunOnce(deadline);
  const bool removals = OldestSince(true) < OldestSince(false);
  const auto since = OldestSince(removals);
  const Deadline limit =
      since == Deadline::Infinite().when() ? Deadline::Infinite() : Deadline::At(since + stall_timeout_);
  Result<std::size_t> called = WatchedQueue::RunOnce(Deadline::At(std::min(deadline.when(), limit.when())));
  if (!called.ok() || *called != 0 || !limit.passed()) return called;
  stalled_ = true;
  on_stall_(DiskHangs(*Oldest(removals), stall_timeout_));
  return WatchedQueue::RunOnce(deadline);
}

}  // namespace cairn
