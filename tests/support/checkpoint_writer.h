#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cairn/tensor.h"
#include "format/manifest.h"

namespace cairn {

/// A tensor to be saved: its bytes in row-major order.
struct SavedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::string bytes;
  std::optional<TensorPart> part;
};
/// One of that dtype and shape whose bytes follow from `seed`, no two alike.
[[nodiscard]] SavedTensor MakeTensor(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                                     std::uint32_t seed);

struct SavedShardContent {
  std::vector<SavedTensor> tensors;  ///< In any order; stored in the format's.
  std::map<std::string, std::string> aliases;
  Values values;
};

/// A kept file, as the save that `origin` names wrote it.
struct SavedKeptContent {
  KeptOrigin origin;
  SavedShardContent content;
};

struct CheckpointContent {
  std::uint64_t step = 1;
  std::uint64_t line = 0;
  std::string root = {};
  std::string attempt = "0b9d6a52-3c0e-4f7e-9a53-6c1f0e7d2b11";
  bool checksums = true;
  std::vector<SavedShardContent> shards;
  std::vector<SavedKeptContent> kept = {};
};

/// Writes a whole, valid checkpoint folder with plain writes, as a save would leave it; returns its path. A failure to
/// write is a test failure.
std::string WriteCheckpoint(const std::string& root, const CheckpointContent& content);

/// Writes the manifest anew, as it is given.
void WriteManifest(const std::string& folder, const Manifest& manifest);
[[nodiscard]] Manifest ReadManifest(const std::string& folder);

[[nodiscard]] std::string ReadWholeFile(const std::string& path);
void WriteWholeFile(const std::string& path, const std::string& content);

}  // namespace cairn
