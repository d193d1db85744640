#include "advice/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "format/fields.h"

namespace cairn {
namespace {

using nlohmann::json;

/// No size or count of a model is larger; so their products fit 64 bits.
constexpr std::int64_t kMostOfOne = 1 << 24;
constexpr std::int64_t kMostLayers = 1 << 14;
constexpr std::string_view kLayer = "{layer}";

/// One JSON object. The first problem stays; what is read after it means nothing.
class Members {
 public:
  Members(const json& object, std::string where, std::initializer_list<std::string_view> known)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Fail(where_, "an object", object);
    for (const auto& [name, value] : object.items()) {
      if (std::find(known.begin(), known.end(), name) != known.end() || !status_.ok()) continue;
      status_ = Error(StatusCode::kInvalidArgument, "{}: unknown member {}", where_, Quoted(name));
    }
  }

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool Has(const char* name) const { return object_.is_object() && object_.contains(name); }
  /// Null if it is missing.
  [[nodiscard]] json Get(const char* name) const { return Has(name) ? object_.at(name) : json(); }

  void Int(const char* name, std::int64_t least, std::int64_t most, bool required, std::int64_t& to) {
    if (!required && !Has(name)) return;
    const json value = Get(name);
    const auto found = value.is_number_integer() ? value.get<std::int64_t>() : least - 1;
    if (found < least || found > most) return Fail(name, fmt::format("an integer from {} to {}", least, most), value);
    to = found;
  }
  void Text(const char* name, std::string& to) {
    const json value = Get(name);
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) return Fail(name, "a text", value);
    to = value.get<std::string>();
  }
  void Type(const char* name, bool required, DType& to) {
    if (!required && !Has(name)) return;
    const json value = Get(name);
    const auto dtype = value.is_string() ? DTypeFromName(value.get_ref<const std::string&>()) : std::nullopt;
    if (!dtype) return Fail(name, R"(a dtype such as "BF16" or "F32")", value);
    to = *dtype;
  }
  void Fail(const std::string& name, const std::string& expected, const json& found) {
    if (!status_.ok()) return;
    const std::string member = name == where_ ? "" : fmt::format(": {}", name);
    std::string text = found.is_null() ? "none" : found.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 80) text = text.substr(0, 80) + "...";
    status_ = Error(StatusCode::kInvalidArgument, "{}{}: expected {}, found {}", where_, member, expected, text);
  }

 private:
  const json& object_;
  const std::string where_;
  Status status_;
};

Result<Model> ReadGpt(const json& object, const std::string& where) {
  Members members(object, where,
                  {"layers", "hidden", "heads", "feed_forward", "positions", "vocabulary", "vocabulary_multiple",
                   "weights", "optimizer"});
  GptSizes sizes;
  members.Int("layers", 1, kMostLayers, true, sizes.layers);
  members.Int("hidden", 1, kMostOfOne, true, sizes.hidden);
  members.Int("heads", 1, kMostOfOne, false, sizes.heads);
  sizes.feed_forward = 4 * sizes.hidden;
  members.Int("feed_forward", 1, kMostOfOne, false, sizes.feed_forward);
  members.Int("positions", 1, kMostOfOne, true, sizes.positions);
  members.Int("vocabulary", 1, kMostOfOne, true, sizes.vocabulary);
  members.Int("vocabulary_multiple", 1, kMostOfOne, false, sizes.vocabulary_multiple);
  members.Type("weights", false, sizes.weights);
  members.Type("optimizer", false, sizes.optimizer);
  CAIRN_RETURN_IF_ERROR(members.status());
  return MakeGpt(sizes);
}

void ReadShape(Members& members, ModelTensor& tensor) {
  const json shape = members.Get("shape");
  const auto is_extent = [](const json& extent) {
    return extent.is_number_integer() && extent.get<std::int64_t>() >= 0 && extent.get<std::int64_t>() <= kMostOfOne;
  };
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_extent)) {
    return members.Fail("shape", fmt::format("a list of integers from 0 to {}", kMostOfOne), shape);
  }
  tensor.shape = shape.get<std::vector<std::int64_t>>();
  if (!TensorBytes(tensor.dtype, tensor.shape)) members.Fail("shape", "at most 2^62 bytes", shape);
}

