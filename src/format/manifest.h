#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"
#include "cairn/tensor.h"

namespace cairn {

inline constexpr std::string_view kManifestName = "manifest.json";
/// A manifest is small at any world size. Readers refuse a larger file without reading it.
inline constexpr std::uint64_t kMaxManifestBytes = 64U << 20;

inline constexpr std::string_view kIndexName = "index.cairn";
/// The maximum sizes of an index and of its head. A larger index in a manifest is ignored.
inline constexpr std::uint64_t kMaxIndexBytes = 256U << 20;
inline constexpr std::uint64_t kMaxIndexHeadBytes = 16U << 20;

/// The features that this version knows: the checkpoint has kept files; values of a rank are in the data of its shard
/// (LongValue).
inline constexpr std::string_view kKeptFeature = "kept";
inline constexpr std::string_view kLongValuesFeature = "long_values";

/// Of a kept file: which save wrote it, of which rank. Later checkpoints of the rank have the same file.
struct KeptOrigin {
  std::uint64_t rank = 0;
  std::uint64_t step = 0;
  std::string attempt;
  friend bool operator==(const KeptOrigin&, const KeptOrigin&) = default;
};

struct ManifestShard {
  /// A plain file name in the checkpoint's folder: no slash, no leading dot, no control characters.
  std::string file;
  std::uint64_t length = 0;
  std::uint32_t header_digest = 0;
  /// Whether its tensors held infinities or NaNs. kNone also where nobody looked, or the member is invalid.
  NonFinite nonfinite = NonFinite::kNone;
  /// Set for a kept file.
  std::optional<KeptOrigin> kept = std::nullopt;
  /// Whether it has long values. The manifest does not say it of each: kLongValuesFeature says it of the checkpoint.
  bool long_values = false;
  friend bool operator==(const ManifestShard&, const ManifestShard&) = default;
};

[[nodiscard]] NonFinite WorstOf(const std::vector<ManifestShard>& shards);
/// Who has written their kept files, if this attempt is theirs.
[[nodiscard]] Frozen FrozenIn(const std::vector<ManifestShard>& shards, std::string_view attempt);

struct ManifestParent {
  std::uint64_t step = 0;
  std::string attempt;
  friend bool operator==(const ManifestParent&, const ManifestParent&) = default;
};

/// Where the checkpoint's index is (see index.h).
struct ManifestIndex {
  /// A plain file name that no shard has.
  std::string file;
  std::uint64_t length = 0;
  /// The size of its head, which is its end; and the head's CRC32C.
  std::uint64_t head = 0;
  std::uint32_t digest = 0;
  friend bool operator==(const ManifestIndex&, const ManifestIndex&) = default;
};

/// The file that makes a folder a checkpoint.
struct Manifest {
  /// A reader must refuse a checkpoint with a feature that it does not know. kKeptFeature if there are kept files,
  /// kLongValuesFeature if a shard has long values.
  std::vector<std::string> required_features;
  std::uint64_t step = 0;
  /// The line of training: the member "generation".
  std::uint64_t line = 0;
  /// The id of the root that it was saved in. Empty if its writer knew none (version 1's first writers), or the member
  /// is invalid.
  std::string root;
  std::string attempt;
  std::optional<ManifestParent> parent;
  std::uint64_t world = 1;
  /// One for each rank, then the kept files.
  std::vector<ManifestShard> shards;
  /// None if there is none or its member is invalid: the checkpoint is valid without it.
  std::optional<ManifestIndex> index;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The file's text: one JSON object whose last member is the CRC32C of everything before it. Names and ids must be
/// valid for DecodeManifest: unique plain file names, including the index's; attempts of 1 to 64 letters, digits, '-'
/// or '_'; UTF-8.
[[nodiscard]] std::string EncodeManifest(const Manifest& manifest);
/// The text may be hostile. Corrupt names the file, the field, the expected and the found value; Unsupported names an
/// unknown version or feature.
[[nodiscard]] Result<Manifest> DecodeManifest(std::string_view text, const std::string& file);

}  // namespace cairn
