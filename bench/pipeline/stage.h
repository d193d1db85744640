#pragma once

#include <cstdint>
#include <vector>

#include "bench/harness/training_state.h"

namespace cairn::bench {

// PCcheck's figure 8e: OPT-2.7B in fp32, trained with AdamW by two nodes of one A100 each, a pipeline stage on each.
// Shapes, cut and pace are those that the authors' artifact logged
// (artifact_evaluation/evaluation/throughput/opt_27, fig8_opt27.csv).

inline constexpr int kStages = 2;
/// Without checkpoints.
[[nodiscard]] double OptIterationSeconds();
/// One sample of 1,024 tokens, hidden size 2,560, fp32: what goes forward, and its gradient back, in each micro-batch.
inline constexpr std::uint64_t kOptActivationBytes = 1024ULL * 2560 * 4;
inline constexpr std::uint64_t kOptMicroBatches = 1;

/// Weights and AdamW's two moments of one stage: the embeddings and layers 0 to 15, or layers 16 to 31 and the head.
/// Each tensor has `scale` of its bytes, in whole sectors.
[[nodiscard]] std::vector<NamedBytes> OptStage(int stage, double scale);

}  // namespace cairn::bench
