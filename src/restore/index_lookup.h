#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/tensor_table.h"
#include "cairn/status.h"
#include "io/io_queue.h"
#include "store/list.h"

namespace cairn {

/// The shards (places in the manifest, ascending) that hold what these tensors want, by the checkpoint's index: of
/// replicas the one in `own`, or else in the lowest shard, which is what all headers would give. An error says why the
/// index does not tell: there is none, it cannot be read, or it does not name one of the tensors. Blocking; the queue
/// is the caller's alone.
[[nodiscard]] Result<std::vector<std::uint32_t>> LookUpIndex(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                                             std::optional<std::uint32_t> own,
                                                             std::span<const TensorEntry* const> wanted);

/// The same for whole tensors of these names: of the shards that hold one, any.
[[nodiscard]] Result<std::vector<std::uint32_t>> LookUpIndex(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                                             std::span<const std::string_view> names);

}  // namespace cairn
