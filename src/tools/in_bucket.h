#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mirror/bucket.h"
#include "restore/source.h"
#include "store/writer.h"

namespace cairn::tools {

/// Checkpoints in an object store, in the order of ListCheckpoints. One that lacks objects is Corrupt.
struct InBucket {
  std::unique_ptr<Bucket> bucket;
  std::vector<StoredCheckpoint> checkpoints;
  /// Those of the place are of several lines.
  bool several_lines = false;
};

/// Lists a place that IsBucket. InvalidArgument for a checkpoint's folder.
[[nodiscard]] Result<InBucket> ListInBucket(const std::string& place);

/// The same; but of a checkpoint's folder, as `cairn ls --json` or step-70 names it, or with a step, that one alone.
/// NotFound if there is none.
[[nodiscard]] Result<InBucket> ChooseInBucket(const std::string& path, const std::optional<std::uint64_t>& step);

/// The record of who has written it last; none if there is none.
[[nodiscard]] Result<std::optional<WriterRecord>> WriterInBucket(const std::string& place);

/// The checkpoint's tensors: only their headers can be read.
[[nodiscard]] TensorSource HeadersInBucket(const Bucket& bucket, const StoredCheckpoint& checkpoint);

}  // namespace cairn::tools
