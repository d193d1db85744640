#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "cairn/checkpointer.h"
#include "restore/device_copies.h"
#include "restore/plan.h"
#include "restore/reader.h"
#include "restore/shard_file.h"

namespace cairn {

/// Reads -> verification -> targets, through the pool. queue_depth reads are in flight while workers verify what has
/// arrived and copy each block to CPU memory while it is in the cache; devices then copy from the chunk.
///
/// A closed file is opened for its first read, and, if there are many, closed after its last.
///
/// Of a file in memory nothing is read: workers copy each block to the chunk from its mapping.
///
/// What came through the page cache and does not verify is read once more from the disk, since only the cache may be
/// damaged; an event says so.
///
/// For one thread, which also owns the queue; runs once.
class Pipeline {
 public:
  /// `copies` by shard, as sorted by PlanReads. `files`, `reads`, `copies` and `devices` outlive the pipeline.
  Pipeline(const RestoreParts& parts, std::unique_ptr<IoQueue> queue, std::span<ShardFile> files,
           std::span<const PlannedRead> reads, std::span<const std::vector<PlannedCopy>> copies, DeviceCopies& devices);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Blocks until every read has reached its targets, or until the first error and the end of all work in flight, so
  /// that no target and no chunk is in use afterwards.
  Status Run(std::span<const Stream> streams, const Progress& progress);

 private:
  // A chunk and its state: reading -> working -> copying -> idle.
  struct Slot {
    BufferPool::Chunk chunk;
    const PlannedRead* read = nullptr;
    // Read through the page cache.
    bool cached = false;
    // Not read: workers look into the file's view.
    bool viewed = false;
    // Device batches planned or in flight.
    int copies = 0;
  };
  // A copy of a slot to a device whose lanes have no room yet.
  struct Planned {
    Device* device = nullptr;
    Slot* slot = nullptr;
    std::vector<CopyPiece> pieces;
    bool shares_memory = false;
  };
  // Sent by worker and device threads.
  struct Message {
    Slot* slot = nullptr;
    // By a device; otherwise verified by a worker.
    bool copied = false;
    Status status;
  };
  struct Inbox {
    void Push(Message message) CAIRN_EXCLUDES(mutex);
    void Wake() CAIRN_EXCLUDES(mutex);
    Mutex mutex;
    std::vector<Message> messages CAIRN_GUARDED_BY(mutex);
    IoQueue* queue CAIRN_GUARDED_BY(mutex) = nullptr;
  };

  void FillQueue();
  Status WaitForChunk();
  void StartRead(Slot& slot);
  void ReadInto(Slot& slot);
  // Whether a slot's bytes, which do not verify, are read once more.
  bool ReadAgain(Slot& slot, const Status& why);
  // The slot's read needs its file no more. What came through the page cache needs it until it is verified.
  void Release(const Slot& slot);
  IoTask<Status> ReadTask(const Slot& slot);
  void ReadDone(Slot& slot, Status status);
  Status VerifyAndCopy(const Slot& slot);
  void CopyToDevices(Slot& slot);
  void LaunchPlanned();
  void Launch(Planned planned);
  void EndCopy(Slot& slot);
  void Handle(const Message& message, const Progress& progress);
  void HandleMessages(const Progress& progress);
  void Fail(Status status);
  void Finish(Slot& slot);
  [[nodiscard]] bool idle() const { return reading_ + working_ + copying_ == 0; }
  [[nodiscard]] std::byte* DataOf(const Slot& slot) const;

  const RestoreParts& parts_;
  const std::span<ShardFile> files_;
  const std::span<const PlannedRead> reads_;
  const std::span<const std::vector<PlannedCopy>> copies_;
  DeviceCopies& devices_;
  const std::shared_ptr<Inbox> inbox_;
  // What fills a lane may be saves, or other restores, whose ends do not wake this one.
  const std::shared_ptr<const std::function<void()>> wake_;
  // Held while a target is written that shares memory with another.
  Mutex shared_memory_;
  // Jobs that have not begun are skipped.
  std::atomic<bool> failed_{false};

  // For this thread.
  Status status_;
  std::size_t next_read_ = 0;
  // By file.
  std::vector<std::uint32_t> reads_left_;
  // The file that the newest read waits for.
  ShardFile* opening_ = nullptr;
  int reading_ = 0;
  int working_ = 0;
  // Slots, not batches.
  int copying_ = 0;
  // By device, so that one with full lanes holds up no other.
  std::map<Device*, std::deque<Planned>> planned_;
  std::uint64_t bytes_done_ = 0;
  std::uint64_t bytes_total_ = 0;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> idle_slots_;
  // Destroyed first: it waits until the kernel has finished with the chunks.
  std::unique_ptr<IoQueue> queue_;
};

}  // namespace cairn
