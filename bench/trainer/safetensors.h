#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cairn/tensor.h"
#include "mapped_file.h"

namespace cairn::trainer {

/// A tensor in a file: contiguous and row-major.
struct FileTensor {
  cairn::DType dtype = cairn::DType::kF32;
  std::vector<std::int64_t> shape;
  /// Points into the mapped file; may be unaligned.
  std::span<const std::byte> bytes;
};

/// "F32 [2, 3]".
std::string Describe(cairn::DType dtype, std::span<const std::int64_t> shape);

/// A safetensors file from any writer, without Cairn's checksums.
class SafetensorsFile {
 public:
  /// Throws std::runtime_error, naming file and tensor, if the format is violated: every offset is checked, and the
  /// tensors must cover the data without gaps or overlaps.
  explicit SafetensorsFile(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// By name; valid for the lifetime of this object.
  [[nodiscard]] const std::map<std::string, FileTensor>& tensors() const { return tensors_; }

 private:
  void CheckCover(std::span<const std::byte> data) const;

  std::string path_;
  MappedFile file_;
  std::map<std::string, FileTensor> tensors_;
};

}  // namespace cairn::trainer
