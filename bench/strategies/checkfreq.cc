#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "bench/emulation/host_memory.h"
#include "bench/strategies/checkpoint_file.h"
#include "bench/strategies/nodes.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

/// CheckFreq's pipeline, without its snapshot in GPU memory, its serialisation by torch.save and its tuner: the
/// snapshot runs beside forward and backward, and the update waits for it; the write runs beside whatever follows, and
/// the next save waits for it. One checkpoint at a time.
class CheckFreq : public Strategy {
 public:
  CheckFreq(const Workplace& workplace, std::unique_ptr<BufferPool> pool, std::unique_ptr<CheckpointFile> file)
      : at_(workplace),
        pool_(std::move(pool)),
        host_(pool_->TryAcquire(BufferPool::Priority::kSave)),
        file_(std::move(file)),
        background_("checkfreq", 1) {}

  Status Save(std::uint64_t step) override {
    CAIRN_RETURN_IF_ERROR(Drain());
    {
      MutexLock lock(mutex_);
      phase_ = Phase::kSnapshot;
    }
    background_.Post([this, step] {
      Status status = at_.gpu.CopyToHost(at_.state, 0, host());
      Enter(Phase::kPersist, status);
      if (status.ok()) status = file_->Write(step, host());
      if (status.ok()) status = AwaitDurableOnAll(at_, step);
      if (status.ok()) at_.durable(step);
      Enter(Phase::kIdle, status);
    });
    return {};
  }
  Status BeforeUpdate() override {
    MutexLock lock(mutex_);
    while (phase_ == Phase::kSnapshot) changed_.Wait(mutex_);
    return {};
  }
  Status Drain() override {
    MutexLock lock(mutex_);
    while (phase_ != Phase::kIdle) changed_.Wait(mutex_);
    return status_;
  }
  Result<std::uint64_t> Restore() override {
    CAIRN_ASSIGN_OR_RETURN(const std::uint64_t step, ReadNewest(*file_, at_, host()));
    CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToDevice(host(), at_.state));
    return step;
  }

 private:
  enum class Phase : std::uint8_t { kIdle, kSnapshot, kPersist };

  [[nodiscard]] MutableBytes host() const { return {host_.data(), at_.state.bytes()}; }
  void Enter(Phase phase, const Status& status) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    phase_ = phase;
    if (status_.ok()) status_ = status;
    changed_.NotifyAll();
  }

  const Workplace at_;
  const std::unique_ptr<BufferPool> pool_;
  const BufferPool::Chunk host_;
  const std::unique_ptr<CheckpointFile> file_;

  Mutex mutex_;
  CondVar changed_;
  Phase phase_ CAIRN_GUARDED_BY(mutex_) = Phase::kIdle;
  Status status_ CAIRN_GUARDED_BY(mutex_);  // The first failure.
  WorkerPool background_;                   // Last: it ends before what it uses.
};

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace) {
  const std::uint64_t bytes = workplace.state.bytes();
  CAIRN_ASSIGN_OR_RETURN(auto pool, MakePinnedMemory(workplace.gpu, AlignUp(bytes, kBlock), AlignUp(bytes, kBlock)));
  CAIRN_ASSIGN_OR_RETURN(auto file, CheckpointFile::Open(workplace.directory, bytes, workplace.disk));
  return std::unique_ptr<Strategy>(std::make_unique<CheckFreq>(workplace, std::move(pool), std::move(file)));
}

}  // namespace

StrategyKind CheckFreqKind() {
  return {
      .name = "checkfreq",
      .tuning =
          "snapshot to pinned memory beside forward and backward, none on the GPU; nothing serialised, no tuner; one "
          "persist in the background, written as by "
          "sync; the next save waits for it",
      .checkpoints_on_disk = [](int) { return 2; },
      .host_bytes = [](std::uint64_t state_bytes, std::uint64_t, int) { return state_bytes; },
      .open = Open};
}

}  // namespace cairn::bench
