#include "bench/pipeline/stage.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/bytes.h"

namespace cairn::bench {
namespace {

constexpr std::uint64_t kHidden = 2560;
constexpr std::uint64_t kVocabulary = 50272;
constexpr std::uint64_t kPositions = 2050;
constexpr std::uint64_t kLayers = 32;
constexpr std::uint64_t kSector = 512;  // What an optimizer step writes a word of: TrainingState.

struct Parameter {
  std::string name;
  std::uint64_t elements = 0;
};

void AddLinear(std::vector<Parameter>& to, const std::string& name, std::uint64_t in, std::uint64_t out) {
  to.push_back({name + ".weight", in * out});
  to.push_back({name + ".bias", out});
}

void AddLayer(std::vector<Parameter>& to, std::uint64_t layer) {
  const std::string name = "model.decoder.layers." + std::to_string(layer) + ".";
  for (const char* part : {"self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj", "self_attn.out_proj"}) {
    AddLinear(to, name + part, kHidden, kHidden);
  }
  AddLinear(to, name + "self_attn_layer_norm", 1, kHidden);
  AddLinear(to, name + "fc1", kHidden, 4 * kHidden);
  AddLinear(to, name + "fc2", 4 * kHidden, kHidden);
  AddLinear(to, name + "final_layer_norm", 1, kHidden);
}

std::vector<Parameter> ParametersOf(int stage) {
  std::vector<Parameter> parameters;
  if (stage == 0) {
    parameters.push_back({"model.decoder.embed_tokens.weight", kVocabulary * kHidden});
    parameters.push_back({"model.decoder.embed_positions.weight", kPositions * kHidden});
  }
  const std::uint64_t first = stage == 0 ? 0 : kLayers / kStages;
  for (std::uint64_t layer = first; layer < first + kLayers / kStages; ++layer) AddLayer(parameters, layer);
  if (stage != 0) {
    AddLinear(parameters, "model.decoder.final_layer_norm", 1, kHidden);
    parameters.push_back({"lm_head.weight", kVocabulary * kHidden});
  }
  return parameters;
}

}  // namespace

std::vector<NamedBytes> OptStage(int stage, double scale) {
  std::vector<NamedBytes> tensors;
  const std::vector<Parameter> parameters = ParametersOf(stage);
  for (const char* kind : {"", "exp_avg.", "exp_avg_sq."}) {
    for (const Parameter& parameter : parameters) {
      const double bytes = std::ceil(static_cast<double>(parameter.elements * sizeof(float)) * scale);
      tensors.push_back({kind + parameter.name, AlignUp(static_cast<std::uint64_t>(bytes), kSector)});
    }
  }
  const std::uint64_t all = BytesOf(tensors);
  tensors.back().bytes += AlignUp(all, kBlock) - all;
  return tensors;
}

std::uint64_t BytesOf(const std::vector<NamedBytes>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const NamedBytes& tensor) { return sum + tensor.bytes; });
}

}  // namespace cairn::bench
