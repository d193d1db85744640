#pragma once

#include <string>
#include <vector>

#include "cairn/options.h"
#include "cairn/status.h"

namespace cairn {

/// Options::mirrors with whole targets: absolute paths, places without slashes at their ends. Reads no disk.
/// InvalidArgument, or Unsupported for a store that mirrors do not know.
[[nodiscard]] Result<std::vector<MirrorSpec>> CheckMirrors(const Options& options);
/// The same for one target; `name` is the option's.
[[nodiscard]] Result<std::string> CheckMirrorTarget(const std::string& target, const std::string& name);

}  // namespace cairn
