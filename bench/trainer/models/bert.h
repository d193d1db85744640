#pragma once

#include "models/config_file.h"
#include "models/model.h"

namespace cairn::trainer {

/// BERT (Devlin et al., 2019): bert-base or bert-large, with the layers, names and initial weights of transformers'
/// BertForPreTraining.
///
/// Takes "input_ids" [n, length], "token_type_ids" and "next_sentence_label", whose losses are added: that of the
/// tokens that were masked, drawn anew for each batch, and that of what follows what. Its logits are those of every
/// token [n, length, vocabulary], unmasked, and behind them those of the labels [n, 2], in one row. Sizes: hidden,
/// layers, heads, intermediate, vocabulary, positions, types.
Model MakeBert(const ModelConfig& config);

extern const ConfigLayout kBertConfig;

}  // namespace cairn::trainer
