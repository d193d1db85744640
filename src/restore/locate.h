#pragma once

#include <cstdint>

#include "base/tensor_table.h"
#include "cairn/checkpointer.h"
#include "io/io_queue.h"
#include "restore/open.h"
#include "restore/plan.h"

namespace cairn {

/// MatchTensors with the headers of as few shards as it takes: this rank's own first (RestoreOptions::own); for what is
/// not in that, of the shards that the checkpoint's index names; only where that is not enough, of all. The index is a
/// hint: where it is missing or wrong, which is told by an event, more is read and the result is the same. Blocking;
/// the queue is the caller's alone.
///
/// Errors as for ReadHeaders and MatchTensors. InvalidArgument is said only once all headers were read.
[[nodiscard]] Result<MatchedTensors> LocateTensors(IoQueue& queue, const StoredCheckpoint& checkpoint,
                                                   std::uint64_t rank, const TensorTable& table,
                                                   const RestoreOptions& options, const EventCallback& on_event,
                                                   OpenedCheckpoint& opened);

/// The same for a part: `opened` then has the header of the rank's shard, and of shards that hold tensors of those
/// names, as far as there are any.
[[nodiscard]] Status LocatePart(IoQueue& queue, const StoredCheckpoint& checkpoint, const InspectPart& part,
                                const EventCallback& on_event, OpenedCheckpoint& opened);

}  // namespace cairn
