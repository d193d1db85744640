#pragma once

#include <cstdint>

#include "base/tensor_table.h"
#include "cairn/checkpointer.h"
#include "io/io_queue.h"
#include "restore/match.h"
#include "restore/open.h"
#include "restore/selection.h"

namespace cairn {

/// MatchTensors with as few shard headers as possible. First this rank's own, if `own_shard`; for tensors not in
/// it, the shards that the checkpoint's index names; if that is not enough, all. The index is a hint: if it is missing
/// or wrong, an event reports it, more headers are read, and the result is the same. Blocking; needs exclusive use of
/// the queue.
///
/// Errors as for ReadHeaders and MatchTensors. InvalidArgument only after all headers were read.
[[nodiscard]] Result<MatchedTensors> LocateTensors(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                                   std::uint64_t rank, bool own_shard, const TensorTable& table,
                                                   const RestoreOptions& options, const EventCallback& on_event,
                                                   OpenedCheckpoint& opened);

/// The same for a part: `opened` then has the header of the rank's shard, and of shards that hold tensors of those
/// names, if any.
[[nodiscard]] Status LocatePart(IoQueue& queue, const StoredCheckpoint& checkpoint, const InspectPart& part,
                                const EventCallback& on_event, OpenedCheckpoint& opened);

}  // namespace cairn
