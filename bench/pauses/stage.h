#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/worker_pool.h"
#include "cairn/cairn.h"
#include "device/host_device.h"

namespace cairn::bench {

using Clock = std::chrono::steady_clock;

/// The pipeline and the machine that it runs on; the same for all stages.
struct PipelineModel {
  int stages = 4;
  int micro_batches = 8;
  /// What a stage computes for one micro-batch, and at the end of an iteration.
  std::chrono::milliseconds forward{100};
  std::chrono::milliseconds backward{200};
  std::chrono::milliseconds update{10};
  /// Of each stage, to the host, in bytes per second.
  double link = 62.5e6;
  /// What a stage sends to the next one, or back, for one micro-batch.
  std::uint64_t message_bytes = 0;
  /// What a stage checkpoints.
  std::uint64_t state_bytes = 0;
  int copy_streams = 2;
};

enum class Saving : std::uint8_t {
  kNone,
  kAsIs,     ///< Copies begin as soon as they can.
  kBubbles,  ///< They pause unless the stage waits for a neighbour and sends nothing.
  kGaps,     ///< They pause while the stage sends.
};

/// One stage of a 1F1B pipeline, with a GPU in host memory. Computing is waiting for a deadline. A message is a real
/// copy over the stage's link; it reaches the neighbour's host when it ends.
class Stage {
 public:
  Stage(const PipelineModel& model, int index);

  /// Opens the checkpointer: on all stages at once.
  Status Open(const std::string& root, std::shared_ptr<Group> group);
  void SetNeighbours(Stage* before, Stage* after) { before_ = before, after_ = after; }

  /// All forwards and backwards of an iteration. Before them: with saves, saves as `step`.
  Status RunSchedule(Saving saving, std::uint64_t step);
  /// The fence and the optimizer's update, which writes `step` + 1. How long the fence took.
  Result<std::chrono::nanoseconds> Update(Saving saving, std::uint64_t step);
  Status Drain() { return checkpointer_->Drain(); }
  /// Whether the newest checkpoint is that of `step`, in every block.
  Status CheckRestored(std::uint64_t step);

 private:
  enum Direction : std::uint8_t { kForward, kBackward };
  // Messages of one direction, as they come.
  struct Arrived {
    std::vector<Clock::time_point> at;
    std::size_t taken = 0;
  };

  Status Run(Direction direction);
  Status Send(Direction direction, Stage& to);
  void Await(Direction direction) CAIRN_EXCLUDES(mutex_);
  void AwaitSent() CAIRN_EXCLUDES(mutex_);
  void Compute(std::chrono::nanoseconds span);
  void OnArrived(Direction direction) CAIRN_EXCLUDES(mutex_);
  void OnSent() CAIRN_EXCLUDES(mutex_);
  void SetWaiting(bool waiting) CAIRN_EXCLUDES(mutex_);
  void UpdatePause() CAIRN_REQUIRES(mutex_);
  void WriteState(std::uint64_t step);

  const PipelineModel model_;
  const int index_;
  WorkerPool workers_;  // Unused by a device with streams.
  const std::shared_ptr<HostDevice> host_;
  const Stream stream_;
  std::vector<std::uint64_t> memory_;
  State state_;
  std::vector<std::byte> message_;
  std::vector<std::byte> staged_message_;
  const StridedLayout message_layout_;
  std::unique_ptr<Checkpointer> checkpointer_;
  Stage* before_ = nullptr;
  Stage* after_ = nullptr;
  // When what the stage does now would end on an idle machine: late wake-ups do not add up.
  Clock::time_point now_;

  Mutex mutex_;
  CondVar changed_;
  std::array<Arrived, 2> arrived_ CAIRN_GUARDED_BY(mutex_);
  int sending_ CAIRN_GUARDED_BY(mutex_) = 0;
  Clock::time_point sent_at_ CAIRN_GUARDED_BY(mutex_);
  bool waiting_ CAIRN_GUARDED_BY(mutex_) = false;
  // kNone also from the fence to the next save: nothing pauses then.
  Saving saving_ CAIRN_GUARDED_BY(mutex_) = Saving::kNone;
  bool paused_ CAIRN_GUARDED_BY(mutex_) = false;
  CopyPause pause_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::bench
