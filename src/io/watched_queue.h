#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "io/io_queue.h"

namespace cairn {

/// An operation that the disk has not answered.
struct UnansweredOp {
  std::string what;  ///< As Describe says it.
  Deadline::Clock::time_point since;
};

/// Passes every call on to the queue inside, and knows since when each operation has waited.
class WatchedQueue : public IoQueue {
 public:
  explicit WatchedQueue(std::unique_ptr<IoQueue> inner) : inner_(std::move(inner)) {}

  void Submit(IoRequest request, IoDone done) override;
  Result<std::size_t> RunOnce(Deadline deadline) override { return inner_->RunOnce(deadline); }
  void Wake() override { inner_->Wake(); }
  [[nodiscard]] std::size_t pending() const override { return inner_->pending(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }

  /// Since when the oldest operation waits; never if there is none. Those that remove files are counted apart: they may
  /// take as long as the file is large.
  [[nodiscard]] Deadline::Clock::time_point OldestSince(bool removals) const;
  [[nodiscard]] std::optional<UnansweredOp> Oldest(bool removals) const;

 private:
  struct Waiting {
    IoRequest request;
    Deadline::Clock::time_point since;
  };
  using Order = std::list<Waiting>;

  // By whether they remove files; oldest first. Outlives the queue inside, whose callbacks hold places in it.
  Order waiting_[2];
  const std::unique_ptr<IoQueue> inner_;
};

}  // namespace cairn
