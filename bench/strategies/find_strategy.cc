#include <string>
#include <vector>

#include "base/status_macros.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {

Result<StrategyKind> FindStrategy(std::string_view name) {
  const std::vector<StrategyKind> kinds{NoneKind(),   SyncKind(),    TorchSaveKind(), CheckFreqKind(),  GpmKind(),
                                        GeminiKind(), PcCheckKind(), CairnKind(),     CairnMemoryKind()};
  std::string names;
  for (const StrategyKind& kind : kinds) {
    if (kind.name == name) return kind;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return Error(StatusCode::kInvalidArgument, "unknown strategy \"{}\"; there are {}", name, names);
}

}  // namespace cairn::bench
