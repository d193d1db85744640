#include "io/watched_queue.h"

#include <utility>

namespace cairn {

void WatchedQueue::Submit(IoRequest request, IoDone done) {
  Order& order = waiting_[request.op == IoOp::kUnlink || request.op == IoOp::kRmdir ? 1 : 0];
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
  inner_->Submit(std::move(request), [&order, at = std::prev(order.end()), done = std::move(done)](std::int64_t value) {
    order.erase(at);
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
  return UnansweredOp{.what = Describe(order.front().request), .since = order.front().since};
}

}  // namespace cairn