void ReadStages(Members& members, ModelTensor& tensor) {
  using Stages = ModelTensor::Stages;
  const std::vector<std::pair<std::string_view, Stages>> names = {{"layers", Stages::kOfLayer},
                                                                  {"first", Stages::kFirst},
                                                                  {"last", Stages::kLast},
                                                                  {"first and last", Stages::kFirstAndLast},
                                                                  {"all", Stages::kAll}};
  const json value = members.Get("on");
  for (const auto& [name, stages] : names) {
    if (!value.is_string() || value.get_ref<const std::string&>() != name) continue;
    tensor.stages = stages;
    const bool has_layer = tensor.name.find(kLayer) != std::string::npos;
    if (has_layer == (stages == Stages::kOfLayer)) return;
    return members.Fail("name", stages == Stages::kOfLayer ? "{layer} in it" : "no {layer} in it", tensor.name);
  }
  members.Fail("on", R"("layers", "first", "last", "first and last" or "all")", value);
}

Result<ModelTensor> ReadTensor(const json& object, const std::string& where) {
  Members members(object, where, {"name", "dtype", "shape", "on", "cut", "pad"});
  ModelTensor tensor;
  members.Text("name", tensor.name);
  if (IsPadding(tensor.name)) members.Fail("name", "none that padding has (\".padding-to-\")", tensor.name);
  members.Type("dtype", true, tensor.dtype);
  ReadShape(members, tensor);
  ReadStages(members, tensor);
  if (members.Has("cut")) {
    std::int64_t cut = 0;
    members.Int("cut", 0, static_cast<std::int64_t>(tensor.shape.size()) - 1, true, cut);
    tensor.cut = static_cast<std::size_t>(cut);
    members.Int("pad", 0, kMostOfOne, false, tensor.pad);
  } else if (members.Has("pad")) {
    members.Fail("cut", "a dimension, because of \"pad\"", json());
  }
  CAIRN_RETURN_IF_ERROR(members.status());
  return tensor;
}

Result<Model> ReadTensors(const std::string& path, Members& members) {
  Model model;
  members.Int("layers", 1, kMostLayers, true, model.layers);
  const json list = members.Get("tensors");
  if (!list.is_array() || list.empty()) members.Fail("tensors", "a list of tensors, or \"gpt\"", list);
  CAIRN_RETURN_IF_ERROR(members.status());
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(const ModelTensor tensor, ReadTensor(list[i], fmt::format("{}: tensors[{}]", path, i)));
    const bool of_layers = tensor.stages == ModelTensor::Stages::kOfLayer;
    for (std::int64_t layer = 0; layer < (of_layers ? model.layers : 1); ++layer) {
      ModelTensor one = tensor;
      one.layer = layer;
      if (of_layers) one.name.replace(one.name.find(kLayer), kLayer.size(), std::to_string(layer));
      if (!names.insert(one.name).second) {
        return Error(StatusCode::kInvalidArgument, "{}: tensors[{}]: {} is there twice", path, i, Quoted(one.name));
      }
      model.tensors.push_back(std::move(one));
    }
  }
  return model;
}

/// InvalidArgument for a member that is there twice, and for what is nested too deeply.
Result<json> ParseJson(const std::string& text, const std::string& path) {
  if (IsNestedTooDeeply(text)) {
    return Error(StatusCode::kInvalidArgument, "{}: expected at most {} levels of lists and objects, found more", path,
                 kMostJsonLevels);
  }
  std::vector<std::set<std::string>> names;
  std::string twice;
  const auto watch = [&](int /*depth*/, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  json root = json::parse(text, watch, /*allow_exceptions=*/false);
  if (root.is_discarded()) return Error(StatusCode::kInvalidArgument, "{}: expected JSON", path);
  if (!twice.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: member {} is there twice", path, Quoted(twice));
  }
  return root;
}

}  // namespace

Result<Model> ReadModelFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad() || std::filesystem::is_directory(path)) {
    return Error(StatusCode::kNotFound, "{}: cannot be read", path);
  }
  CAIRN_ASSIGN_OR_RETURN(const json root, ParseJson(text.str(), path));
  Members members(root, path, {"gpt", "layers", "tensors", "rank_bytes"});
  std::int64_t rank_bytes = 0;
  members.Int("rank_bytes", 0, kMostOfOne, false, rank_bytes);
  if (members.Has("gpt") && members.Has("tensors")) members.Fail("tensors", "none beside \"gpt\"", root["tensors"]);
  CAIRN_RETURN_IF_ERROR(members.status());
  CAIRN_ASSIGN_OR_RETURN(Model model,
                         members.Has("gpt") ? ReadGpt(root["gpt"], path + ": gpt") : ReadTensors(path, members));
  model.rank_bytes = static_cast<std::uint64_t>(rank_bytes);
  return model;
}

}  // namespace cairn
