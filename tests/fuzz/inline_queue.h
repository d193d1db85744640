#pragma once

#include <sys/eventfd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/io_queue.h"
#include "io/plain_io.h"
#include "io/wake_signal.h"

namespace cairn {

/// Runs each operation's system call within RunOnce, in order, so that an input always takes the same path.
class InlineQueue final : public IoQueue {
 public:
  [[nodiscard]] static Result<std::unique_ptr<IoQueue>> Make() {
    auto queue = std::make_unique<InlineQueue>();
    if (Status status = queue->signal_.Open(EFD_NONBLOCK); !status.ok()) return status;
    return Result<std::unique_ptr<IoQueue>>(std::move(queue));
  }

  void Submit(IoRequest request, IoDone done) override { waiting_.emplace_back(std::move(request), std::move(done)); }
  Result<std::size_t> RunOnce(Deadline deadline) override {
    if (waiting_.empty() && !signal_.Take()) {
      signal_.Sleep(deadline);
      (void)signal_.Take();
    }
    const auto now = std::exchange(waiting_, {});
    for (const auto& [request, done] : now) done(RunPlain(request));
    return now.size();
  }
  void Wake() override { signal_.Wake(); }
  [[nodiscard]] std::size_t pending() const override { return waiting_.size(); }
  [[nodiscard]] std::string name() const override { return "inline"; }

 private:
  WakeSignal signal_;
  std::vector<std::pair<IoRequest, IoDone>> waiting_;
};

}  // namespace cairn
