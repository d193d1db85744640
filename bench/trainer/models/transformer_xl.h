#pragma once

#include "models/model.h"

namespace cairn::trainer {

/// Transformer-XL (Dai et al., 2019), a causal language model with a memory, as trained on WikiText-103, with the
/// layers, names and initial weights of Hugging Face's former TransfoXLLMHeadModel.
///
/// Takes streams of text: "input_ids" and "labels" [rows, length], "begins" [rows]. The memory, each layer's inputs at
/// the last tokens of each row, is the buffer "memory" [layers, rows, memory, hidden]. Only `advance` changes it. Rows
/// that begin see zeros instead. Logits are log-probabilities.
///
/// Sizes: hidden, layers, heads, head_size, ffn, memory, vocabulary, cutoff1 to cutoff3 (where the vocabulary's
/// clusters after the first begin; those that lie beyond the vocabulary are left out), div_val (embeddings of each
/// cluster are so many times narrower than those of the one before) and untie_r (1 or 0: attention's biases are each
/// layer's own, or all share them).
Model MakeTransformerXl(const ModelConfig& config);

}  // namespace cairn::trainer
