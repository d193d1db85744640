#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "restore/match.h"
#include "restore/reader.h"
#include "restore/shard_file.h"
#include "store/list.h"
#include "store/locks.h"

namespace cairn {

/// A tensor of some shard, from its header.
struct StoredTensor {
  TensorInfo info;
  /// Index of the file.
  std::uint32_t shard = 0;
  /// Its first data byte.
  std::uint64_t begin = 0;
};
/// A tensor's name and the index of its file.
struct TensorPlace {
  std::string name;
  std::uint32_t file = 0;
  friend auto operator<=>(const TensorPlace& a, const TensorPlace& b) = default;
};
/// All tensors of the files whose headers were read, also tied names, by name and then by file. `names[i]` is the name
/// of files[i].
[[nodiscard]] std::vector<StoredTensor> ListTensors(std::span<const ShardFile> files,
                                                    std::span<const std::string> names);

/// The tensors of a checkpoint or of one safetensors file, read piece by piece: for tools whose tensors may not fit in
/// memory. For one thread.
class TensorSource {
 public:
  /// Protects the checkpoint from removal while it lives. Selects no shards. Errors as for LockCheckpoint.
  [[nodiscard]] static Result<TensorSource> OpenCheckpoint(const StoredCheckpoint& checkpoint);
  /// Of a checkpoint that is elsewhere: `read` reads headers of its shards (indices in the manifest), as ReadHeaders.
  /// Tensors cannot be read.
  using HeaderReader = std::function<Status(const StoredCheckpoint& checkpoint, std::span<const std::uint32_t> shards,
                                            std::vector<ShardFile>& files)>;
  [[nodiscard]] static TensorSource OfHeaders(const StoredCheckpoint& checkpoint, HeaderReader read);
  /// One selected file: any plain safetensors file, or a single shard (then its checksums are verified).
  [[nodiscard]] static Result<TensorSource> OpenFile(const RestoreParts& parts, const std::string& path);

  /// The number of files.
  [[nodiscard]] std::uint32_t files() const { return static_cast<std::uint32_t>(files_.size()); }
  [[nodiscard]] const std::string& file_name(std::uint32_t file) const { return names_[file]; }
  [[nodiscard]] std::uint64_t file_bytes(std::uint32_t file) const { return files_[file].length; }
  /// Reads the headers of these files, several at once, and drops all others. Errors as for ReadHeaders.
  Status Select(const RestoreParts& parts, std::span<const std::uint32_t> files);
  /// The same for files [first, end), if they exist.
  Status SelectRange(const RestoreParts& parts, std::uint32_t first, std::uint32_t end);
  /// Selects the files of these tensors, which an earlier listing has found there, and returns the tensors in order.
  [[nodiscard]] Result<std::vector<const StoredTensor*>> Find(const RestoreParts& parts,
                                                              std::span<const TensorPlace> places);

  /// Of the selected files, by name and then by file.
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Of a selected file.
  [[nodiscard]] const ShardHeader& header(std::uint32_t file) const { return files_[file].header; }
  /// Null for a single file.
  [[nodiscard]] const StoredCheckpoint* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }
  /// The file's foreign __metadata__; empty for a checkpoint.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Bytes [begin, end) of a tensor and their target, which has room for them. Two pieces hold the same bytes of a
  /// tensor or have none in common.
  struct Piece {
    const StoredTensor* tensor = nullptr;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::byte* to = nullptr;
  };
  /// Reads and verifies pieces of selected files. Targets of different pieces do not overlap. Errors as for
  /// RestoreCheckpoint.
  Status Read(const RestoreParts& parts, std::span<const Piece> pieces);

  /// Finds the table's tensors in the selected files, as MatchTensors does for rank 0.
  [[nodiscard]] Result<MatchedTensors> Match(const TensorTable& table) const;
  /// The same as Read for planned copies, by file.
  Status ReadCopies(const RestoreParts& parts, std::vector<std::vector<PlannedCopy>> copies);

 private:
  TensorSource() = default;

  std::optional<StoredCheckpoint> checkpoint_;
  std::optional<ReadLock> lock_;
  // Null: they are read from `files_`.
  HeaderReader read_headers_;
  std::vector<ShardFile> files_;
  std::vector<std::string> names_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace cairn
