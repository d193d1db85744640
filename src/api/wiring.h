#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/modelled_time.h"
#include "base/worker_pool.h"
#include "device/device.h"
#include "group/node_ranks.h"
#include "io/io_queue.h"

namespace cairn {

/// Parts of a Checkpointer that experiments and tests replace. An empty member means the usual part.
struct Wiring {
  /// Makes the devices. The CPU's device is added if none of them has its id.
  std::function<Result<std::vector<std::shared_ptr<Device>>>(WorkerPool&)> devices;
  /// Makes a CUDA device that `devices` has not made, when it is set up.
  std::function<Result<std::unique_ptr<Device>>(DeviceId, WorkerPool&)> cuda;
  /// Wraps the factory of the chosen queue: faults, rate limits, recordings. Called for every queue that is made.
  std::function<IoQueueFactory(IoQueueFactory)> wrap_queue;
  /// The same for those of Options::memory_root, whose reads go through the others.
  std::function<IoQueueFactory(IoQueueFactory)> wrap_memory_queue;
  /// Who has asked the other ranks already, gives the answer here. Otherwise Open asks them, if it must know it.
  std::optional<NodeRanks> node = std::nullopt;
  /// See kFrozenEvery: tests do not want to wait so long.
  std::optional<std::uint64_t> frozen_every = std::nullopt;
  /// See Mirrors::Parts.
  std::chrono::nanoseconds mirror_patience = std::chrono::minutes(1);
  /// The clock by which Options::steering times iterations.
  TimeSource now = Deadline::Clock::now;
};

}  // namespace cairn
