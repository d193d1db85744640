#pragma once

#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "io/io_queue.h"

namespace cairn {

/// A filesystem whose renames know no flags, as NFS is: no exchange, no refusal to replace.
class PlainRenamesQueue : public IoQueue {
 public:
  explicit PlainRenamesQueue(std::unique_ptr<IoQueue> inner) : inner_(std::move(inner)) {}

  void Submit(IoRequest request, IoDone done) override {
    if (request.op != IoOp::kRename || request.rename == RenameMode::kPlain) {
      return inner_->Submit(std::move(request), std::move(done));
    }
    // The refused close of no descriptor carries the answer to RunOnce.
    inner_->Submit({.op = IoOp::kClose}, [done = std::move(done)](std::int64_t) { done(-EINVAL); });
  }
  Result<std::size_t> RunOnce(Deadline deadline) override { return inner_->RunOnce(deadline); }
  void Wake() override { inner_->Wake(); }
  [[nodiscard]] std::size_t pending() const override { return inner_->pending(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }

 private:
  const std::unique_ptr<IoQueue> inner_;
};

inline IoQueueFactory PlainRenames(IoQueueFactory inner) {
  return [inner = std::move(inner)]() -> Result<std::unique_ptr<IoQueue>> {
    auto queue = inner();
    if (!queue.ok()) return queue.status();
    return std::unique_ptr<IoQueue>(std::make_unique<PlainRenamesQueue>(*std::move(queue)));
  };
}

}  // namespace cairn
