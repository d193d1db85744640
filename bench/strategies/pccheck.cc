#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "bench/emulation/disk_pace.h"
#include "bench/emulation/host_memory.h"
#include "bench/strategies/slot_file.h"
#include "bench/strategies/strategy.h"

namespace cairn::bench {
namespace {

std::uint64_t ChunkBytes(const Workplace& workplace) {
  const std::uint64_t most = AlignUp(DivideUp(workplace.state.bytes(), 8), kBlock);
  return workplace.chunk_bytes == 0 ? most : std::min(workplace.chunk_bytes, most);
}

/// PCcheck: N checkpoints under way, each in a slot of its own (N + 1 in all); chunks are copied to pinned memory one
/// after the other, p threads a checkpoint store each in the slot as soon as it is there, then one msync; the newest
/// complete one wins. Several nodes agree on each step before the slot of the one before is used again, as the authors'
/// do.
///
/// The authors' own code has one msync, too. One for each chunk took 0.7 s a GiB instead of 0.55, and 1.7 with chunks
/// of 4 MiB: each of them also makes the disk flush its cache.
class PcCheck : public Strategy {
 public:
  PcCheck(const Workplace& workplace, std::unique_ptr<BufferPool> pool, std::unique_ptr<SlotFile> file)
      : at_(workplace), pool_(std::move(pool)), file_(std::move(file)) {
    for (int i = 0; i < at_.in_flight; ++i) {
      savers_.push_back(std::make_unique<Saver>(at_.writers));
      idle_.push_back(savers_.back().get());
    }
  }
  ~PcCheck() override { static_cast<void>(AwaitIdle()); }

  Status Save(std::uint64_t step) override {
    {
      MutexLock lock(mutex_);
      while (idle_.empty()) changed_.Wait(mutex_);
      if (!status_.ok()) return status_;
    }
    // With a saver idle a slot is free; only this thread takes any.
    CAIRN_ASSIGN_OR_RETURN(const int slot, file_->Take());
    MutexLock lock(mutex_);
    Saver& saver = *idle_.front();
    idle_.pop_front();
    ++capturing_;
    const std::uint64_t turn = saves_++;
    saver.copier.Post([this, &saver, slot, step, turn] { Run(saver, slot, step, turn); });
    return {};
  }
  Status BeforeUpdate() override {
    MutexLock lock(mutex_);
    while (capturing_ > 0) changed_.Wait(mutex_);
    return {};
  }
  Status Drain() override { return AwaitIdle(); }
  Result<std::uint64_t> Restore() override { return RestoreNewest(*file_, at_); }

 private:
  // The threads of one checkpoint under way.
  struct Saver {
    explicit Saver(int threads) : writers("pccheck-write", threads) {}
    WorkerPool writers;
    WorkerPool copier{"pccheck-copy", 1};
  };
  // The chunks of one that are copied and not stored yet.
  struct Progress {
    Mutex mutex;
    CondVar changed;
    int chunks CAIRN_GUARDED_BY(mutex) = 0;
    std::deque<DiskPace> with_disk CAIRN_GUARDED_BY(mutex);  // The newest chunks stored, as many as there are threads.
  };

  Status AwaitIdle() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (idle_.size() < savers_.size()) changed_.Wait(mutex_);
    return status_;
  }

  void Run(Saver& saver, int slot, std::uint64_t step, std::uint64_t turn) CAIRN_EXCLUDES(mutex_) {
    Progress progress;
    Status status = CopyChunks(saver, slot, progress);
    {
      MutexLock lock(mutex_);
      --capturing_;
      changed_.NotifyAll();
    }
    {
      MutexLock lock(progress.mutex);
      while (progress.chunks > 0) progress.changed.Wait(progress.mutex);
      for (const DiskPace& pace : progress.with_disk) pace.End();
    }
    if (status.ok()) status = file_->Persist(slot);
    // Several nodes commit the same steps in the same order, and none after one that failed: a node may need the step
    // before that. One node alone lets the newest overtake.
    if (at_.group != nullptr && status.ok()) status = AwaitTurn(turn);
    if (status.ok()) status = Commit(*file_, at_, slot, step);
    MutexLock lock(mutex_);
    ++ended_;
    if (status_.ok()) status_ = status;
    idle_.push_back(&saver);
    changed_.NotifyAll();
  }

