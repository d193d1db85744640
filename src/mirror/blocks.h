#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "cairn/status.h"
#include "restore/shard_file.h"

namespace cairn {

/// Checks the blocks of a piece that begins at a block, at `offset` in the file: behind its header. Ok if the file has
/// no checksums; Corrupt as VerifyBlock.
[[nodiscard]] Status VerifyBlocks(const ShardFile& file, std::uint64_t offset, Bytes piece);

}  // namespace cairn
