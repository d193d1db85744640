#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/worker_pool.h"
#include "cairn/status.h"
#include "device/device.h"

namespace cairn {

/// The bounded pool of pinned chunks that every byte passes through. Chunks are 4096-aligned and of one size.
///
/// Set-up order: 2 MiB-aligned mmap, MADV_HUGEPAGE, MADV_DONTFORK, touch, pin with each device. An inaccessible page
/// before and after the chunks makes an overrun fault. Safe from any thread. In a forked child the chunks have no
/// memory, and the destructor does nothing.
///
/// A pool may begin smaller than its cap, and grow up to it. Chunks never move.
class BufferPool {
 public:
  /// What is added and pinned at once, or one chunk if that is more. A driver that pins keeps other threads from
  /// launching kernels meanwhile.
  static constexpr std::uint64_t kPart = 256U << 20;

  enum class Priority : std::uint8_t { kSave, kRestore };

  /// A chunk in use. Its destructor returns it to the pool.
  class Chunk {
   public:
    Chunk() = default;
    ~Chunk() { Reset(); }
    Chunk(Chunk&& other) noexcept;
    Chunk& operator=(Chunk&& other) noexcept;
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;
    [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }
    [[nodiscard]] std::byte* data() const { return data_; }
    void Reset();

   private:
    friend class BufferPool;
    Chunk(BufferPool* pool, std::byte* data) : pool_(pool), data_(data) {}
    BufferPool* pool_ = nullptr;
    std::byte* data_ = nullptr;
  };

  /// Maps floor(cap_bytes / chunk_bytes) chunks. InvalidArgument if that is fewer than `min_chunks` (the message names
  /// the smallest cap); ResourceExhausted if the system lacks the memory.
  [[nodiscard]] static Result<std::unique_ptr<BufferPool>> Make(std::uint64_t cap_bytes, std::uint64_t chunk_bytes,
                                                                int min_chunks) {
    return MakeGrowing(cap_bytes, cap_bytes, chunk_bytes, min_chunks);
  }
  /// The same, but only the chunks of the first `bytes` (at least `min_chunks`) exist at once. Of the others only the
  /// addresses are reserved, until GrowTo.
  [[nodiscard]] static Result<std::unique_ptr<BufferPool>> MakeGrowing(std::uint64_t bytes, std::uint64_t cap_bytes,
                                                                       std::uint64_t chunk_bytes, int min_chunks);
  /// Unpins and unmaps. All chunks must have been returned.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Touches every page on the calling thread, so that no save pays for it: up to 2.5 s per GB. Chunks may be in use.
  void Touch();
  /// The same, helped by the workers; the caller must not be one of them. On return every page is touched, except those
  /// that other threads are touching in TouchNext.
  void Touch(WorkerPool& workers);
  /// Touches the next 4 MiB and returns whether more is left. Touch and TouchNext together touch every page once.
  bool TouchNext();
  /// Puts the pool on the device's NUMA node: moves the pages that were touched, and takes later ones from there. The
  /// workers, which read what is in it, then stay on that node's CPUs. Only for the first device whose node is known;
  /// has no effect where the kernel refuses.
  void PlaceNear(const Device& device, WorkerPool& workers) CAIRN_EXCLUDES(size_mutex_);
  /// Pins the whole pool with the device, which outlives the pool. Once for each device, before it uses chunks.
  Status PinWith(Device& device) CAIRN_EXCLUDES(size_mutex_);
  /// Adds chunks for `bytes` in all, rounded up, but no more than the cap. If devices use the pool, the new pages are
  /// touched (helped by the workers; the caller must not be one of them) and pinned first: tenths of a second per GiB.
  /// Each part is lent as soon as it is there. After an error the pool keeps the parts that it has.
  Status GrowTo(std::uint64_t bytes, WorkerPool& workers) CAIRN_EXCLUDES(size_mutex_, mutex_);
  /// GrowTo adds no further part; a call under way returns Ok after the one that it is at.
  void StopGrowing() { stopped_ = true; }
  /// Whether a device has pinned it, so that growing takes time.
  [[nodiscard]] bool pinned() const CAIRN_EXCLUDES(size_mutex_);

