#include "advice/model_file.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "advice/input_file.h"
#include "advice/json_field.h"
#include "advice/model_shapes.h"
#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {
namespace {

/// No size or count of a model is larger; so their products fit 64 bits.
constexpr std::int64_t kMostOfOne = 1 << 24;
constexpr std::int64_t kMostLayers = 1 << 14;
constexpr std::string_view kLayer = "{layer}";

/// Keeps `to` if the member is missing.
Status ReadIfThere(const JsonField& object, const char* name, std::uint64_t least, std::int64_t& to) {
  if (!object.Has(name)) return Status::Ok();
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t found, object.At(name).Whole(least, kMostOfOne));
  to = static_cast<std::int64_t>(found);
  return Status::Ok();
}

Result<std::int64_t> ReadSize(const JsonField& field, std::uint64_t most = kMostOfOne) {
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t found, field.Whole(1, most));
  return static_cast<std::int64_t>(found);
}

Result<DType> ReadType(const JsonField& field) {
  const Result<std::string> name = field.Text();
  const std::optional<DType> dtype = name.ok() ? DTypeFromName(*name) : std::nullopt;
  if (!dtype) return field.Expected(R"(a dtype such as "BF16" or "F32")");
  return *dtype;
}

Result<Model> ReadGpt(const JsonField& gpt) {
  CAIRN_RETURN_IF_ERROR(gpt.CheckObject({"layers", "hidden", "heads", "feed_forward", "positions", "vocabulary",
                                         "vocabulary_multiple", "weights", "optimizer"}));
  GptSizes sizes;
  CAIRN_ASSIGN_OR_RETURN(sizes.layers, ReadSize(gpt.At("layers"), kMostLayers));
  CAIRN_ASSIGN_OR_RETURN(sizes.hidden, ReadSize(gpt.At("hidden")));
  CAIRN_ASSIGN_OR_RETURN(sizes.positions, ReadSize(gpt.At("positions")));
  CAIRN_ASSIGN_OR_RETURN(sizes.vocabulary, ReadSize(gpt.At("vocabulary")));
  sizes.feed_forward = 4 * sizes.hidden;
  CAIRN_RETURN_IF_ERROR(ReadIfThere(gpt, "heads", 1, sizes.heads));
  CAIRN_RETURN_IF_ERROR(ReadIfThere(gpt, "feed_forward", 1, sizes.feed_forward));
  CAIRN_RETURN_IF_ERROR(ReadIfThere(gpt, "vocabulary_multiple", 1, sizes.vocabulary_multiple));
  for (const auto& [name, type] :
       {std::pair("weights", &sizes.kept.weights), std::pair("optimizer", &sizes.kept.optimizer)}) {
    if (!gpt.Has(name)) continue;
    CAIRN_ASSIGN_OR_RETURN(*type, ReadType(gpt.At(name)));
  }
  return MakeGpt(sizes);
}

Status ReadShape(const JsonField& shape, ModelTensor& tensor) {
  CAIRN_RETURN_IF_ERROR(shape.CheckArray(0, kMostOfOne, "whole numbers"));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t extent, shape.At(i).Whole(0, kMostOfOne));
    tensor.shape.push_back(static_cast<std::int64_t>(extent));
  }
  return TensorBytes(tensor.dtype, tensor.shape) ? Status::Ok() : shape.Expected("at most 2^62 bytes");
}

Result<ModelTensor::Stages> StagesOf(const JsonField& on) {
  using enum ModelTensor::Stages;
  const std::map<std::string_view, ModelTensor::Stages> names = {
      {"layers", kOfLayer}, {"first", kFirst}, {"last", kLast}, {"first and last", kFirstAndLast}, {"all", kAll}};
  const Result<std::string> name = on.Text();
  const auto found = name.ok() ? names.find(*name) : names.end();
  if (found == names.end()) return on.Expected(R"("layers", "first", "last", "first and last" or "all")");
  return found->second;
}

Result<ModelTensor> ReadTensor(const JsonField& field) {
  CAIRN_RETURN_IF_ERROR(field.CheckObject({"name", "dtype", "shape", "on", "cut", "pad"}));
  ModelTensor tensor;
  const JsonField name = field.At("name");
  CAIRN_ASSIGN_OR_RETURN(tensor.name, name.Name());
  if (IsPadding(tensor.name)) return name.Expected("none that padding has (\".padding-to-\")");
  CAIRN_ASSIGN_OR_RETURN(tensor.dtype, ReadType(field.At("dtype")));
  CAIRN_RETURN_IF_ERROR(ReadShape(field.At("shape"), tensor));
  CAIRN_ASSIGN_OR_RETURN(tensor.stages, StagesOf(field.At("on")));
  const bool of_layers = tensor.stages == ModelTensor::Stages::kOfLayer;
  const bool has_layer = tensor.name.find(kLayer) != std::string::npos;
  if (has_layer != of_layers) return name.Expected(of_layers ? "{layer} in it" : "no {layer} in it");
  const JsonField cut = field.At("cut");
  if (field.Has("cut")) {
    if (tensor.shape.empty()) return cut.Expected("none, because the shape has no dimension");
    CAIRN_ASSIGN_OR_RETURN(tensor.cut, cut.Whole(0, tensor.shape.size() - 1));
    CAIRN_RETURN_IF_ERROR(ReadIfThere(field, "pad", 0, tensor.pad));
  } else if (field.Has("pad")) {
    return cut.Expected("a dimension, because of \"pad\"");
  }
  return tensor;
}

Result<Model> ReadTensors(const JsonField& root) {
  Model model;
  CAIRN_ASSIGN_OR_RETURN(model.layers, ReadSize(root.At("layers"), kMostLayers));
  const JsonField list = root.At("tensors");
  CAIRN_RETURN_IF_ERROR(list.CheckArray(1, kMostOfOne, "tensors, or \"gpt\""));
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(const ModelTensor tensor, ReadTensor(list.At(i)));
    const bool of_layers = tensor.stages == ModelTensor::Stages::kOfLayer;
    for (std::int64_t layer = 0; layer < (of_layers ? model.layers : 1); ++layer) {
      ModelTensor one = tensor;
      one.layer = layer;
      if (of_layers) one.name.replace(one.name.find(kLayer), kLayer.size(), std::to_string(layer));
      if (!names.insert(one.name).second) return list.At(i).Wrong(Quoted(one.name) + " is there twice");
      model.tensors.push_back(std::move(one));
    }
  }
  return model;
}

}  // namespace

Result<Model> ReadModelFile(const std::string& path) {
  constexpr std::size_t kMostModelBytes = 64U << 20;
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path, "a model", kMostModelBytes));
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(text, path));
  const JsonField root(document, path);
  CAIRN_RETURN_IF_ERROR(root.CheckObject({"gpt", "layers", "tensors", "rank_bytes"}));
  std::int64_t rank_bytes = 0;
  CAIRN_RETURN_IF_ERROR(ReadIfThere(root, "rank_bytes", 0, rank_bytes));
  if (root.Has("gpt") && root.Has("tensors")) return root.At("tensors").Expected("none beside \"gpt\"");
  CAIRN_ASSIGN_OR_RETURN(Model model, root.Has("gpt") ? ReadGpt(root.At("gpt")) : ReadTensors(root));
  model.rank_bytes = static_cast<std::uint64_t>(rank_bytes);
  return model;
}

}  // namespace cairn
