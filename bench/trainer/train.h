#pragma once

#include <cstdint>

#include "flags.h"

namespace cairn::trainer {

/// How a run ended, as the process's exit status. Failed saves have been reported.
enum class Outcome : std::uint8_t {
  /// All steps are done, and every save is durable.
  kTrained = 0,
  /// A save failed, or a signal ended the run without a checkpoint of its last step.
  kSaveFailed = 1,
  /// A signal ended the run, and its last checkpoint is durable.
  kStopped = 3,
};

/// Runs the training that the flags describe, until its end or a signal. Throws if training cannot continue.
Outcome Train(Flags flags);

}  // namespace cairn::trainer
