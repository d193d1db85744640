#include "models/published.h"

#include <algorithm>
#include <nlohmann/json.hpp>

// NOLINTNEXTLINE(hicpp-no-assembler)
asm(".pushsection .rodata\n"
    ".globl cairn_trainer_models_begin\n"
    ".globl cairn_trainer_models_end\n"
    "cairn_trainer_models_begin:\n"
    ".incbin \"" CAIRN_MODELS_FILE
    "\"\n"
    "cairn_trainer_models_end:\n"
    ".popsection\n");

extern "C" {
extern const char cairn_trainer_models_begin[];  // NOLINT(modernize-avoid-c-arrays)
extern const char cairn_trainer_models_end[];    // NOLINT(modernize-avoid-c-arrays)
}

namespace cairn::trainer {

const std::vector<PublishedModel>& PublishedModels() {
  static const std::vector<PublishedModel> kModels = [] {
    std::vector<PublishedModel> models;
    const auto file = nlohmann::ordered_json::parse(cairn_trainer_models_begin, cairn_trainer_models_end);
    for (const auto& [name, about] : file.items()) {
      const auto sizes = about.begin();  // By the family's name.
      models.push_back({.name = name,
                        .family = sizes.key(),
                        .sizes = sizes->get<std::map<std::string, std::int64_t>>(),
                        .also = about.value("also", std::vector<std::string>())});
    }
    return models;
  }();
  return kModels;
}

const PublishedModel* FindPublishedModel(const std::string& name) {
  for (const PublishedModel& model : PublishedModels()) {
    if (model.name == name || std::ranges::find(model.also, name) != model.also.end()) return &model;
  }
  return nullptr;
}

const std::map<std::string, std::int64_t>& PublishedSizes(const std::string& name) {
  return FindPublishedModel(name)->sizes;
}

}  // namespace cairn::trainer
