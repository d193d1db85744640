#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/shard_header.h"
#include "testing/temp_dir.h"

namespace cairn {

/// What the first section of an input says is to be done with the folder: its bytes in this order, missing ones zero.
struct Plan {
  bool flip = false;            ///< Flip a bit of a shard once its digests are made.
  bool cut = false;             ///< Cut a shard short.
  bool manifest_as_is = false;  ///< The manifest's lengths and digests of headers stay.
  bool headers_as_are = false;  ///< Offsets and sums stay.
  bool allow_missing = false;
  bool inspect = false;  ///< Also by the calls that tools use.
  std::uint32_t place = 0;
  std::uint8_t rank = 0;
  std::string_view targets;  ///< Three bytes each.
};
[[nodiscard]] Plan ReadPlan(std::string_view bytes);

/// One file of the folder.
struct FuzzedShard {
  std::string name;
  std::string header;          ///< The file's first bytes.
  const char* data = nullptr;  ///< Behind them; as written, before a bit was flipped.
  std::uint64_t data_bytes = 0;
  std::optional<std::uint64_t> flipped;  ///< The file's byte whose lowest bit was flipped.
  bool cut = false;
  [[nodiscard]] std::uint64_t file_bytes() const { return header.size() + data_bytes; }
};

/// A checkpoint's folder made of hostile text: plan, manifest, headers. The files' data is a pattern in which no shard
/// has what another has at the same place.
class FuzzedFolder {
 public:
  static constexpr std::size_t kMostShards = 4;
  static constexpr std::uint64_t kMostData = 2 * kChecksumBlock + 4096;

  /// Under TMPDIR, best where files are memory. Its name is no step's: the manifest may name any.
  FuzzedFolder();
  /// Replaces what was there.
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
