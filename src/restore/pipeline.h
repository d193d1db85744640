#pragma once

#include <atomic>
#include <cstdint>
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

/// Reads -> verification -> targets, through the pool: queue_depth reads are under way at once while workers verify
/// what has come in and copy each block, still warm, to CPU memory; what is for a device follows from its chunk.
///
/// A file that is closed is opened for its first read, and where there are many closed behind its last.
///
/// For one thread, which also owns the queue; runs once.
class Pipeline {
 public:
  /// `copies` by shard, as PlanReads sorted them; `files`, `reads`, `copies` and `devices` outlive the pipeline.
  Pipeline(const RestoreParts& parts, std::unique_ptr<IoQueue> queue, std::span<ShardFile> files,
           std::span<const PlannedRead> reads, std::span<const std::vector<PlannedCopy>> copies, DeviceCopies& devices);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Blocks until every read has reached its targets, or until the first error and all that was under way with it.
  Status Run(std::span<const Stream> streams, const Progress& progress);

 private:
  // A chunk and what is in it: reading -> working -> copying -> idle.
  struct Slot {
    BufferPool::Chunk chunk;
    const PlannedRead* read = nullptr;
    int copies = 0;  // Batches of it that a device has under way.
  };
  // What worker and device threads tell this one. They may outlive the pipeline after a sticky device error.
  struct Message {
    Slot* slot = nullptr;
    bool copied = false;  // By a device; else verified, by a worker.
    Status status;
  };
  struct Inbox {
    void Push(Message message) CAIRN_EXCLUDES(mutex);
    Mutex mutex;
    std::vector<Message> messages CAIRN_GUARDED_BY(mutex);
    IoQueue* queue CAIRN_GUARDED_BY(mutex) = nullptr;
  };

  void FillQueue();
  Status WaitForChunk();
  void StartRead(Slot& slot);
  IoTask<Status> ReadTask(const Slot& slot);
  void ReadDone(Slot& slot, Status status);
  Status VerifyAndCopy(const Slot& slot);
  void CopyToDevices(Slot& slot);
  void Handle(const Message& message, const Progress& progress);
  void HandleMessages(const Progress& progress);
  void CheckHealth();
  void TellSlowReads();
  void Fail(Status status);
  void Finish(Slot& slot);
  [[nodiscard]] bool idle() const { return reading_ + working_ + copying_ == 0; }
  [[nodiscard]] const std::byte* DataOf(const Slot& slot) const;

  const RestoreParts& parts_;
  const std::span<ShardFile> files_;
  const std::span<const PlannedRead> reads_;
  const std::span<const std::vector<PlannedCopy>> copies_;
  DeviceCopies& devices_;
  const std::shared_ptr<Inbox> inbox_;
  Mutex shared_memory_;              // Held while a target is written that shares memory with another.
  std::atomic<bool> failed_{false};  // Jobs that have not begun need not.

  // This thread's.
  Status status_;
  std::size_t next_read_ = 0;
  std::vector<std::uint32_t> reads_left_;  // Of each file.
  ShardFile* opening_ = nullptr;           // The file that the newest read waits for.
  int reading_ = 0;
  int working_ = 0;
  int copying_ = 0;  // Slots, not batches.
  bool devices_lost_ = false;
  Deadline next_health_check_ = Deadline::Infinite();
  Deadline slow_at_ = Deadline::Infinite();  // When the reads under way count as slow.
  std::uint64_t bytes_done_ = 0;
  std::uint64_t bytes_total_ = 0;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> idle_slots_;
  std::unique_ptr<IoQueue> queue_;  // Goes first: it waits for what the kernel does with the chunks.
};

}  // namespace cairn
