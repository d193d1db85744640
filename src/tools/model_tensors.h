#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/export_parts.h"

namespace cairn::tools {

/// What a model folder takes of a checkpoint, by name.
struct ModelTensors {
  std::vector<FileTensor> tensors;
  /// For the user.
  std::vector<std::string> warnings;
};

/// Finds the model in a checkpoint; selects all files of the source.
///
/// The model is what is below --strip-prefix; or below the key "model"; or, as in checkpoints of the Hugging Face
/// Trainer, what is at the top of the tree, not in a dict or list below. Tensors may be in parts. Each has all of its
/// names, also those that are tied in memory. But if `config_ties` (tie_word_embeddings of the model's config),
/// lm_head.weight is left out where another tensor has the same bytes: from_pretrained ties it. If they differ, a
/// warning says so. NotFound if nothing says where the model is. Unsupported if frozen parameters are not in the
/// checkpoint.
[[nodiscard]] Result<ModelTensors> FindModelTensors(const Reading& reading, TensorSource& source,
                                                    const ExportOptions& options, bool config_ties);

}  // namespace cairn::tools
