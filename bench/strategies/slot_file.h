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
/// 3. Commit writes a root record with the next number, a checksum over it, into the one of two blocks that does not
///    hold the current record, and makes that durable. A torn record leaves the current one.
/// 4. Only then is the previous slot free again. No record names a slot that a crash leaves half filled.
class SlotFile {
 public:
  struct Newest {
    int slot = 0;
    std::uint64_t step = 0;
  };

  /// Opens the file, or lays out one with that many slots of `bytes` each. Corrupt if the file has another shape.
  [[nodiscard]] static Result<std::unique_ptr<SlotFile>> Open(const std::string& path, int slots, std::uint64_t bytes);
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
  /// Makes the slot the newest checkpoint, and frees the previous one. If a newer one is there already, frees this slot
  /// instead and returns false.
  Result<bool> Commit(int slot, std::uint64_t step) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<Newest> newest() const CAIRN_EXCLUDES(mutex_);

 private:
  struct Record;
  SlotFile(std::string path, UniqueFd file, MutableBytes mapping, int slots, std::uint64_t bytes);
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

/// Reads the newest checkpoint into the state. NotFound.
[[nodiscard]] Result<std::uint64_t> RestoreNewest(const SlotFile& file, const Workplace& workplace);

}  // namespace cairn::bench
