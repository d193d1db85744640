#include "weights.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "console.h"
#include "device.h"
#include "json_file.h"
#include "safetensors.h"

namespace cairn::trainer {
namespace {

struct Found {
  const FileTensor* tensor;
  const std::string* file;
};

[[noreturn]] void Refuse(const std::string& file, const std::string& name, const std::string& expected,
                         const std::string& found) {
  throw std::runtime_error(file + ": tensor \"" + name + "\": expected " + expected + ", found " + found);
}

/// The tensors of one file, or of those that an index names.
class WeightFiles {
 public:
  WeightFiles(const std::string& folder, const Model& model) : path_(folder + "/model.safetensors") {
    if (std::filesystem::exists(path_)) {
      Open(path_);
    } else if (path_ += ".index.json"; std::filesystem::exists(path_)) {
      OpenIndexed(folder);
    } else {
      throw std::runtime_error("--init-from " + folder +
                               ": expected model.safetensors or model.safetensors.index.json in it, found neither");
    }
    Rename("LayerNorm.gamma", "LayerNorm.weight");
    Rename("LayerNorm.beta", "LayerNorm.bias");
    Complete(model);
  }

  /// The file, or the index.
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, Found>& tensors() const { return tensors_; }

 private:
  void Open(const std::string& path) {
    const SafetensorsFile& file = files_.try_emplace(path, path).first->second;
    for (const auto& [name, tensor] : file.tensors()) {
      const auto [other, fresh] = tensors_.try_emplace(name, Found{&tensor, &file.path()});
      if (!fresh) Refuse(path, name, "it once", "it in " + *other->second.file + " as well");
    }
  }

  void OpenIndexed(const std::string& folder) {
    const JsonFile index(path_);
    const nlohmann::json& map = index.Object("weight_map");
    for (const auto& [name, file] : map.items()) {
      // A plain name, or an index could lead out of its folder.
      if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
        Refuse(path_, name, "the name of a file", file.dump());
      }
      const std::string path = folder + "/" + file.get<std::string>();
      if (!files_.contains(path)) Open(path);
      const auto at = tensors_.find(name);
      if (at == tensors_.end() || *at->second.file != path) Refuse(path, name, "it, by " + path_, "none");
    }
    for (const auto& [name, found] : tensors_) {
      if (!map.contains(name)) Refuse(*found.file, name, "only what " + path_ + " names", "it");
    }
  }

  /// Files made from TensorFlow's have its names' endings, BERT's published ones among them.
  void Rename(const std::string& old, const std::string& ending) {
    std::map<std::string, Found> renamed;
    for (const auto& [name, found] : tensors_) {
      const bool is_old = name.ends_with(old);
      const std::string now = is_old ? name.substr(0, name.size() - old.size()) + ending : name;
      if (!renamed.try_emplace(now, found).second) Refuse(*found.file, now, "it once", "it as " + old + " as well");
    }
    tensors_ = std::move(renamed);
  }

  /// Files of the model without heads, BLOOM's published ones among them, leave its names' beginning out.
  void Complete(const Model& model) {
    const auto has_stem = [&](const auto& item) { return item.first.starts_with(model.stem); };
    if (std::ranges::any_of(tensors_, has_stem)) return;
    std::map<std::string, Found> completed;
    for (const auto& [name, found] : tensors_) completed[model.tied.contains(name) ? name : model.stem + name] = found;
    tensors_ = std::move(completed);
  }

  std::string path_;
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, Found> tensors_;
};

/// What weights are published in; nothing for a type that they are not.
std::optional<at::ScalarType> WeightType(cairn::DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    default:
      return std::nullopt;
  }
}

bool Fits(const FileTensor& tensor, const at::Tensor& parameter) {
  return WeightType(tensor.dtype) && parameter.sizes() == at::IntArrayRef(tensor.shape);
}

std::string TypeOf(const at::Tensor& parameter) {
  const cairn::TensorView view = ViewOf(parameter);
  return Describe(view.dtype, view.shape);
}
std::string TypeOf(const Found& found) { return Describe(found.tensor->dtype, found.tensor->shape); }

/// What is read, and what is to be said of the rest.
struct Choice {
  std::vector<NamedTensor> read;
  std::string passed_over, kept;
};

Choice Choose(const WeightFiles& files, const Model& model) {
  auto left = files.tensors();
  Choice choice;
  const auto of = [](const std::string& head) {
    return [&](const auto& item) { return item.first.starts_with(head); };
  };
  const bool headless = !model.head.empty() && std::ranges::none_of(left, of(model.head));
  for (const NamedTensor& parameter : model.parameters) {
    if (headless && parameter.name.starts_with(model.head)) {
      choice.kept += " " + parameter.name;
      continue;
    }
    choice.read.push_back(parameter);
    const auto node = left.extract(parameter.name);
    const std::string expected = TypeOf(parameter.tensor);
    if (node.empty()) Refuse(files.path(), parameter.name, expected, "none");
    const Found& found = node.mapped();
    if (!Fits(*found.tensor, parameter.tensor)) Refuse(*found.file, parameter.name, expected, TypeOf(found));
  }
  for (const auto& [name, holder] : model.tied) {
    const auto node = left.extract(name);
    if (node.empty()) continue;
    const Found& found = node.mapped();
    const Found& held = files.tensors().at(holder);
    const std::string expected = TypeOf(held) + " with the bytes of \"" + holder + "\"";
    if (TypeOf(found) != TypeOf(held)) Refuse(*found.file, name, expected, TypeOf(found));
    if (!std::ranges::equal(found.tensor->bytes, held.tensor->bytes)) Refuse(*found.file, name, expected, "others");
  }
  for (const std::string& head : model.other_heads) {
    for (const auto& [name, found] : left) choice.passed_over += name.starts_with(head) ? " " + name : "";
    std::erase_if(left, of(head));
  }
  // A buffer that older files have, and transformers passes over as well.
  for (const auto& [name, found] : left) choice.passed_over += name.ends_with(".position_ids") ? " " + name : "";
  std::erase_if(left, [](const auto& item) { return item.first.ends_with(".position_ids"); });
  if (left.empty()) return choice;
  Refuse(*left.begin()->second.file, left.begin()->first, "no tensor of this name", TypeOf(left.begin()->second));
}

}  // namespace

void LoadWeights(const std::string& folder, const Model& model) {
  const WeightFiles files(folder, model);
  const Choice choice = Choose(files, model);
  const c10::NoGradGuard no_grad;
  for (const NamedTensor& parameter : choice.read) {
    const FileTensor& tensor = *files.tensors().at(parameter.name).tensor;
    // By way of a tensor of its own: the file aligns nothing, and the parameter may be on a GPU.
    const at::Tensor host = at::empty(tensor.shape, *WeightType(tensor.dtype));
    std::memcpy(host.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
    parameter.tensor.copy_(host);
  }
  if (!choice.passed_over.empty()) Say(files.path() + ": passed over:" + choice.passed_over);
  if (!choice.kept.empty()) Say(files.path() + ": not there, kept as drawn:" + choice.kept);
}

}  // namespace cairn::trainer
