#pragma once

#include "models/config_file.h"
#include "models/model.h"

namespace cairn::trainer {

/// BERT (Devlin et al., 2019), with the layers, names and initial weights of transformers' BertForPreTraining or, for
/// questions, BertForQuestionAnswering. Sizes: hidden, layers, heads, intermediate, vocabulary, positions, types.
///
/// For pairs, takes "input_ids" [n, length], "token_type_ids" and "next_sentence_label". The loss is that of the masked
/// tokens, drawn anew for each batch, plus that of the label. The logits, with nothing masked, are those of every token
/// [n, length, vocabulary], followed by those of the label [n, 2], in one row.
///
/// For questions, also takes "attention_mask", "start_positions" and "end_positions". The loss is the mean of the start
/// and end losses; the logits [n, length, 2] contain both. Can also start from pre-trained weights.
Model MakeBert(const ModelConfig& config);

extern const ConfigLayout kBertConfig;

}  // namespace cairn::trainer
