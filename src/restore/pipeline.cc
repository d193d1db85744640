#include "restore/pipeline.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "restore/rows.h"

namespace cairn {
namespace {

// Copies data bytes [begin, end) of a shard to the copy's target; `data` points to the bytes from `data_begin` on.
void CopyToMemory(const PlannedCopy& copy, std::uint64_t begin, std::uint64_t end, const std::byte* data,
                  std::uint64_t data_begin) {
  RowCursor cursor(copy, begin, end);
  while (const auto rows = cursor.Next()) {
    ScatterRows(*copy.target, {.begin = rows->to, .bytes = rows->bytes, .rows = rows->rows, .pitch = rows->to_pitch},
                data + (rows->from - data_begin), rows->from_pitch);
  }
}

}  // namespace

void Pipeline::Inbox::Push(Message message) {
  MutexLock lock(mutex);
  messages.push_back(std::move(message));
  // Under the lock, which keeps the queue alive meanwhile.
  if (queue != nullptr) queue->Wake();
}

void Pipeline::Inbox::Wake() {
  MutexLock lock(mutex);
  if (queue != nullptr) queue->Wake();
}

Pipeline::Pipeline(const RestoreParts& parts, std::unique_ptr<IoQueue> queue, std::span<ShardFile> files,
                   std::span<const PlannedRead> reads, std::span<const std::vector<PlannedCopy>> copies,
                   DeviceCopies& devices)
    : parts_(parts),
      files_(files),
      reads_(reads),
      copies_(copies),
      devices_(devices),
      inbox_(std::make_shared<Inbox>()),
      wake_(std::make_shared<const std::function<void()>>([inbox = inbox_] { inbox->Wake(); })),
      reads_left_(files.size()),
      queue_(std::move(queue)) {
  {
    MutexLock lock(inbox_->mutex);
    inbox_->queue = queue_.get();
  }
  devices_.WakeOnRoom(wake_);
  for (const PlannedRead& read : reads) {
    bytes_total_ += read.end - read.begin;
    ++reads_left_[read.shard];
  }
  // Workers and devices may hold as many chunks as are being read.
  const auto slots = std::min<std::size_t>(reads.size(), 2 * static_cast<std::size_t>(parts.queue_depth));
  for (std::size_t i = 0; i < slots; ++i) {
    slots_.push_back(std::make_unique<Slot>());
    idle_slots_.push_back(slots_.back().get());
  }
}

Pipeline::~Pipeline() {
  MutexLock lock(inbox_->mutex);
  inbox_->queue = nullptr;
}

Status Pipeline::Run(std::span<const Stream> streams, const Progress& progress) {
  Status before = devices_.WaitForStreams(streams);
  if (!before.ok()) return before;
  while (true) {
    FillQueue();
    if (idle()) {
      if (!status_.ok() || next_read_ == reads_.size()) break;
      if (Status status = WaitForChunk(); !status.ok()) Fail(std::move(status));
      continue;
    }
    // Fails only in a forked child, where no restore runs.
    static_cast<void>(queue_->RunOnce(Deadline::Infinite()));
    HandleMessages(progress);
  }
  CAIRN_RETURN_IF_ERROR(status_);
  return devices_.HoldStreams(streams);
}

void Pipeline::FillQueue() {
  while (status_.ok() && next_read_ < reads_.size() && reading_ < parts_.queue_depth && !idle_slots_.empty()) {
    if (opening_ == &files_[reads_[next_read_].shard]) return;
    Slot& slot = *idle_slots_.back();
    if (!slot.chunk) slot.chunk = parts_.pool->TryAcquire(BufferPool::Priority::kRestore);
    if (!slot.chunk) return;
    StartRead(slot);
  }
}

// Called only when nothing is in flight: no slot holds a chunk while it waits for another, so there is no deadlock.
Status Pipeline::WaitForChunk() {
  Result<BufferPool::Chunk> chunk =
      parts_.pool->Acquire(BufferPool::Priority::kRestore, Deadline::In(parts_.memory_timeout));
  if (!chunk.ok()) {
    return Error(chunk.status().code(), "restore: waited {} s for a chunk while saves hold the pool: {}",
                 std::chrono::duration<double>(parts_.memory_timeout).count(), chunk.status().message());
  }
  idle_slots_.back()->chunk = *std::move(chunk);
  return Status::Ok();
}

void Pipeline::StartRead(Slot& slot) {
  idle_slots_.pop_back();
  slot.read = &reads_[next_read_++];
  slot.cached = files_[slot.read->shard].page_cache;
  ReadInto(slot);
}

bool Pipeline::ReadAgain(Slot& slot, const Status& why) {
  if (why.code() != StatusCode::kCorrupt || !slot.cached || !status_.ok()) return false;
  if (!BypassPageCache(files_[slot.read->shard])) return false;
  slot.cached = false;
  if (parts_.on_event) {
    parts_.on_event(
        {.kind = EventKind::kFallBack,
         .severity = Severity::kWarning,
         .status = why,
         .message = fmt::format("restore: found in the page cache, and read again from the disk: {}", why.message()),
         .phase = "restore",
         .path = files_[slot.read->shard].name});
  }
  ReadInto(slot);
  return true;
}

void Pipeline::Release(const Slot& slot) {
  const std::uint32_t shard = slot.read->shard;
  if (--reads_left_[shard] > 0 || files_.size() <= kOpenFiles) return;
  files_[shard].fd.Reset();
  files_[shard].view.reset();
}

void Pipeline::ReadInto(Slot& slot) {
  ++reading_;
  RunTask(*queue_, ReadTask(slot), [this, &slot](Status status) { ReadDone(slot, std::move(status)); });
}

IoTask<Status> Pipeline::ReadTask(const Slot& slot) {
  ShardFile& file = files_[slot.read->shard];
  if (!file.fd.valid()) {
    opening_ = &file;
    Status opened = co_await OpenShardFile(file);
    if (opening_ == &file) opening_ = nullptr;
    CAIRN_CO_RETURN_IF_ERROR(std::move(opened));
  }
  if (file.in_memory && file.view == nullptr) {
    file.view = FileView::Of(file.fd, file.length);
    file.in_memory = file.view != nullptr;
  }
  if (file.view != nullptr) co_return Status::Ok();
  co_return co_await ReadAt(file, slot.chunk.data(), slot.read->file_begin, slot.read->file_bytes);
}

void Pipeline::ReadDone(Slot& slot, Status status) {
  --reading_;
  slot.viewed = files_[slot.read->shard].view != nullptr;
  if (slot.viewed) slot.cached = false;
  if (!slot.cached && !slot.viewed) Release(slot);
  if (!status.ok()) Fail(std::move(status));
  if (!status_.ok()) return Finish(slot);
  ++working_;
  parts_.workers->Post([this, &slot, inbox = inbox_] {
    Status verified = failed_ ? Status::Ok() : VerifyAndCopy(slot);
    inbox->Push({.slot = &slot, .status = std::move(verified)});
  });
}

std::byte* Pipeline::DataOf(const Slot& slot) const {
  const PlannedRead& read = *slot.read;
  return slot.chunk.data() + (files_[read.shard].header.data_begin + read.begin - read.file_begin);
}

// On a worker. Copies each block right after its verification, while it is in the cache.
Status Pipeline::VerifyAndCopy(const Slot& slot) {
  const PlannedRead& read = *slot.read;
  const ShardFile& file = files_[read.shard];
  const std::vector<PlannedCopy>& copies = copies_[read.shard];
  std::byte* const data = DataOf(slot);
  const std::byte* viewed = nullptr;
  if (slot.viewed) {
    const std::uint64_t at = file.header.data_begin;
    CAIRN_ASSIGN_OR_RETURN(viewed, ViewedAt(file, at + read.begin, at + read.end));
  }
  std::size_t first = read.first_copy;
  for (std::uint64_t begin = read.begin; begin < read.end;) {
    const std::uint64_t end = std::min(AlignDown(begin, kChecksumBlock) + kChecksumBlock, read.end);
    // What is summed is what is delivered, whoever writes there meanwhile.
    if (viewed != nullptr)
      std::copy(viewed + (begin - read.begin), viewed + (end - read.begin), data + (begin - read.begin));
    while (first < copies.size() && copies[first].end <= begin) ++first;
    if (!file.header.sums.empty()) {
      const bool wanted = first < copies.size() && copies[first].begin < end;
      CAIRN_RETURN_IF_ERROR(VerifyBlock(file, begin, Bytes(data + (begin - read.begin), end - begin),
                                        wanted ? copies[first].name : std::string_view()));
    }
    for (std::size_t i = first; i < copies.size() && copies[i].begin < end; ++i) {
      const PlannedCopy& copy = copies[i];
      // Already done with an earlier block; `first` cannot pass an unfinished copy before it.
      if (copy.end <= begin || devices_.For(copy.device) != nullptr) continue;
      if (copy.shares_memory) {
        MutexLock lock(shared_memory_);
        CopyToMemory(copy, begin, end, data, read.begin);
      } else {
        CopyToMemory(copy, begin, end, data, read.begin);
      }
    }
    begin = end;
  }
  return Status::Ok();
}

void Pipeline::CopyToDevices(Slot& slot) {
  const PlannedRead& read = *slot.read;
  const std::vector<PlannedCopy>& copies = copies_[read.shard];
  std::map<Device*, std::vector<CopyPiece>> batches;
  const auto plan = [&](Device* device, std::vector<CopyPiece> pieces, bool shares_memory) {
    for (std::vector<CopyPiece>& batch : InBatches(*device, std::move(pieces))) {
      planned_[device].push_back({device, &slot, std::move(batch), shares_memory});
      ++slot.copies;
    }
  };
  std::byte* const data = DataOf(slot);
  for (std::size_t i = read.first_copy; i < copies.size() && copies[i].begin < read.end; ++i) {
    const PlannedCopy& copy = copies[i];
    Device* const device = devices_.For(copy.device);
    if (device == nullptr) continue;
    RowCursor cursor(copy, read.begin, read.end);
    while (const auto rows = cursor.Next()) {
      const CopyPiece piece{.tensor = copy.target,
                            .begin = rows->to,
                            .end = rows->to + rows->bytes,
                            .memory = data + (rows->from - read.begin),
                            .rows = rows->rows,
                            .tensor_pitch = rows->to_pitch,
                            .memory_pitch = rows->from_pitch};
      // Within a batch no order is guaranteed.
      copy.shares_memory ? plan(device, {piece}, true) : batches[device].push_back(piece);
    }
  }
  for (auto& [device, pieces] : batches) plan(device, std::move(pieces), false);
  if (slot.copies == 0) return Finish(slot);
  ++copying_;
}

void Pipeline::LaunchPlanned() {
  for (auto& [device, planned] : planned_) {
    while (status_.ok() && !planned.empty() && devices_.HasRoom(*device, planned.front().shares_memory)) {
      Planned next = std::move(planned.front());
      planned.pop_front();
      Launch(std::move(next));
    }
  }
  if (status_.ok()) return;
  for (auto& [device, planned] : planned_) {
    for (const Planned& dropped : std::exchange(planned, {})) EndCopy(*dropped.slot);
  }
}

void Pipeline::Launch(Planned planned) {
  const auto done = [inbox = inbox_, slot = planned.slot](Status outcome) {
    inbox->Push({.slot = slot, .copied = true, .status = std::move(outcome)});
  };
  Status status = devices_.Copy(*planned.device, std::move(planned.pieces), planned.shares_memory, done);
  if (status.ok()) return;
  Fail(std::move(status));
  EndCopy(*planned.slot);
}

void Pipeline::EndCopy(Slot& slot) {
  if (--slot.copies > 0) return;
  --copying_;
  Finish(slot);
}

void Pipeline::Handle(const Message& message, const Progress& progress) {
  Slot& slot = *message.slot;
  if (message.copied) {
    if (!message.status.ok()) Fail(message.status);
    return EndCopy(slot);
  }
  --working_;
  if (ReadAgain(slot, message.status)) return;
  if (slot.cached || slot.viewed) Release(slot);
  if (!message.status.ok()) Fail(message.status);
  if (!status_.ok()) return Finish(slot);
  bytes_done_ += slot.read->end - slot.read->begin;
  if (progress && !progress(bytes_done_, bytes_total_)) {
    Fail(Error(StatusCode::kCancelled, "cancelled after {} of {} bytes", bytes_done_, bytes_total_));
    return Finish(slot);
  }
  CopyToDevices(slot);
}

void Pipeline::HandleMessages(const Progress& progress) {
  std::vector<Message> messages;
  {
    MutexLock lock(inbox_->mutex);
    messages.swap(inbox_->messages);
  }
  for (const Message& message : messages) Handle(message, progress);
  LaunchPlanned();
}

void Pipeline::Fail(Status status) {
  failed_ = true;
  if (status_.ok()) status_ = std::move(status);
}

void Pipeline::Finish(Slot& slot) {
  slot.read = nullptr;
  idle_slots_.push_back(&slot);
}

}  // namespace cairn
