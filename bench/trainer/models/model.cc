#include "models/model.h"

#include <array>
#include <stdexcept>

#include "models/vgg16.h"

namespace cairn::trainer {
namespace {

struct Entry {
  const char* name;
  Model (*make)(const ModelConfig&);
};
constexpr std::array kModels = {Entry{"vgg16", MakeVgg16}};

}  // namespace

Model MakeModel(const std::string& name, const ModelConfig& config) {
  std::string known;
  for (const Entry& entry : kModels) {
    if (name == entry.name) return entry.make(config);
    known += std::string(" ") + entry.name;
  }
  throw std::runtime_error("--model " + name + ": unknown; known are:" + known);
}

std::int64_t TakeSize(std::map<std::string, std::int64_t>& sizes, const std::string& name, std::int64_t published) {
  const auto node = sizes.extract(name);
  const std::int64_t size = node.empty() ? published : node.mapped();
  if (size < 1) throw std::runtime_error("--size " + name + ": expected at least 1, found " + std::to_string(size));
  return size;
}

void RefuseUnknownSizes(const std::map<std::string, std::int64_t>& sizes, const std::string& known) {
  if (sizes.empty()) return;
  throw std::runtime_error("--size " + sizes.begin()->first + ": this model has no such size, only: " + known);
}

}  // namespace cairn::trainer