  // Until the saves before have ended; the failure of one of them.
  Status AwaitTurn(std::uint64_t turn) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (ended_ < turn) changed_.Wait(mutex_);
    return status_;
  }

  Status CopyChunks(Saver& saver, int slot, Progress& progress) {
    const DeviceState& state = at_.state;
    for (std::uint64_t at = 0; at < state.bytes(); at += pool_->chunk_bytes()) {
      const std::uint64_t n = std::min(pool_->chunk_bytes(), state.bytes() - at);
      CAIRN_ASSIGN_OR_RETURN(BufferPool::Chunk acquired,
                             pool_->Acquire(BufferPool::Priority::kSave, Deadline::Infinite()));
      const auto chunk = std::make_shared<BufferPool::Chunk>(std::move(acquired));
      CAIRN_RETURN_IF_ERROR(at_.gpu.CopyToHost(state, at, {chunk->data(), n}));
      {
        MutexLock lock(progress.mutex);
        ++progress.chunks;
      }
      saver.writers.Post([this, slot, at, n, chunk, &progress] {
        std::memcpy(file_->slot(slot).data() + at, chunk->data(), n);
        chunk->Reset();
        // The emulated disk has one chunk of each thread while that stores the next, so saves under way share it
        // equally.
        std::optional<DiskPace> earlier;
        {
          MutexLock lock(progress.mutex);
          if (progress.with_disk.size() >= static_cast<std::size_t>(at_.writers)) {
            earlier.emplace(progress.with_disk.front());
            progress.with_disk.pop_front();
          }
        }
        if (earlier) earlier->End();
        DiskPace pace(at_.disk);
        pace.Begin(n);
        file_->StartWriting(slot, at, n);
        MutexLock lock(progress.mutex);
        progress.with_disk.push_back(pace);
        --progress.chunks;
        progress.changed.NotifyAll();
      });
    }
    return {};
  }

  const Workplace at_;
  const std::unique_ptr<BufferPool> pool_;
  const std::unique_ptr<SlotFile> file_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Saver*> idle_ CAIRN_GUARDED_BY(mutex_);
  int capturing_ CAIRN_GUARDED_BY(mutex_) = 0;        // Saves whose state is not all in pinned memory yet.
  std::uint64_t saves_ CAIRN_GUARDED_BY(mutex_) = 0;  // Begun and ended.
  std::uint64_t ended_ CAIRN_GUARDED_BY(mutex_) = 0;
  Status status_ CAIRN_GUARDED_BY(mutex_);      // The first failure.
  std::vector<std::unique_ptr<Saver>> savers_;  // Constant after construction; last, so that their threads end first.
};

Result<std::unique_ptr<Strategy>> Open(const Workplace& workplace) {
  CAIRN_ASSIGN_OR_RETURN(auto pool,
                         MakePinnedMemory(workplace.gpu, workplace.host_memory_bytes, ChunkBytes(workplace)));
  CAIRN_ASSIGN_OR_RETURN(
      auto file, SlotFile::Open(workplace.directory + "/slots", workplace.in_flight + 1, workplace.state.bytes()));
  return std::unique_ptr<Strategy>(std::make_unique<PcCheck>(workplace, std::move(pool), std::move(file)));
}

}  // namespace

StrategyKind PcCheckKind() {
  return {.name = "pccheck",
          .tuning =
              "in_flight + 1 slots in one mapped, laid-out file; writer threads a checkpoint as given (1 of 1 to 4 was "
              "by far the best here: more contend for the mapping's page faults), chunks as given or an eighth of the "
              "state (the best of 4 MiB to that), one msync; pinned memory of twice the state unless set",
          .checkpoints_on_disk = [](int in_flight) { return in_flight + 1; },
          .host_bytes = [](std::uint64_t, std::uint64_t host_memory_bytes) { return host_memory_bytes; },
          .open = Open};
}

}  // namespace cairn::bench
