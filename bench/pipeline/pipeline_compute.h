#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/worker_pool.h"
#include "bench/harness/training_loop.h"
#include "bench/pipeline/socket.h"

namespace cairn::bench {

struct PipelineSettings {
  int stage = 0;  ///< Of two.
  std::uint64_t micro_batches = 1;
  std::uint64_t activation_bytes = 0;  ///< Of one micro-batch; as many bytes of gradient come back.
  double iteration_seconds = 0;        ///< Of the whole pipeline, without its transfers.
  double update_seconds = 0;
};

enum class PipelineTask : std::uint8_t { kForward, kBackward };
/// 1F1B: what a stage of two does in an iteration, in order. Forward i of stage 1 waits for forward i of stage 0, and
/// backward i of stage 0 for backward i of stage 1.
[[nodiscard]] std::vector<PipelineTask> TasksOf(int stage, std::uint64_t micro_batches);

/// One stage of a pipeline of two. Each forward and backward waits for as long as it takes (a backward twice as long
/// as a forward); activations and gradients are real bytes on a real connection, sent beside the computing. The update
/// is PacedCompute's.
class PipelineCompute : public Compute {
 public:
  /// All of them outlive it. Nothing else may use the socket until it is destroyed: then all has been sent.
  PipelineCompute(const PipelineSettings& settings, const LoopClock& clock, Socket& other_stage, Compute& update);

  /// IoError soon after the other stage has gone; Internal if it sends anything but what is due.
  Status Forward(double began) override;
  Status Update(std::uint64_t step) override { return update_.Update(step); }

 private:
  // What each transfer begins with.
  struct Head {
    std::uint64_t iteration = 0;
    std::uint64_t micro_batch = 0;
  };

  void Send(const Head& head);
  Status Receive(const Head& head);

  const PipelineSettings settings_;
  const LoopClock& clock_;
  Socket& other_stage_;
  Compute& update_;
  const std::vector<PipelineTask> tasks_;
  const double forward_seconds_;
  std::vector<std::byte> sent_;  // The sender's.
  std::vector<std::byte> received_;
  std::uint64_t iteration_ = 0;
  Mutex mutex_;
  Status sending_ CAIRN_GUARDED_BY(mutex_);  // The first failure.
  WorkerPool sender_{"pipeline-send", 1};    // Last: it ends before what it uses.
};

}  // namespace cairn::bench
