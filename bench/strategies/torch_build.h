#pragma once

#include "bench/strategies/flags.h"
#include "cairn/status.h"

namespace cairn::bench {

/// Two binaries are built of bench_training: the usual one, which maps nothing of libtorch, and where there is libtorch
/// bench_training_torch beside it, for what needs that. Each links its own version of this, of GeminiKind and of
/// OpenTrainer.
///
/// Where the run needs libtorch, goes on in the binary that has it: in the same process, by exec. Returns Ok where this
/// binary will do, and Unsupported, with how to get it, where there is no other.
Status EnterTorchBuild(const Flags& flags, char** argv);

}  // namespace cairn::bench
