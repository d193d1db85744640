#pragma once

#include <string>

#include "models/model.h"

namespace cairn::trainer {

/// Fills the model's parameters from FOLDER/model.safetensors, or from the files of
/// FOLDER/model.safetensors.index.json, in Hugging Face's layout. Tied names may be there or not, and all of them may
/// lack the model's stem. What another task's head has is passed over, and where all of the model's own head is missing
/// it stays as drawn: both are said. Every other name must be the model's, and every name of the model's must be there,
/// of its shape and in F32, F16 or BF16: else std::runtime_error names file, tensor, what was expected and found, and
/// no parameter has changed.
void LoadWeights(const std::string& folder, const Model& model);

}  // namespace cairn::trainer
