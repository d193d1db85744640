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

struct ManifestShard {
  std::string file;  ///< A plain file name in the checkpoint's folder.
  std::uint64_t length = 0;
  std::uint32_t header_digest = 0;
  friend bool operator==(const ManifestShard&, const ManifestShard&) = default;
};

struct ManifestParent {
  std::uint64_t step = 0;
  std::string attempt;
  friend bool operator==(const ManifestParent&, const ManifestParent&) = default;
};

/// What makes a folder a checkpoint.
struct Manifest {
  std::vector<std::string> required_features;  ///< A reader that does not know one of them refuses the checkpoint.
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::string attempt;
  std::optional<ManifestParent> parent;
  std::uint64_t world = 1;
  std::vector<ManifestShard> shards;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The file's text: one JSON object whose last member is the CRC32C of all that stands before it.
[[nodiscard]] std::string EncodeManifest(const Manifest& manifest);
/// Hostile input. Corrupt names the file, the field, the expected and the found; Unsupported an unknown version or feature.
[[nodiscard]] Result<Manifest> DecodeManifest(std::string_view text, const std::string& file);

}  // namespace cairn
