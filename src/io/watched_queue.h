#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "io/io_queue.h"

namespace cairn {

/// An operation that the disk has not answered.
struct UnansweredOp {
  std::string what;  ///< As Describe says it.
  std::string path;  ///< Its file.
  Deadline::Clock::time_point since;
};

/// Passes every call on to the queue inside, and knows since when each operation has waited.
class WatchedQueue : public IoQueue {
 public:
  /// Counts the operations that were interrupted, or have done a part only, and which the caller then repeats.
  explicit WatchedQueue(std::unique_ptr<IoQueue> inner, std::atomic<std::uint64_t>* repeated = nullptr)
      : repeated_(repeated), inner_(std::move(inner)) {}

  void Submit(IoRequest request, IoDone done) override;
  Result<std::size_t> RunOnce(Deadline deadline) override { return inner_->RunOnce(deadline); }
  void Wake() override { inner_->Wake(); }
  [[nodiscard]] std::size_t pending() const override { return inner_->pending(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }

  /// Since when the oldest operation waits; never if there is none. Removals that nobody
  /// waits for are counted apart: they may take as long as the file is large.
  [[nodiscard]] Deadline::Clock::time_point OldestSince(bool removals) const;
  [[nodiscard]] std::optional<UnansweredOp> Oldest(bool removals) const;

 private:
  struct Waiting {
    IoRequest request;
    Deadline::Clock::time_point since;
  };
  using Order = std::list<Waiting>;

  std::atomic<std::uint64_t>* const repeated_;
  // By whether they are slow by nature; oldest first. Outlives the queue inside, whose callbacks hold places in it.
  std::array<Order, 2> waiting_;
  std::unique_ptr<IoQueue> inner_;
};

/// For a call that blocks its caller: says so, once, when an operation has waited for `stall_timeout`, and goes on.
class LimitedQueue : public WatchedQueue {
 public:
  /// Zero for `stall_timeout`: no limit.
  LimitedQueue(std::unique_ptr<IoQueue> inner, std::chrono::nanoseconds stall_timeout,
               std::function<void(const Status&)> on_stall)
      : WatchedQueue(std::move(inner)), stall_timeout_(stall_timeout), on_stall_(std::move(on_stall)) {}

  Result<std::size_t> RunOnce(Deadline deadline) override;
  [[nodiscard]] bool stalled() const { return stalled_; }

 private:
  const std::chrono::nanoseconds stall_timeout_;
  const std::function<void(const Status&)> on_stall_;
  bool stalled_ = false;
};

/// Why a call fails: the disk has not answered this for `stall_timeout`.
[[nodiscard]] Status DiskHangs(const UnansweredOp& one, std::chrono::nanoseconds stall_timeout);
/// "fsync of FILE has waited for the disk for 3 s".
[[nodiscard]] std::string DescribeWait(const UnansweredOp& one);

}  // namespace cairn
