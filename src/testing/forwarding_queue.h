#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "io/io_queue.h"

namespace cairn {

/// Passes every call on to the queue inside. A base for queues that change some of the calls.
class ForwardingQueue : public IoQueue {
 public:
  explicit ForwardingQueue(std::unique_ptr<IoQueue> inner) : inner_(std::move(inner)) {}

  void Submit(IoRequest request, IoDone done) override { inner_->Submit(std::move(request), std::move(done)); }
  Result<std::size_t> RunOnce(Deadline deadline) override { return inner_->RunOnce(deadline); }
  void Wake() override { inner_->Wake(); }
  [[nodiscard]] std::size_t pending() const override { return inner_->pending(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }

 protected:
  const std::unique_ptr<IoQueue> inner_;
};

/// A factory that puts a Queue around each queue that `inner` makes: Queue(shared, queue).
template <typename Queue, typename Shared>
[[nodiscard]] IoQueueFactory WrapQueues(std::shared_ptr<Shared> shared, IoQueueFactory inner) {
  return [shared = std::move(shared), inner = std::move(inner)]() -> Result<std::unique_ptr<IoQueue>> {
    auto queue = inner();
    if (!queue.ok()) return queue.status();
    return std::unique_ptr<IoQueue>(std::make_unique<Queue>(shared, *std::move(queue)));
  };
}

}  // namespace cairn
