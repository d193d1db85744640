#pragma once

#include <span>
#include <string>

#include "cairn/status.h"
#include "mirror/bucket.h"
#include "restore/shard_file.h"

namespace cairn {

/// The header of a shard or kept file of a checkpoint in an object store.
struct WantedHeader {
  const StoredCheckpoint* checkpoint = nullptr;
  const ManifestShard* shard = nullptr;
  /// Gets its name, length and header; its long values too, if `with_values`.
  ShardFile* file = nullptr;

  // The outcome.
  /// As of ReadShardHeader; or as of Bucket::Get.
  Status status = {};
  /// The file's bytes before its data.
  std::string bytes = {};
};

/// Reads them by ranges of the objects, several at once, and many by one call. Blocking.
void FetchHeaders(const Bucket& bucket, std::span<WantedHeader> wanted);

}  // namespace cairn
