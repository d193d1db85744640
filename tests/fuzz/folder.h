#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/shard_header.h"
#include "testing/temp_dir.h"

namespace cairn {

/// The first section of an input: what to do with the folder. Its bytes in this order; missing ones are zero.
struct Plan {
  /// Damage a shard after its digests are made: flip a bit, or truncate it.
  bool flip = false;
  bool cut = false;
  /// Keep the manifest's lengths and digests, and the headers' offsets and checksums.
  bool manifest_as_is = false;
  bool headers_as_are = false;
  bool allow_missing = false;
  /// Also read with the calls of tools.
  bool inspect = false;
  std::uint32_t place = 0;
  std::uint8_t rank = 0;
  /// Three bytes for each target.
  std::string_view targets;
};
[[nodiscard]] Plan PlanOf(std::string_view bytes);

/// One file of the folder.
struct FuzzedShard {
  std::string name;
  std::string header;
  /// The bytes after the header, before a bit was flipped.
  const char* data = nullptr;
  std::uint64_t data_bytes = 0;
  /// The offset of the byte whose lowest bit was flipped.
  std::optional<std::uint64_t> flipped;
  bool cut = false;
  [[nodiscard]] std::uint64_t file_bytes() const { return header.size() + data_bytes; }
};

/// A checkpoint's folder made from hostile text: plan, manifest, headers; those of the kept files that the manifest
/// names are the last. The shards' data differ at every position.
class FuzzedFolder {
 public:
  static constexpr std::size_t kMostShards = 4;
  static constexpr std::uint64_t kMostData = 2 * kChecksumBlock + 4096;

  /// Under TMPDIR, ideally in memory. Its name is not a step's, because the manifest may name any.
  FuzzedFolder();
  /// Replaces the folder's contents.
  void Write(std::string_view input);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const std::vector<FuzzedShard>& shards() const { return shards_; }

 private:
  void MakeShards(const std::vector<std::string_view>& sections);
  void Damage();

  TempDir directory_;
  std::string path_;
  std::string pattern_;
  Plan plan_;
  std::vector<FuzzedShard> shards_;
};

}  // namespace cairn
