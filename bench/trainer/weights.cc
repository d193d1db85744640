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

#include "cairn/torch.h"
#include "console.h"
#include "json_file.h"
#include "safetensors.h"

namespace cairn::trainer {
namespace {

struct Found {
  const FileTensor* tensor;
  const std::string* file;
};

[[noreturn]] void Reject(const std::string& file, const std::string& name, const std::string& expected,
                         const std::string& found) {
  throw std::runtime_error(file + ": tensor \"" + name + "\": expected " + expected + ", found " + found);
}

/// The tensors of one file, or of all files in an index.
class WeightFiles {
 public:
  WeightFiles(const std::string& folder, const Model& model) : path_(folder + "/model.safetensors") {
    if (std::filesystem::exists(path_)) {
      Open(path_);
    } else if (path_ += ".index.json"; std::filesystem::exists(path_)) {
      OpenIndexed(folder);
    } else {
      throw std::runtime_error(
          "--init-from " + folder +
          ": expected model.safetensors or model.safetensors.index.json in this folder, found neither");
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
      if (!fresh) Reject(path, name, "it only once", "it also in " + *other->second.file);
    }
  }

  void OpenIndexed(const std::string& folder) {
    const JsonFile index(path_);
    const nlohmann::json& map = index.Object("weight_map");
    for (const auto& [name, file] : map.items()) {
      // Plain file names only, so that an index cannot refer outside its folder.
      if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
        Reject(path_, name, "a file name", file.dump());
      }
      const std::string path = folder + "/" + file.get<std::string>();
      if (!files_.contains(path)) Open(path);
      const auto at = tensors_.find(name);
      if (at == tensors_.end() || *at->second.file != path) Reject(path, name, "it, as in " + path_, "none");
    }
    for (const auto& [name, found] : tensors_) {
      if (!map.contains(name)) Reject(*found.file, name, "only tensors that " + path_ + " names", "it");
    }
  }

  /// Files converted from TensorFlow, such as BERT's published ones, have TensorFlow's name endings.
  void Rename(const std::string& old, const std::string& ending) {
    std::map<std::string, Found> renamed;
    for (const auto& [name, found] : tensors_) {
      const bool is_old = name.ends_with(old);
      const std::string now = is_old ? name.substr(0, name.size() - old.size()) + ending : name;
      if (!renamed.try_emplace(now, found).second) Reject(*found.file, now, "it only once", "it also as " + old);
    }
    tensors_ = std::move(renamed);
  }

  /// Files of a model without heads, such as BLOOM's published ones, leave out the stem of the names.
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

/// The types in which weights are published; nullopt for others.
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
  const auto view = cairn::ViewOf(parameter);
  return Describe(view->dtype, view->shape);
}
std::string TypeOf(const Found& found) { return Describe(found.tensor->dtype, found.tensor->shape); }

/// The parameters to read, and the names to report of the rest.
struct Choice {
  std::vector<NamedTensor> read;
  std::string skipped, kept;
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
    if (node.empty()) Reject(files.path(), parameter.name, expected, "none");
    const Found& found = node.mapped();
    if (!Fits(*found.tensor, parameter.tensor)) Reject(*found.file, parameter.name, expected, TypeOf(found));
  }
  for (const auto& [name, holder] : model.tied) {
    const auto node = left.extract(name);
    if (node.empty()) continue;
    const Found& found = node.mapped();
    const Found& held = files.tensors().at(holder);
    const std::string expected = TypeOf(held) + " with the bytes of \"" + holder + "\"";
    if (TypeOf(found) != TypeOf(held)) Reject(*found.file, name, expected, TypeOf(found));
    if (!std::ranges::equal(found.tensor->bytes, held.tensor->bytes))
      Reject(*found.file, name, expected, "other bytes");
  }
  for (const std::string& head : model.other_heads) {
    for (const auto& [name, found] : left) choice.skipped += name.starts_with(head) ? " " + name : "";
    std::erase_if(left, of(head));
  }
  // A buffer in older files, which transformers skips too.
  for (const auto& [name, found] : left) choice.skipped += name.ends_with(".position_ids") ? " " + name : "";
  std::erase_if(left, [](const auto& item) { return item.first.ends_with(".position_ids"); });
  if (left.empty()) return choice;
  Reject(*left.begin()->second.file, left.begin()->first, "no tensor of this name", TypeOf(left.begin()->second));
}

}  // namespace

void LoadWeights(const std::string& folder, const Model& model) {
  const WeightFiles files(folder, model);
  const Choice choice = Choose(files, model);
  const c10::NoGradGuard no_grad;
  for (const NamedTensor& parameter : choice.read) {
    const FileTensor& tensor = *files.tensors().at(parameter.name).tensor;
    // Through a host copy: the file is not aligned, and the parameter may be on a GPU.
    const at::Tensor host = at::empty(tensor.shape, *WeightType(tensor.dtype));
    std::memcpy(host.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
    parameter.tensor.copy_(host);
  }
  if (!choice.skipped.empty()) PrintLine(files.path() + ": skipped:" + choice.skipped);
  if (!choice.kept.empty()) PrintLine(files.path() + ": missing, keeping initial weights:" + choice.kept);
}

}  // namespace cairn::trainer
