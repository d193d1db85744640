#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/tensor.h"
#include "format/shard_header.h"

namespace cairn {

// Which rank of a parallel job holds which tensors, from shapes alone, as pure functions.

/// How many ranks work in each dimension of parallelism. Ranks are numbered as Megatron does: tensor parallel fastest,
/// then data, then pipeline.
struct Layout {
  int pipeline = 1;
  int tensor = 1;
  int data = 1;

  [[nodiscard]] int ranks() const { return pipeline * tensor * data; }
  [[nodiscard]] int StageOf(int rank) const { return rank / (tensor * data); }
  [[nodiscard]] int TensorRankOf(int rank) const { return rank % tensor; }
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// "4,2,1".
[[nodiscard]] std::string ToString(const Layout& layout);

/// A logical tensor of a model, and who holds it.
struct ModelTensor {
  /// `kFirstAndLast`: both stages hold it whole, such as embeddings that the head uses too.
  enum class Stages : std::uint8_t { kOfLayer, kFirst, kLast, kFirstAndLast, kAll };

  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  Stages stages = Stages::kOfLayer;
  /// Of kOfLayer: counted from 0 over the whole model.
  std::int64_t layer = 0;
  /// The dimension that tensor-parallel ranks cut into equal parts. None: each holds the whole.
  std::optional<std::size_t> cut;
  /// Not 0: the cut dimension is padded to a multiple of this times the tensor-parallel ranks. Padding is a tensor of
  /// its own, because it is not data: where its size changes it is made anew.
  std::int64_t pad = 0;
};

struct Model {
  /// Divided equally over the stages, in order.
  std::int64_t layers = 1;
  /// Attention heads, which tensor-parallel ranks divide equally. 0: unknown.
  std::int64_t heads = 0;
  std::vector<ModelTensor> tensors;
  /// Trained elements, each counted once. 0: unknown.
  std::int64_t parameters = 0;
  /// Other state of each rank; counted, but not read from tensors.
  std::uint64_t rank_bytes = 0;
};

/// InvalidArgument, beginning with `what`, if layers, heads or a tensor's dimension cannot be divided equally.
[[nodiscard]] Status CheckLayout(const Model& model, const Layout& layout, std::string_view what);

/// What a rank holds, in the model's order. `end` is the tensor's size in bytes, and `begin` 0. The layout was checked.
[[nodiscard]] std::vector<ShardTensor> TensorsOf(const Model& model, const Layout& layout, int rank);

/// Whether it is padding, not data.
[[nodiscard]] bool IsPadding(std::string_view name);

}  // namespace cairn
