#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "restore/reader.h"
#include "restore/shard_file.h"

namespace cairn {

/// A tensor of some shard, as its header has it.
struct StoredTensor {
  TensorInfo info;
  std::uint32_t shard = 0;  ///< Index of the file.
  std::uint64_t begin = 0;  ///< Its first data byte.
};
/// All tensors of the files, tied names too, by name and then by file. `names[i]` stands for files[i].
[[nodiscard]] std::vector<StoredTensor> ListTensors(std::span<const ShardFile> files,
                                                    std::span<const std::string> names);

/// The tensors of a checkpoint, or of one safetensors file, to be read piece by piece: for tools that see more tensors
/// than memory holds. For one thread.
class TensorSource {
 public:
  /// Keeps the checkpoint from removal while it lives. Errors as for RestoreCheckpoint.
  [[nodiscard]] static Result<TensorSource> OpenCheckpoint(const RestoreParts& parts,
                                                           const StoredCheckpoint& checkpoint);
  /// One file: a plain safetensors file of anybody's, or a shard on its own (then its checksums are checked).
  [[nodiscard]] static Result<TensorSource> OpenFile(const RestoreParts& parts, const std::string& path);

  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// The file's foreign __metadata__; empty for a checkpoint.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Bytes [begin, end) of a tensor, and where they go: `to` has room for them all. Two pieces have the same bytes of a
  /// tensor, or none in common.
  struct Piece {
    const StoredTensor* tensor = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::byte* to = nullptr;
  };
  /// Reads and verifies; the memory of different pieces is apart. Errors as for RestoreCheckpoint.
  Status Read(const RestoreParts& parts, std::span<const Piece> pieces);

 private:
  TensorSource() = default;

  std::optional<ReadLock> lock_;
  std::vector<ShardFile> files_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace cairn
