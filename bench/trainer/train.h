#pragma once

#include "flags.h"

namespace cairn::trainer {

/// Runs the training that the flags describe. True where every step was done and every save became durable; what went
/// wrong with a save has then been said. Throws for everything that keeps training from going on.
bool Train(Flags flags);

}  // namespace cairn::trainer
