#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "cairn/status.h"
#include "testing/rate_limited_queue.h"

namespace cairn::bench {

/// The one checkpoint of a directory, as a careful user of torch.save keeps it: written through the page cache into a
/// spare file, fsync, renamed to the checkpoint's name, fsync of the directory.
///
/// Kinder than torch.save in one thing: the spare is the file of the checkpoint before the last, overwritten in place,
/// whose blocks and pages are there (1.65 GB/s here; a new file 0.28, where its pages had to come from the machine's
/// host first).
class CheckpointFile {
 public:
  /// Lays out what is not there yet, for a state of `bytes`. A null disk is the machine's own.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointFile>> Open(const std::string& directory, std::uint64_t bytes,
                                                                    std::shared_ptr<RateLimitedDisk> disk);

  /// Makes `bytes` the checkpoint, durably. On failure the one before stays.
  Status Write(std::uint64_t step, Bytes bytes);
  /// Reads it, and returns its step. NotFound; Corrupt where it is not one of this many bytes.
  Result<std::uint64_t> Read(MutableBytes bytes) const;

 private:
  CheckpointFile(const std::string& directory, std::shared_ptr<RateLimitedDisk> disk);
  Status Rename() const;

  const std::string directory_;
  const std::string path_;   // The checkpoint: whole, wherever it is there.
  const std::string spare_;  // What the next one is written to.
  const std::string later_;  // The spare after that, until the first checkpoint.
  const std::shared_ptr<RateLimitedDisk> disk_;
};

}  // namespace cairn::bench
