#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/status.h"

namespace cairn {

inline constexpr std::string_view kManifestName = "manifest.json";
/// A manifest is small at any world size; a larger file is refused unread.
inline constexpr std::uint64_t kMaxManifestBytes = 64U << 20;

inline constexpr std::string_view kIndexName = "index.cairn";
/// The longest index, and the longest head of one. A manifest that names a longer one is read as if it named none.
inline constexpr std::uint64_t kMaxIndexBytes = 256U << 20;
inline constexpr std::uint64_t kMaxIndexHeadBytes = 16U << 20;

struct ManifestShard {
  std::string
      file;  ///< A plain file name in the checkpoint's folder: no slash, no dot in front, no control characters.
  std::uint64_t length = 0;
  std::uint32_t header_digest = 0;
  friend bool operator==(const ManifestShard&, const ManifestShard&) = default;
};

struct ManifestParent {
  std::uint64_t step = 0;
  std::string attempt;
  friend bool operator==(const ManifestParent&, const ManifestParent&) = default;
};

/// Where the checkpoint's index is (see index.h).
struct ManifestIndex {
  /// A plain file name, as a shard's; no shard has it.
  std::string file;
  std::uint64_t length = 0;
  /// How many bytes of it, the last ones, are its head; and their CRC32C.
  std::uint64_t head = 0;
  std::uint32_t digest = 0;
  friend bool operator==(const ManifestIndex&, const ManifestIndex&) = default;
};

/// What makes a folder a checkpoint.
struct Manifest {
  /// A reader that does not know one of them refuses the checkpoint. This version has none.
  std::vector<std::string> required_features;
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::string attempt;
  std::optional<ManifestParent> parent;
  std::uint64_t world = 1;
  std::vector<ManifestShard> shards;  ///< One a rank: `world` of them.
  /// None where there is none, and where what the text says of it cannot be: the checkpoint is as good without.
  std::optional<ManifestIndex> index;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The file's text: one JSON object whose last member is the CRC32C of all that stands before it. Names and ids must be
/// as DecodeManifest takes them: plain file names, each once, the index's too; attempts of 1 to 64 letters, digits, '-'
/// or '_'; UTF-8.
[[nodiscard]] std::string EncodeManifest(const Manifest& manifest);
/// Hostile input. Corrupt names the file, the field, the expected and the found; Unsupported an unknown version or
/// feature.
[[nodiscard]] Result<Manifest> DecodeManifest(std::string_view text, const std::string& file);

}  // namespace cairn
