#include <utility>

#include "base/status_macros.h"
#include "bench/emulation/host_memory.h"
#include "bench/strategies/checkpoint_file.h"
#include "bench/strategies/nodes.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

/// A plain write and an fsync, as a careful user saves: the training waits until the checkpoint is on the disk. Nothing
/// is serialised.
class Sync : public Strategy {
 public:
  Sync(const Workplace& workplace, std::unique_ptr<BufferPool> pool, std::unique_ptr<CheckpointFile> file)
      : at_(workplace),
        pool_(std::move(pool)),
        host_(pool_->TryAcquire(BufferPool::Priority::kSave)),
        file_(std::move(file)) {}

  Status Save(std::uint64_t step) override {
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToHost(at_.state, 0, host()));
    CAIRN_RETURN_IF_ERROR(file_->Write(step, host()));
    CAIRN_RETURN_IF_ERROR(AwaitDurableOnAll(at_, step));
    at_.durable(step);
    return {};
  }
  Status BeforeUpdate() override { return {}; }
  Status Drain() override { return {}; }
  Result<std::uint64_t> Restore() override {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t step, ReadNewest(*file_, at_, host()));
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToDevice(host(), at_.state));
    return step;
  }

 private:
  [[nodiscard]] MutableBytes host() const { return {host_.data(), at_.state.bytes()}; }

  const Workplace at_;
  const std::unique_ptr<BufferPool> pool_;
  const BufferPool::Chunk host_;
  const std::unique_ptr<CheckpointFile> file_;
};

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace) {
  const std::uint64_t bytes = workplace.state.bytes();
  CAIRN_ASSIGN_OR_RETURN(auto pool, MakePinnedMemory(workplace.gpu, AlignUp(bytes, kBlock), AlignUp(bytes, kBlock)));
  CAIRN_ASSIGN_OR_RETURN(auto file, CheckpointFile::Open(workplace.directory, bytes, workplace.disk));
  return std::unique_ptr<Strategy>(std::make_unique<Sync>(workplace, std::move(pool), std::move(file)));
}

}  // namespace

StrategyKind SyncKind() {
  return {.name = "sync",
          .tuning =
              "copy to pinned memory, buffered write with early write-back, fsync, rename, fsync of the directory, and "
              "nothing serialised; over the file of the checkpoint before the last, in place",
          .checkpoints_on_disk = [](int) { return 2; },
          .host_bytes = [](std::uint64_t state_bytes, std::uint64_t, int) { return state_bytes; },
          .open = Open};
}

}  // namespace cairn::bench
