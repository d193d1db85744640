#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

/// The ideal: no checkpoint at all.
class None : public Strategy {
 public:
  Status Save(std::uint64_t /*step*/) override { return {}; }
  Status BeforeUpdate() override { return {}; }
  Status Drain() override { return {}; }
  Result<std::uint64_t> Restore() override { return Status(StatusCode::kNotFound, "none writes no checkpoint"); }
};

}  // namespace

StrategyKind NoneKind() {
  return {.name = "none",
          .tuning = "no checkpoint",
          .checkpoints_on_disk = [](int) { return 0; },
          .host_bytes = [](std::uint64_t, std::uint64_t, int) { return std::uint64_t{0}; },
          .open = [](const Workplace&) -> Result<std::unique_ptr<Strategy>> {
            return std::unique_ptr<Strategy>(std::make_unique<None>());
          }};
}

}  // namespace cairn::bench
