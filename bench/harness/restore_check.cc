#include "bench/harness/restore_check.h"

#include "base/status_macros.h"
#include "bench/harness/resources.h"

namespace cairn::bench {

Status CheckRestored(const StrategyKind& kind, const Workplace& workplace, std::uint64_t step) {
  DropCache(workplace.directory);
  CAIRN_RETURN_IF_ERROR(workplace.state.Clear());
  const auto restore = [&]() -> Result<std::uint64_t> {
    CAIRN_ASSIGN_OR_RETURN(const auto strategy, kind.open(workplace));
    return strategy->Restore();
  };
  const Result<std::uint64_t> restored = restore();
  if (!restored.ok()) {
    return Error(StatusCode::kCorrupt, "{}: expected step {} to be restored, found {}", kind.name, step,
                 restored.status().ToString());
  }
  if (*restored != step) {
    return Error(StatusCode::kCorrupt, "{}: expected step {} to be restored, found step {}", kind.name, step,
                 *restored);
  }
  CAIRN_ASSIGN_OR_RETURN(const bool same, workplace.state.Is(step));
  if (!same) {
    return Error(StatusCode::kCorrupt, "{}: what was restored is not the state of step {}", kind.name, step);
  }
  return {};
}

}  // namespace cairn::bench
