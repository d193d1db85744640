#include "advice/published_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "advice/model_shapes.h"
#include "base/status_macros.h"
#include "format/fields.h"

// NOLINTNEXTLINE(hicpp-no-assembler)
asm(".pushsection .rodata\n"
    ".globl cairn_models_begin\n"
    ".globl cairn_models_end\n"
    "cairn_models_begin:\n"
    ".incbin \"" CAIRN_MODELS_FILE
    "\"\n"
    "cairn_models_end:\n"
    ".popsection\n");

extern "C" {
extern const char cairn_models_begin[];  // NOLINT(modernize-avoid-c-arrays)
extern const char cairn_models_end[];    // NOLINT(modernize-avoid-c-arrays)
}

namespace cairn {
namespace {

using Json = nlohmann::ordered_json;

const Json& Models() {
  static const Json kModels = Json::parse(cairn_models_begin, cairn_models_end);
  return kModels;
}

PublishedModel Make(const std::string& name, const Json& entry) {
  PublishedModel published{.name = name};
  const auto sizes = entry.begin();  // By the family's name.
  published.model = MakeModel(sizes.key(), sizes->get<ModelSizes>(), {.moments = entry.value("moments", 2)});
  published.published_parameters = entry.value("parameters", std::int64_t{0});
  if (const auto pace = entry.find("pace"); pace != entry.end()) {
    published.pace = {.iteration_seconds = pace->at("iteration_seconds").get<double>(),
                      .state_bytes = pace->value("state_bytes", std::uint64_t{0}),
                      .source = pace->at("source").get<std::string>()};
  }
  return published;
}

}  // namespace

Result<PublishedModel> FindPublishedModel(std::string_view name) {
  for (const auto& [known, entry] : Models().items()) {
    const auto also = entry.value("also", std::vector<std::string>());
    if (known == name || std::ranges::find(also, name) != also.end()) return Make(known, entry);
  }
  return Error(StatusCode::kInvalidArgument, "unknown model {}; there are {}", Quoted(name),
               fmt::join(PublishedModelNames(), ", "));
}

std::vector<std::string> PublishedModelNames() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : Models().items()) names.push_back(name);
  return names;
}

}  // namespace cairn
