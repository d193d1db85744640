#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "advice/layouts.h"
#include "cairn/tensor.h"

namespace cairn {

// The tensors of known families of models, from their sizes, as pure functions.

/// What a training keeps for each weight: the weight, and what its optimizer has.
struct Kept {
  DType weights = DType::kF32;
  DType optimizer = DType::kF32;
  /// The optimizer has a copy of the weight, as in mixed precision.
  bool copy = false;
  /// 2 with Adam, 1 with momentum.
  int moments = 2;
};

/// A GPT as Megatron cuts it.
struct GptSizes {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  /// 0: unknown.
  std::int64_t heads = 0;
  std::int64_t feed_forward = 0;
  std::int64_t positions = 0;
  std::int64_t vocabulary = 0;
  /// See ModelTensor::pad.
  std::int64_t vocabulary_multiple = 128;
  /// The head uses the word embeddings.
  bool tied = true;
  Kept kept = {.weights = DType::kBF16, .copy = true};
};
[[nodiscard]] Model MakeGpt(const GptSizes& sizes);

/// By the names that models.json has for them.
using ModelSizes = std::map<std::string, std::int64_t>;

/// A model of a family of models.json: bert, bloom, gpt, opt, t5, transformer_xl, vgg or wide_resnet, with the tensors
/// of its reference implementation: Megatron's (gpt), torchvision's (vgg, wide_resnet), transformers' (the others). The
/// sizes must be the family's.
[[nodiscard]] Model MakeModel(std::string_view family, const ModelSizes& sizes, const Kept& kept);

}  // namespace cairn
