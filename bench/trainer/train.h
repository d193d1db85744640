#pragma once

#include <cstdint>

#include "flags.h"

namespace cairn::trainer {

/// How a run ended, as the process's exit status. What went wrong with a save has been said.
enum class Outcome : std::uint8_t {
  kTrained = 0,     ///< Every step was done, and every save became durable.
  kSaveFailed = 1,  ///< Or a signal ended it without a checkpoint of its last step.
  kStopped = 3,     ///< A signal ended it, and the last checkpoint is durable.
};

/// Runs the training that the flags describe, until its end or a signal. Throws for everything that keeps training from
/// going on.
Outcome Train(Flags flags);

}  // namespace cairn::trainer