  /// A free chunk; an empty one if none is free, or if `priority` is kSave and a restore waits in Acquire.
  [[nodiscard]] Chunk TryAcquire(Priority priority) CAIRN_EXCLUDES(mutex_);
  /// Sleeps until a chunk is free, or fails with DeadlineExceeded. Restores go before saves.
  [[nodiscard]] Result<Chunk> Acquire(Priority priority, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Called without a lock, by the thread that returns a chunk (or ends its wait in Acquire), when a chunk becomes free
  /// after TryAcquire failed. Set once, at Open.
  void SetOnFree(std::function<void()> on_free) CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  /// The size of now.
  [[nodiscard]] std::uint64_t total_bytes() const { return chunk_bytes_ * chunk_count_; }
  [[nodiscard]] std::uint64_t chunk_count() const { return chunk_count_; }
  [[nodiscard]] std::uint64_t cap_bytes() const { return cap_bytes_; }
  /// In use now, in bytes.
  [[nodiscard]] std::uint64_t used_bytes() const CAIRN_EXCLUDES(mutex_);
  /// The most that was ever in use at once, in bytes.
  [[nodiscard]] std::uint64_t peak_bytes() const CAIRN_EXCLUDES(mutex_);
  /// How many restores sleep in Acquire now.
  [[nodiscard]] int restores_waiting() const CAIRN_EXCLUDES(mutex_);
  /// Bytes of the pool backed by huge pages, from /proc/self/smaps. Slow.
  [[nodiscard]] std::uint64_t HugepageBytes() const;

 private:
  BufferPool(MutableBytes mapping, std::uint64_t chunk_bytes);
  Status Commit(std::uint64_t bytes) CAIRN_REQUIRES(size_mutex_);
  Status AddPart(std::uint64_t bytes, WorkerPool& workers) CAIRN_REQUIRES(size_mutex_) CAIRN_EXCLUDES(mutex_);
  Status PinNew(MutableBytes memory) CAIRN_REQUIRES(size_mutex_);
  void Lend() CAIRN_EXCLUDES(mutex_);
  void Return(std::byte* data) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool CanTake(Priority priority) const CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Chunk Take() CAIRN_REQUIRES(mutex_);
  // Wakes a waiter that can take a chunk now. Returns a callback, maybe empty, to call after the lock is released.
  [[nodiscard]] std::function<void()> NotifyWaiter() CAIRN_REQUIRES(mutex_);

  // The chunks, as many as the cap allows, and a guard page on either side.
  const MutableBytes mapping_;
  std::byte* const chunks_;
  const std::uint64_t chunk_bytes_;
  const std::uint64_t cap_bytes_;
  const pid_t owner_;
  // Of the chunks' bytes, from the first on: accessible, and of these touched.
  std::atomic<std::uint64_t> committed_{0};
  std::atomic<std::uint64_t> touched_{0};
  // Those that are lent. Changes under mutex_.
  std::atomic<std::uint64_t> chunk_count_{0};
  std::atomic<bool> stopped_{false};

  // Held while the pool is pinned or grows. Before mutex_.
  mutable Mutex size_mutex_;
  // Each is pinned on its own, with every device.
  std::vector<MutableBytes> parts_ CAIRN_GUARDED_BY(size_mutex_);
  std::vector<Device*> pinned_with_ CAIRN_GUARDED_BY(size_mutex_);
  bool placed_ CAIRN_GUARDED_BY(size_mutex_) = false;

  mutable Mutex mutex_;
  CondVar restore_may_take_;
  CondVar save_may_take_;
  // Last in, first out: the latest is still in the cache.
  std::vector<std::byte*> free_ CAIRN_GUARDED_BY(mutex_);
  std::function<void()> on_free_ CAIRN_GUARDED_BY(mutex_);
  bool acquire_failed_ CAIRN_GUARDED_BY(mutex_) = false;
  int restores_waiting_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_chunks_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
