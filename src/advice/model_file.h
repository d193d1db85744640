#pragma once

#include <string>

#include "advice/layouts.h"
#include "cairn/status.h"

namespace cairn {

/// Reads a model's shapes from JSON: {"gpt": {sizes}}, or {"layers": N, "tensors": [...]}. docs/planning.md says
/// which members there are. InvalidArgument names the file, the member, and the expected and the found value.
[[nodiscard]] Result<Model> ReadModelFile(const std::string& path);

}  // namespace cairn
