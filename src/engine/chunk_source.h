#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/buffer_pool.h"

namespace cairn {

/// A part of a shard's stream that waits for its write and its checksum. The buffer returns to the pool after both.
struct FilledChunk {
  /// None if `memory` is the file's, which is mapped: then nothing is to be written.
  BufferPool::Chunk buffer;
  std::byte* memory = nullptr;
  /// Offsets in the stream.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  /// Its checksums are known: the device computed them with the copy, or Sum has.
  bool summed = false;
  /// A GPU did, from its own memory, and Sum has compared none yet.
  bool summed_by_gpu = false;
};

/// What is known of a whole stream.
struct StreamSums {
  /// One for each kChecksumBlock. Empty if checksums are off.
  std::vector<std::uint32_t> checksums;
  /// The worst value. kNone if nobody looks (Options::nonfinite).
  NonFinite nonfinite = NonFinite::kNone;
  /// The same of its second part, which a kept file holds.
  NonFinite kept_nonfinite = NonFinite::kNone;
};

/// What gives a shard's writer its chunks, in any order: the writer, the ranks' agreement and the commit do not know
/// from where the bytes come. For the engine's thread.
class ChunkSource {
 public:
  ChunkSource() = default;
  virtual ~ChunkSource() = default;
  ChunkSource(const ChunkSource&) = delete;
  ChunkSource& operator=(const ChunkSource&) = delete;

  /// Takes a chunk and its sums, one for each kChecksumBlock.
  using OnSummed = std::function<void(std::shared_ptr<FilledChunk>, std::span<const std::uint32_t> sums)>;
  /// Sums the chunk, unless that is done. Then calls `then`, if there is one, maybe from within: not if the source has
  /// failed, or was stopped.
  virtual void Sum(std::shared_ptr<FilledChunk> chunk, OnSummed then = {}) = 0;
  /// Once every chunk was given, and none is being summed.
  [[nodiscard]] virtual std::optional<StreamSums> sums() const = 0;
};

}  // namespace cairn
