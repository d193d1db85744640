#include <utility>

#include "base/status_macros.h"
#include "bench/strategies/checkpoint_file.h"
#include "bench/strategies/host_memory.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

/// torch.save and an fsync: the training waits until the checkpoint is on the disk.
class Sync : public Strategy {
 public:
  Sync(const Workplace& workplace, std::unique_ptr<BufferPool> pool)
      : at_(workplace), pool_(std::move(pool)), host_(pool_->TryAcquire(BufferPool::Priority::kSave)) {}

  Status Save(std::uint64_t step) override {
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToHost(at_.state.memory(), host()));
    CAIRN_RETURN_IF_ERROR(WriteCheckpointFile(at_.directory, step, host(), at_.disk));
    at_.durable(step);
    return {};
  }
  Status BeforeUpdate() override { return {}; }
  Status Drain() override { return {}; }
  Result<std::uint64_t> Restore() override {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t step, ReadCheckpointFile(at_.directory, host()));
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToDevice(host(), at_.state.memory()));
    return step;
  }

 private:
  [[nodiscard]] MutableBytes host() const { return {host_.data(), at_.state.bytes()}; }

  const Workplace at_;
  const std::unique_ptr<BufferPool> pool_;
  const BufferPool::Chunk host_;
};

}  // namespace

StrategyKind SyncKind() {
  return {.name = "sync",
          .tuning =
              "as torch.save with fsync: copy to pinned memory, buffered write of a new file, fsync, rename, "
              "fsync of the directory",
          .checkpoints_on_disk = [](int) { return 2; },
          .host_bytes = [](std::uint64_t state_bytes, std::uint64_t) { return state_bytes; },
          .open = [](const Workplace& workplace) -> Result<std::unique_ptr<Strategy>> {
            CAIRN_ASSIGN_OR_RETURN(auto pool, MakeHostMemory(workplace.state.bytes(), workplace.state.bytes()));
            return std::unique_ptr<Strategy>(std::make_unique<Sync>(workplace, std::move(pool)));
          }};
}

}  // namespace cairn::bench
