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

/// A tensor as a file holds it: contiguous, row-major.
struct FileTensor {
  cairn::DType dtype = cairn::DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  ///< Of the mapped file, in whatever alignment they lie there.
};

/// "F32 [2, 3]".
std::string Describe(cairn::DType dtype, std::span<const std::int64_t> shape);

/// A plain safetensors file: one that anybody may have written, without Cairn's checksums.
class SafetensorsFile {
 public:
  /// Throws std::runtime_error, naming file and tensor, for everything that the format does not allow: every offset is
  /// checked, and the tensors must cover the data without holes or overlaps.
  explicit SafetensorsFile(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// By name; valid as long as the file is.
  [[nodiscard]] const std::map<std::string, FileTensor>& tensors() const { return tensors_; }

 private:
  void CheckCover(std::span<const std::byte> data) const;

  std::string path_;
  MappedFile file_;
  std::map<std::string, FileTensor> tensors_;
};

}  // namespace cairn::trainer
