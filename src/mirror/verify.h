#pragma once

#include "cairn/checkpointer.h"
#include "cairn/status.h"
#include "device/buffer_pool.h"
#include "mirror/bucket.h"

namespace cairn {

/// VerifyCheckpoint for one in the last list of an object store: every byte, as the store gives it. Corrupt names the
/// object. Blocking; a false of `progress` ends it as Cancelled.
[[nodiscard]] Status VerifyInBucket(const Bucket& bucket, const StoredCheckpoint& checkpoint, BufferPool& pool,
                                    const Progress& progress);

}  // namespace cairn
