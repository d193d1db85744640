#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "bench/strategies/strategy.h"
#include "cairn/status.h"

namespace cairn::bench {

/// A mapped file of equal slots, each for one checkpoint, and a root that names the slot of the newest: where GPM and
/// PCcheck keep their checkpoints. Safe from any thread; each slot's memory has one user at a time.
///
/// How a checkpoint is written:
/// 1. Take returns a slot that the root does not name and nobody else has, mapped anew: stores to pages that an msync
///    has write-protected fault one by one, which costs 2 s a GiB here (Linux 6.18); those to fresh mappings fault by
///    the hundred.
/// 2. The slot is filled, and made durable with Persist.
/// 3. Record writes a root record with the next number, a checksum over it, into the one of two blocks that does not
///    hold the current record, and makes that durable. A torn record leaves the current one.
/// 4. Only then is the previous slot given back with Free. No record names a slot that a crash leaves half filled.
///    Whoever waits before step 4 can still go back to the previous checkpoint.
class SlotFile {
 public:
  struct Newest {
    int slot = 0;
    std::uint64_t step = 0;
  };

  /// Opens the file, or lays out one with that many slots of `bytes` each, and holds it. Corrupt if the file has
  /// another shape; FailedPrecondition while another one holds it: what a killed training's writer still writes is
  /// never read.
  [[nodiscard]] static Result<std::unique_ptr<SlotFile>> Open(const std::string& path, int slots, std::uint64_t bytes);
  /// Waits up to a minute for another process to let go of it: where that one was killed, or has pinned memory in
  /// common with a GPU, the kernel releases its lock after it has been waited for.
  [[nodiscard]] static Result<std::unique_ptr<SlotFile>> OpenOnceFree(const std::string& path, int slots,
                                                                      std::uint64_t bytes);
  ~SlotFile();
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;

  /// Waits until a slot is free.
  [[nodiscard]] Result<int> Take() CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] MutableBytes slot(int slot) const;
  /// Makes the kernel start writing bytes [begin, begin + bytes) of the slot, without waiting. Persist reports errors.
  void StartWriting(int slot, std::uint64_t begin, std::uint64_t bytes) const;
  /// Makes what was stored in the slot durable: msync.
  Status Persist(int slot) const;
  struct Recorded {
    bool newest = false;
    std::optional<int> unused;  ///< To be freed: the previous checkpoint's slot, or this one if it is not the newest.
  };
  /// Makes the slot the newest checkpoint, unless there is a newer one.
  Result<Recorded> Record(int slot, std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  void Free(int slot) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<Newest> newest() const CAIRN_EXCLUDES(mutex_);
  /// Makes the checkpoint of `step` the newest again: that one, or the one before whose slot is not in use. Before any
  /// slot is taken. NotFound.
  Status GoBackTo(std::uint64_t step) CAIRN_EXCLUDES(mutex_);

 private:
  struct RootRecord;
  SlotFile(std::string path, UniqueFd file, MutableBytes mapping, int slots, std::uint64_t bytes);
  // The record in one of the two blocks; none if it is torn.
  [[nodiscard]] std::optional<RootRecord> Read(std::uint64_t block) const;
  Status Write(std::uint64_t number, const Newest& newest) CAIRN_REQUIRES(mutex_);
  void FindNewest() CAIRN_REQUIRES(mutex_);
  Status Sync(MutableBytes mapped) const;

  const std::string path_;
  const UniqueFd file_;
  const MutableBytes mapping_;  // Two root blocks, then the slots.
  const int slots_;
  const std::uint64_t bytes_;

  mutable Mutex mutex_;
  CondVar freed_;
  std::uint64_t number_ CAIRN_GUARDED_BY(mutex_) = 0;  // Of the current record; 0 where there is none.
  std::optional<Newest> newest_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t taken_ CAIRN_GUARDED_BY(mutex_) = 0;  // A bit for each slot that is not free.
};

/// Makes a persisted slot the newest checkpoint, on every node, reports the step as durable, and frees the slot of the
/// one before. If a newer one is there, only frees the slot.
Status Commit(SlotFile& file, const Workplace& workplace, int slot, std::uint64_t step);
/// Reads the newest checkpoint into the state; of several nodes, the newest that all have. NotFound.
[[nodiscard]] Result<std::uint64_t> RestoreNewest(SlotFile& file, const Workplace& workplace);

}  // namespace cairn::bench
