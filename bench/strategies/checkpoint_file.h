#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "bench/strategies/strategy.h"
#include "cairn/status.h"
#include "testing/rate_limited_queue.h"

namespace cairn::bench {

/// The one checkpoint of a directory, as a careful user keeps it: written through the page cache into a
/// spare file, fsync, renamed to the checkpoint's name, fsync of the directory. The checkpoint before stays whole until
/// the next Write.
///
/// Two things are faster than with torch.save: nothing is serialised, and the spare is the file of the checkpoint
/// before the last, overwritten in place, with blocks and pages that exist (1.65 GB/s here; a new file 0.28 GB/s, where
/// the virtual machine had to get its pages from the host first).
class CheckpointFile {
 public:
  /// Lays out the files that do not exist yet, for a state of `bytes`. A null disk is the machine's own.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointFile>> Open(const std::string& directory, std::uint64_t bytes,
                                                                    std::shared_ptr<RateLimitedDisk> disk);

  /// Makes `bytes` the checkpoint, durably. On failure the one before stays.
  Status Write(std::uint64_t step, Bytes bytes);
  /// Its step. NotFound; Corrupt where it is not one of this file's size.
  [[nodiscard]] Result<std::uint64_t> newest() const;
  /// Reads the checkpoint of that step: the newest, or the one before, which then is the newest again. NotFound.
  Status Read(std::uint64_t step, MutableBytes bytes) const;

 private:
  CheckpointFile(const std::string& directory, std::uint64_t bytes, std::shared_ptr<RateLimitedDisk> disk);
  [[nodiscard]] Result<std::uint64_t> StepOf(const std::string& path) const;
  Status Rename() const;

  const std::string directory_;
  const std::uint64_t bytes_;
  const std::string path_;   // The checkpoint: whole wherever it exists.
  const std::string spare_;  // What the next one is written to.
  const std::string later_;  // The spare after that, until the first checkpoint.
  const std::shared_ptr<RateLimitedDisk> disk_;
};

/// Reads the newest checkpoint into `host`; of several nodes, the newest that all have. NotFound.
[[nodiscard]] Result<std::uint64_t> ReadNewest(const CheckpointFile& file, const Workplace& workplace,
                                               MutableBytes host);

}  // namespace cairn::bench
