#pragma once

#include <cstddef>
#include <string>

#include "format/shard_header.h"

namespace cairn::bench {

/// A weight and its two moments.
inline constexpr std::size_t kKinds = 3;
/// The i-th tensor of a model as transformers and Adam name them: a weight, its moments, the next weight.
[[nodiscard]] std::string TensorName(std::size_t i);

/// The header of a shard with so many tensors of 12 KiB each, checksums included.
[[nodiscard]] ShardHeader HeaderOf(std::size_t tensors);

}  // namespace cairn::bench
