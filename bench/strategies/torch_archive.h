#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cairn/status.h"

namespace cairn::bench {

// Files of libtorch's torch::save: the zip archive, its checksums and its writer are those of Python's torch.save.

/// Replaces the file. It is not durable yet.
Status WriteTorchArchive(const std::string& path, std::uint64_t step, const std::vector<MutableBytes>& tensors);
/// Reads the tensors, which have the sizes of those written, and returns the step. Corrupt.
[[nodiscard]] Result<std::uint64_t> ReadTorchArchive(const std::string& path, const std::vector<MutableBytes>& tensors);

}  // namespace cairn::bench
