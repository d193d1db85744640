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
/// Order of making: 2 MiB-aligned mmap, MADV_HUGEPAGE, MADV_DONTFORK, touch, pin with each device. An inaccessible page
/// lies before and behind the chunks: an overrun faults. Safe from any thread. In a forked child there is no memory
/// behind the chunks, and the destructor does nothing.
class BufferPool {
 public:
  enum class Priority : std::uint8_t { kSave, kRestore };

  /// A chunk on loan; gives itself back.
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

  /// Maps floor(cap_bytes / chunk_bytes) chunks. InvalidArgument where that is fewer than `least_chunks` (the message
  /// names the least cap); ResourceExhausted where the system has no such memory.
  [[nodiscard]] static Result<std::unique_ptr<BufferPool>> Make(std::uint64_t cap_bytes, std::uint64_t chunk_bytes,
                                                                int least_chunks);
  /// All chunks are back; unpins and unmaps.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Touches every page, so that no save pays for it: on the calling thread, 2.5 s per GB at worst. Chunks may be in
  /// use meanwhile.
  void Touch();
  /// The same with the workers' help, on one of whose threads the caller is not. When it returns all is touched but
  /// what other threads have under way in TouchNext.
  void Touch(WorkerPool& workers);
  /// The same, a piece at a time: touches the next 4 MiB, and returns whether more is left. Together with Touch every
  /// page is touched once, whoever comes first.
  bool TouchNext();
  /// Pins the whole pool with the device, which outlives the pool. Before chunks go to it; once for each device.
  Status PinWith(Device& device) CAIRN_EXCLUDES(mutex_);

  /// A free chunk, or an empty one where there is none (or where a restore is waiting in Acquire and `priority` is
  /// kSave).
  [[nodiscard]] Chunk TryAcquire(Priority priority) CAIRN_EXCLUDES(mutex_);
  /// Sleeps until a chunk is free. DeadlineExceeded. Restores go before saves.
  [[nodiscard]] Result<Chunk> Acquire(Priority priority, Deadline deadline) CAIRN_EXCLUDES(mutex_);
  /// Called, without a lock, by whoever gives a chunk back (or ends its wait in Acquire), each time one can be had
  /// after TryAcquire found none. Set once, at Open.
  void SetOnFree(std::function<void()> on_free) CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] std::uint64_t total_bytes() const { return chunk_bytes_ * chunk_count_; }
  [[nodiscard]] std::uint64_t chunk_count() const { return chunk_count_; }
  /// The most that was ever on loan at once, in bytes.
  [[nodiscard]] std::uint64_t peak_bytes() const CAIRN_EXCLUDES(mutex_);
  /// Restores that sleep in Acquire now.
  [[nodiscard]] int restores_waiting() const CAIRN_EXCLUDES(mutex_);
  /// Bytes of the pool backed by huge pages, from /proc/self/smaps. Slow.
  [[nodiscard]] std::uint64_t HugepageBytes() const;

 private:
  BufferPool(MutableBytes mapping, std::byte* chunks, std::uint64_t chunk_bytes, std::uint64_t chunk_count);
  void GiveBack(std::byte* data) CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool CanTake(Priority priority) const CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Chunk Take() CAIRN_REQUIRES(mutex_);
  // Wakes who may take a chunk now. Returns what to call once the lock is released; may be empty.
  [[nodiscard]] std::function<void()> Wake() CAIRN_REQUIRES(mutex_);

  const MutableBytes mapping_;  // The chunks and a page on either side.
  std::byte* const chunks_;
  const std::uint64_t chunk_bytes_;
  const std::uint64_t chunk_count_;
  const pid_t owner_;
  std::atomic<std::uint64_t> touched_{0};  // Bytes from the first chunk on.

  mutable Mutex mutex_;
  CondVar restore_may_take_;
  CondVar save_may_take_;
  std::vector<Device*> pinned_with_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::byte*> free_ CAIRN_GUARDED_BY(mutex_);  // The last one back goes out first: it is warm.
  std::function<void()> on_free_ CAIRN_GUARDED_BY(mutex_);
  bool found_none_ CAIRN_GUARDED_BY(mutex_) = false;
  int restores_waiting_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_chunks_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
