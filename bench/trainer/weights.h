#pragma once

#include <string>

#include "models/model.h"

namespace cairn::trainer {

/// Loads the model's parameters from FOLDER/model.safetensors, or from the files of
/// FOLDER/model.safetensors.index.json, in Hugging Face's layout. Tied names are optional, and all names may lack the
/// model's stem. Tensors of another task's head are skipped; if the whole head of this model is missing, it keeps its
/// initial weights. Both are reported. Apart from that, the files must have exactly the model's names, with its shapes,
/// in F32, F16 or BF16. Otherwise throws std::runtime_error, naming file, tensor, expected and found, and changes no
/// parameter.
void LoadWeights(const std::string& folder, const Model& model);

}  // namespace cairn::trainer
