#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "cairn/status.h"

namespace cairn {

/// The length of an open manifest. Corrupt where it is no regular file or longer than a manifest may be.
[[nodiscard]] Result<std::uint64_t> ManifestFileSize(const UniqueFd& fd, const std::string& path);

}  // namespace cairn
