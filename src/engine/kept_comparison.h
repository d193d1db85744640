#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/chunk_source.h"
#include "engine/kept_file.h"
#include "engine/snapshot.h"
#include "store/attempt.h"

namespace cairn {

/// Compares what a save has copied of its frozen tensors with the file of before, by checksums, chunk by chunk. For the
/// engine's thread.
///
/// A chunk that is as in the file needs no memory any more. Once one differs, the save writes a file of its own: that
/// chunk and all that come later; what was equal until then comes from the file of before. So nothing is read twice
/// from the tensors, which may change once it is captured.
class KeptComparison {
 public:
  /// The second part of the snapshot is laid out as the file.
  KeptComparison(const Snapshot& snapshot, std::shared_ptr<KeptFile> before)
      : snapshot_(snapshot), before_(std::move(before)) {}

  /// Whether a chunk of the second part, with these sums, is as in the file: it is written if not, or if another
  /// differs.
  [[nodiscard]] bool Compare(const FilledChunk& chunk, std::span<const std::uint32_t> sums);
  [[nodiscard]] bool differs() const { return differs_; }
  [[nodiscard]] const std::shared_ptr<KeptFile>& before() const { return before_; }
  /// What the new file, whose data begins there, has in common with the one of before.
  [[nodiscard]] KeptCopy Copies(std::uint64_t data_begin) const;

 private:
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  const Snapshot& snapshot_;
  const std::shared_ptr<KeptFile> before_;
  bool differs_ = false;
  // Of the file's data: what was equal, as it came.
  std::vector<Range> same_;
};

}  // namespace cairn
