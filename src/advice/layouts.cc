#include "advice/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {
namespace {

using Stages = ModelTensor::Stages;

constexpr std::string_view kPadding = ".padding-to-";

std::int64_t Padded(const ModelTensor& tensor, const Layout& layout) {
  const std::int64_t extent = tensor.shape[*tensor.cut];
  if (tensor.pad == 0) return extent;
  const std::int64_t multiple = tensor.pad * layout.tensor;
  return (extent + multiple - 1) / multiple * multiple;
}

bool IsOnStage(const ModelTensor& tensor, const Model& model, const Layout& layout, int stage) {
  const bool first = stage == 0;
  const bool last = stage == layout.pipeline - 1;
  switch (tensor.stages) {
    case Stages::kOfLayer:
      return tensor.layer / (model.layers / layout.pipeline) == stage;
    case Stages::kFirst:
      return first;
    case Stages::kLast:
      return last;
    case Stages::kFirstAndLast:
      return first || last;
    case Stages::kAll:
      return true;
  }
  return false;
}

// Elements [begin, end) of a tensor along a dimension. The whole is not a part.
ShardTensor Slice(std::string name, DType dtype, std::vector<std::int64_t> global, std::size_t dimension,
                  std::int64_t begin, std::int64_t end) {
  ShardTensor slice{.name = std::move(name), .dtype = dtype, .shape = global};
  slice.shape[dimension] = end - begin;
  if (slice.shape != global) {
    std::vector<std::int64_t> offset(global.size(), 0);
    offset[dimension] = begin;
    slice.part = TensorPart{slice.name, std::move(global), std::move(offset)};
  }
  slice.end = TensorBytes(dtype, slice.shape).value_or(0);
  return slice;
}

// The rank's share of a cut tensor: of its data, and of its padding.
void AddShare(const ModelTensor& tensor, const Layout& layout, int rank, std::vector<ShardTensor>& shares) {
  const std::size_t cut = *tensor.cut;
  const std::int64_t extent = tensor.shape[cut];
  const std::int64_t padded = Padded(tensor, layout);
  const std::int64_t share = padded / layout.tensor;
  const std::int64_t begin = share * layout.TensorRankOf(rank);
  const std::int64_t end = begin + share;
  if (begin < extent) {
    shares.push_back(Slice(tensor.name, tensor.dtype, tensor.shape, cut, begin, std::min(end, extent)));
  }
  if (end > extent) {
    std::vector<std::int64_t> padding = tensor.shape;
    padding[cut] = padded - extent;
    shares.push_back(Slice(fmt::format("{}{}{}", tensor.name, kPadding, padded), tensor.dtype, std::move(padding), cut,
                           std::max(begin, extent) - extent, end - extent));
  }
}

}  // namespace

std::string ToString(const Layout& layout) {
  return fmt::format("{},{},{}", layout.pipeline, layout.tensor, layout.data);
}

Status CheckLayout(const Model& model, const Layout& layout, std::string_view what) {
  if (layout.pipeline < 1 || layout.tensor < 1 || layout.data < 1) {
    return Error(StatusCode::kInvalidArgument, "{}: expected at least 1 in each dimension, found {}", what,
                 ToString(layout));
  }
  if (model.layers % layout.pipeline != 0) {
    return Error(StatusCode::kInvalidArgument, "{}: expected stages of equal size, found {} layers in {} stages", what,
                 model.layers, layout.pipeline);
  }
  if (model.heads % layout.tensor != 0) {
    return Error(StatusCode::kInvalidArgument, "{}: expected equal parts of {} heads, found {} tensor-parallel ranks",
                 what, model.heads, layout.tensor);
  }
  for (const ModelTensor& tensor : model.tensors) {
    if (!tensor.cut || tensor.pad != 0 || tensor.shape[*tensor.cut] % layout.tensor == 0) continue;
    return Error(StatusCode::kInvalidArgument,
                 "{}: tensor {}: expected a dimension {} that can be cut into {} equal parts, found shape {}", what,
                 Quoted(tensor.name), *tensor.cut, layout.tensor, Listed(tensor.shape));
  }
  return Status::Ok();
}

std::vector<ShardTensor> TensorsOf(const Model& model, const Layout& layout, int rank) {
  std::vector<ShardTensor> held;
  const int stage = layout.StageOf(rank);
  for (const ModelTensor& tensor : model.tensors) {
    if (!IsOnStage(tensor, model, layout, stage)) continue;
    if (tensor.cut) {
      AddShare(tensor, layout, rank, held);
    } else {
      ShardTensor whole{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape};
      whole.end = TensorBytes(whole.dtype, whole.shape).value_or(0);
      held.push_back(std::move(whole));
    }
  }
  return held;
}

bool IsPadding(std::string_view name) { return name.find(kPadding) != std::string_view::npos; }

}  // namespace cairn
