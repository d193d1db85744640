#pragma once

#include "models/config_file.h"
#include "models/model.h"

namespace cairn::trainer {

/// BERT (Devlin et al., 2019): bert-base or bert-large, with the layers, names and initial weights of transformers'
/// BertForPreTraining, or, for questions, of its BertForQuestionAnswering. Sizes: hidden, layers, heads, intermediate,
/// vocabulary, positions, types.
///
/// Of pairs it takes "input_ids" [n, length], "token_type_ids" and "next_sentence_label". The loss is that of the
/// tokens that were masked, drawn anew for each batch, plus that of the label. The logits are those of every token [n,
/// length, vocabulary], none masked, and behind them those of the label [n, 2], in one row.
///
/// Of questions it takes "attention_mask", "start_positions" and "end_positions" too. The loss is the mean of those of
/// start and end, the logits [n, length, 2] are of both. Starts from the weights of a pre-training as well.
Model MakeBert(const ModelConfig& config);

extern const ConfigLayout kBertConfig;

}  // namespace cairn::trainer
