#include "bench/pipeline/stage.h"

#include <string_view>

#include "advice/published_models.h"

namespace cairn::bench {

std::vector<NamedBytes> OptStage(int stage, double scale) {
  std::vector<NamedBytes> tensors =
      ScaledTensors(FindPublishedModel("opt-2.7b")->model, {.pipeline = kStages}, stage, scale);
  if (stage == 0) return tensors;
  // The head, a tensor of its own.
  constexpr std::string_view kTied = "model.decoder.embed_tokens";
  for (NamedBytes& tensor : tensors) {
    const std::size_t at = tensor.name.find(kTied);
    if (at != std::string::npos) tensor.name.replace(at, kTied.size(), "lm_head");
  }
  return tensors;
}

double OptIterationSeconds() { return FindPublishedModel("opt-2.7b")->pace->iteration_seconds; }

}  // namespace cairn::bench
