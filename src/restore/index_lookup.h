#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/status.h"
#include "io/io_queue.h"
#include "store/list.h"

namespace cairn {

/// Looks up in the checkpoint's index which shards (indices in the manifest, ascending) hold these tensors. Of replicas
/// it takes the one in `own`, or else in the lowest shard, like a restore with all headers. An error says why the index
/// is no help: there is none, it cannot be read, or a tensor is not in it. Blocking; needs exclusive use of the queue.
[[nodiscard]] Result<std::vector<std::uint32_t>> LookUpIndex(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                                             std::span<const std::uint32_t> own,
                                                             std::span<const TensorEntry* const> wanted);

/// The same for whole tensors of these names, in any shard that holds one.
[[nodiscard]] Result<std::vector<std::uint32_t>> LookUpIndex(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                                             std::span<const std::string_view> names);

}  // namespace cairn
