#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// The length of an open manifest. Corrupt if it is not a regular file or is too long.
[[nodiscard]] Result<std::uint64_t> ManifestFileSize(const UniqueFd& fd, const std::string& path);

}  // namespace cairn
