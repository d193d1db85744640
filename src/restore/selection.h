#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/checkpointer.h"

namespace cairn {

// For callers that must know what is in a checkpoint before they read it.

/// What one rank wants to know of a checkpoint.
struct InspectPart {
  /// All tensors of this rank's own shard, and its values; none where it has no shard.
  std::optional<std::uint64_t> rank;
  /// And tensors of these names, each as at least one shard holds it; left out where none does.
  std::vector<std::string> names;
};

/// A checkpoint that was chosen before it is read.
struct Chosen {
  CheckpointInfo info;
  std::vector<std::string> passed_over;  ///< With FallBack: folder and reason of each that was skipped.
  /// Keeps it from removal and replacement, by any process, until the last copy of this is gone.
  std::shared_ptr<const void> hold;
};

}  // namespace cairn
