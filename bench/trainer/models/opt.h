#pragma once

#include "models/config_file.h"
#include "models/model.h"

namespace cairn::trainer {

/// OPT (Zhang et al., 2022), a causal language model, with the layers, names and initial weights of
/// transformers' OPTForCausalLM.
///
/// Takes "input_ids" [n, length]. Sizes: hidden, layers, heads, ffn, vocabulary, positions, embedding (of a token;
/// differs from hidden only in opt-350m) and pre_norm (1: layer norms before each block; 0: after it, as in opt-350m).
Model MakeOpt(const ModelConfig& config);

extern const ConfigLayout kOptConfig;

}  // namespace cairn::trainer
