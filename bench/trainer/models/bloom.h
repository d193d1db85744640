#pragma once

#include "models/config_file.h"
#include "models/model.h"

namespace cairn::trainer {

/// BLOOM (BigScience, 2022), a causal language model, with the layers, names and initial weights of transformers'
/// BloomForCausalLM.
///
/// Takes "input_ids" [n, length], of any length: positions are linear biases in attention (ALiBi). Sizes: hidden,
/// layers, heads and vocabulary.
Model MakeBloom(const ModelConfig& config);

extern const ConfigLayout kBloomConfig;

}  // namespace cairn::trainer
