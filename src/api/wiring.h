#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/modelled_time.h"
#include "base/worker_pool.h"
#include "device/device.h"
#include "io/io_queue.h"

namespace cairn {

/// The parts of a Checkpointer that experiments and tests put in place of the usual ones. Empty members: the usual
/// ones.
struct Wiring {
  /// Makes the devices; the CPU's is added where none has its id.
  std::function<Result<std::vector<std::shared_ptr<Device>>>(WorkerPool&)> devices;
  /// Wraps the factory of the chosen queue: faults, rate limits, recordings. Called for every queue that is made.
  std::function<IoQueueFactory(IoQueueFactory)> wrap_queue;
  /// What Options::steering times iterations by.
  TimeSource now = Deadline::Clock::now;
};

}  // namespace cairn
