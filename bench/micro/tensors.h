#pragma once

#include <cstddef>
#include <string>

#include "format/shard_header.h"

namespace cairn::bench {

/// Tensors for each weight: the weight and its two moments.
inline constexpr std::size_t kKinds = 3;
/// The i-th tensor's name, like transformers' and Adam's: a weight, its moments, the next weight.
[[nodiscard]] std::string TensorName(std::size_t i);

/// The header of a shard with this many tensors of 12 KiB each, including checksums.
[[nodiscard]] ShardHeader HeaderOf(std::size_t tensors);

}  // namespace cairn::bench
