#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "cairn/status.h"
#include "support/rate_limited_queue.h"

namespace cairn::bench {

/// Makes `bytes` the directory's one checkpoint, durably, as a careful user of torch.save does: a new file, written
/// through the page cache, fsync, rename over the old one, fsync of the directory. On failure the old one stays.
Status WriteCheckpointFile(const std::string& directory, std::uint64_t step, Bytes bytes,
                           const std::shared_ptr<RateLimitedDisk>& disk);
/// Reads it, and returns its step. NotFound; Corrupt where it is not one of this many bytes.
Result<std::uint64_t> ReadCheckpointFile(const std::string& directory, MutableBytes bytes);

}  // namespace cairn::bench
