#include "engine/capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"

namespace cairn {

Capture::Capture(EngineContext& context, SaveTask& task, Callbacks callbacks)
    : context_(context),
      task_(task),
      callbacks_(std::move(callbacks)),
      staged_(context.parts.staging, task.snapshot(), context.parts.pool->chunk_bytes()) {
  if (context_.parts.options.checksums) sums_.resize(DivideUp(task_.snapshot().bytes(), kChecksumBlock));
}

void Capture::Advance(bool chunks) {
  if (stopped()) return;
  if (stage_ == CaptureStage::kWaiting) {
    if (!stage_.MoveTo(CaptureStage::kCopying)) return;
    task_.MarkCapturing();
  }
  if (const Status status = Enqueue(chunks); !status.ok()) return Fail(status);
  MarkEnqueuedIfRead();
}

Status Capture::Enqueue(bool chunks) {
  if (chunks) AskForArrival();
  CAIRN_RETURN_IF_ERROR(LaunchPlanned());
  while (planned_.empty() && PlanStaging()) CAIRN_RETURN_IF_ERROR(LaunchPlanned());
  while (planned_.empty() && chunks && arrival_ != Arrival::kAwaited && !all_buffered() && !staged_.Arriving(next_) &&
         !KeepsBack()) {
    if (context_.parts.in_memory) {
      if (stream_ == nullptr) break;
      PlanChunk({}, stream_ + next_);
      CAIRN_RETURN_IF_ERROR(LaunchPlanned());
      continue;
    }
    BufferPool::Chunk buffer = context_.parts.pool->TryAcquire(BufferPool::Priority::kSave);
    if (std::exchange(short_of_buffers_, !buffer) != short_of_buffers_) task_.MarkShortOfBuffers(short_of_buffers_);
    if (!buffer) break;
    std::byte* const memory = buffer.data();
    PlanChunk(std::move(buffer), memory);
    CAIRN_RETURN_IF_ERROR(LaunchPlanned());
  }
  return Status::Ok();
}

// Older saves have launched every copy that they have for this lane, so none of them waits behind it.
void Capture::AskForArrival() {
  const Snapshot& snapshot = task_.snapshot();
  if (arrival_ != Arrival::kUnasked || !snapshot.table().waits_for_streams() || snapshot.copy() != nullptr) return;
  arrival_ = Arrival::kAwaited;
  const std::uint64_t id = next_batch_++;
  Batch& batch = batches_[id];
  batch.arrival = true;
  for (const DeviceEvents& one : task_.events()) {
    planned_.push_back({.batch = id, .copy = batch.copies.size(), .copies = {.lane = one.device->lanes() - 1}});
    batch.copies.push_back({.device = one.device, .reads = true});
    ++reads_planned_;
    ++reads_left_;
  }
}

bool Capture::KeepsBack() const {
  if (!context_.pauses->used() || task_.fence_waits()) return false;
  return std::ranges::any_of(batches_, [](const auto& entry) { return entry.second.chunk.memory != nullptr; });
}

bool Capture::PlanStaging() {
  StagedChunks::Run run = staged_.StageNext(next_);
  if (run.pieces.empty()) return false;
  read_by_staging_ = true;
  const std::uint64_t id = next_batch_++;
  Batch& batch = batches_[id];
  batch.begun = SaveTask::Clock::now();
  Device& device = *run.device;
  CopyBatch copies{
      .direction = CopyDirection::kToStaging, .lane = device.lanes() - 1, .pieces = std::exchange(run.pieces, {})};
  batch.staged = std::move(run);
  Plan(id, device, true, std::move(copies));
  return true;
}

void Capture::PlanChunk(BufferPool::Chunk buffer, std::byte* memory) {
  const std::uint64_t id = next_batch_++;
  Batch& batch = batches_[id];
  batch.begun = SaveTask::Clock::now();
  const std::uint64_t begin = next_;
  const std::uint64_t end = task_.snapshot().ChunkEnd(begin);
  batch.chunk = {.buffer = std::move(buffer), .memory = memory, .begin = begin, .end = end};
  next_ = task_.snapshot().NextChunk(begin);

  std::vector<Snapshot::Piece> pieces = task_.snapshot().Pieces(begin, end, memory);
  const std::vector<DeviceId> staged = staged_.Redirect(begin, pieces);
  std::map<DeviceId, CopyBatch> by_device;
  for (const Snapshot::Piece& piece : pieces) by_device[piece.device].pieces.push_back(piece.copy);
  for (auto& [id_of_device, copies] : by_device) {
    Device& device = *context_.FindDevice(id_of_device);
    copies.lane = NextLane(device);
    if (by_device.size() == 1 && !sums_.empty() && device.CheckSums(copies.pieces).ok()) {
      copies.sums = &sums_[begin / kChecksumBlock];
      if (looks()) copies.worst = &Worst(begin);
    }
    const bool reads = id_of_device.kind == DeviceKind::kCpu ? task_.snapshot().reads_cpu()
                                                             : std::ranges::find(staged, id_of_device) == staged.end();
    read_by_host_ = read_by_host_ || reads;
    Plan(id, device, reads, std::move(copies));
  }
}

int Capture::NextLane(const Device& device) {
  // The last lane is for staging, so that a fence never waits for copies out of staging memory.
  const bool stages = device.lanes() > 1 && context_.FindStaging(device.id()) != nullptr;
  return static_cast<int>(chunks_of_[&device]++ % static_cast<std::uint64_t>(device.lanes() - (stages ? 1 : 0)));
}

void Capture::Plan(std::uint64_t batch, Device& device, bool reads, CopyBatch copies) {
  std::vector<Copy>& of_batch = batches_.at(batch).copies;
  std::vector<std::vector<CopyPiece>> parts = InBatches(device, std::move(copies.pieces));
  // A part's sums would be of other blocks than the chunk's.
  if (parts.size() > 1) copies.sums = nullptr;
  batches_.at(batch).chunk.summed = copies.sums != nullptr;
  for (std::vector<CopyPiece>& pieces : parts) {
    planned_.push_back({.batch = batch,
                        .copy = of_batch.size(),
                        .copies = {.direction = copies.direction,
                                   .lane = copies.lane,
                                   .pieces = std::move(pieces),
                                   .sums = copies.sums,
                                   .worst = copies.worst}});
    of_batch.push_back({.device = &device, .reads = reads});
    reads_planned_ += reads ? 1 : 0;
    reads_left_ += reads ? 1 : 0;
  }
}

Status Capture::LaunchPlanned() {
  while (!planned_.empty()) {
    Planned& next = planned_.front();
    const Device& device = *batches_.at(next.batch).copies[next.copy].device;
    if (!device.HasRoom(next.copies.lane)) break;  // Room wakes the engine.
    Planned launched = std::move(next);
    planned_.pop_front();
    CAIRN_RETURN_IF_ERROR(Launch(std::move(launched)));
  }
  return Status::Ok();
}

Status Capture::Launch(Planned planned) {
  Batch& batch = batches_.at(planned.batch);
  Copy& copy = batch.copies[planned.copy];
  Device& device = *copy.device;
  const int lane = planned.copies.lane;
  copy.state = CopyState::kInFlight;
  ++copies_in_flight_;
  reads_planned_ -= copy.reads ? 1 : 0;
  Status status = copy.reads ? WaitForCallersStreams(device, lane) : Status::Ok();
  if (status.ok()) {
    // The closure holds no reference that keeps the capture alive, and after the engine's end the inbox drops it.
    status = device.Copy(std::move(planned.copies), [inbox = context_.inbox, self = weak_from_this(),
                                                     id = planned.batch, at = planned.copy](Status done) {
      inbox->Post([self, id, at, done = std::move(done)] {
        if (const auto capture = self.lock()) capture->OnCopied(id, at, done);
      });
    });
  }
  if (!status.ok()) {
    copy.state = CopyState::kDone;
    --copies_in_flight_;
    batch.status = status;
    return status;
  }
  return copy.reads ? RecordRead(device, lane) : Status::Ok();
}

// Before the lane's first such copy and no earlier: behind the wait, the copies of an older save out of staging memory
// would wait for streams that have nothing to do with them.
Status Capture::WaitForCallersStreams(const Device& device, int lane) {
  for (const DeviceEvents& one : task_.events()) {
    if (one.device != &device || one.recorded[static_cast<std::size_t>(lane)]) continue;
    for (const EventId event : one.streams) CAIRN_RETURN_IF_ERROR(one.device->LaneWait(lane, event));
  }
  return Status::Ok();
}

// Recorded after each copy, because later ones in the lane may be of other saves, or out of staging memory.
Status Capture::RecordRead(const Device& device, int lane) {
  const auto at = static_cast<std::size_t>(lane);
  for (DeviceEvents& one : task_.events()) {
    if (one.device != &device) continue;
    CAIRN_RETURN_IF_ERROR(one.device->RecordOnLane(lane, one.lanes[at]));
    one.recorded[at] = true;
  }
  return Status::Ok();
}

void Capture::MarkEnqueuedIfRead() {
  if (stage_ != CaptureStage::kCopying || reads_planned_ != 0 || !staged_.StagedFrom(next_)) return;
  if (!stage_.MoveTo(CaptureStage::kEnqueued)) return;
  task_.MarkEnqueued(read_by_staging_ && !read_by_host_);
  UpdateCaptured();
}

void Capture::OnCopied(std::uint64_t id, std::size_t copy, Status status) {
  Batch& batch = batches_.at(id);
  batch.copies[copy].state = CopyState::kDone;
  --copies_in_flight_;
  reads_left_ -= batch.copies[copy].reads ? 1 : 0;
  if (!status.ok() && batch.status.ok()) batch.status = std::move(status);
  const bool whole = std::ranges::all_of(batch.copies, [](const Copy& one) { return one.state == CopyState::kDone; });
  if (whole) OnBatchCopied(id);
}

void Capture::OnBatchCopied(std::uint64_t id) {
  auto node = batches_.extract(id);
  Batch& batch = node.mapped();
  if (batch.arrival) {
    if (stopped()) return callbacks_.quiet();
    if (!batch.status.ok()) return Fail(std::move(batch.status));
    arrival_ = Arrival::kArrived;
    return;
  }
  const bool staging = batch.chunk.memory == nullptr;
  context_.parts.trace->Span("copy", staging ? "stage" : "chunk", batch.begun, SaveTask::Clock::now(),
                             task_.plan().step, staging ? batch.staged.bytes : batch.chunk.end - batch.chunk.begin);
  if (stopped()) return callbacks_.quiet();
  if (!batch.status.ok()) return Fail(std::move(batch.status));
  if (staging) {
    staged_.Arrived(batch.staged);
    return UpdateCaptured();
  }

  task_.Reach(SavePoint::kFirstCopied);
  const std::uint64_t bytes = batch.chunk.end - batch.chunk.begin;
  batch.chunk.summed_by_gpu = batch.chunk.summed && batch.copies.front().device->has_streams();
  if (batch.chunk.summed_by_gpu) task_.AddGpuChecksums(bytes);
  std::memset(batch.chunk.memory + bytes, 0, AlignUp(bytes, kBlock) - bytes);
  UpdateCaptured();
  staged_.Release(batch.chunk.begin);
  callbacks_.filled(std::make_shared<FilledChunk>(std::move(batch.chunk)));
}

void Capture::Sum(std::shared_ptr<FilledChunk> chunk, OnSummed then) {
  if (sums_.empty() || (chunk->summed && !chunk->summed_by_gpu)) {
    if (then) then(chunk, SumsOf(*chunk));
    return;
  }
  ++sums_in_flight_;
  context_.parts.workers->Post([this, self = shared_from_this(), chunk = std::move(chunk), then = std::move(then),
                                inbox = context_.inbox]() mutable {
    const std::uint64_t size = chunk->end - chunk->begin;
    Status status;
    for (std::uint64_t at = 0; at < size; at += kChecksumBlock) {
      const std::uint64_t block = (chunk->begin + at) / kChecksumBlock;
      if (chunk->summed && !Compares(block)) continue;
      const std::uint32_t sum = SumBlock(chunk->begin + at, {chunk->memory + at, std::min(kChecksumBlock, size - at)});
      if (chunk->summed && sum != sums_[block]) status = Differs(block, sum);
      sums_[block] = sum;
    }
    inbox->Post([self, chunk = std::move(chunk), then = std::move(then), status = std::move(status)]() mutable {
      --self->sums_in_flight_;
      if (!status.ok() && !self->stopped()) return self->Fail(std::move(status));
      chunk->summed = true;
      chunk->summed_by_gpu = false;
      if (then && !self->stopped()) then(chunk, self->SumsOf(*chunk));
      if (self->sums_in_flight_ != 0) return;
      self->stopped() ? self->callbacks_.quiet() : self->callbacks_.summed();
    });
  });
}

std::span<const std::uint32_t> Capture::SumsOf(const FilledChunk& chunk) const {
  if (sums_.empty()) return {};
  return std::span(sums_).subspan(chunk.begin / kChecksumBlock, DivideUp(chunk.end - chunk.begin, kChecksumBlock));
}

std::optional<StreamSums> Capture::sums() const {
  if (stage_ != CaptureStage::kCaptured || sums_in_flight_ != 0) return std::nullopt;
  return StreamSums{.checksums = sums_, .nonfinite = worst_, .kept_nonfinite = worst_kept_};
}

std::uint32_t Capture::SumBlock(std::uint64_t begin, Bytes bytes) {
  if (!looks()) return Crc32c(bytes);
  std::uint32_t crc = 0;
  NonFinite worst = NonFinite::kNone;
  for (const Snapshot::Run& run : task_.snapshot().Runs(begin, begin + bytes.size())) {
    crc = Crc32c(bytes.first(run.bytes), crc, {.dtype = run.dtype, .worst = &worst});
    bytes = bytes.subspan(run.bytes);
  }
  Raise(Worst(begin), worst);
  return crc;
}

bool Capture::Compares(std::uint64_t block) const {
  const std::uint64_t every = std::min<std::uint64_t>(kComparedBlocks, sums_.size());
  return (block + task_.plan().sequence) % every == 0;
}

Status Capture::Differs(std::uint64_t block, std::uint32_t sum) const {
  return Error(StatusCode::kCorrupt,
               "step {}: not committed: the GPU's checksum of bytes {} to {} is {:#010x}, that of their copy in the "
               "host's memory {:#010x}. Either a tensor was overwritten before a fence had waited for the save, or its "
               "bytes have changed on their way",
               task_.plan().step, block * kChecksumBlock,
               std::min((block + 1) * kChecksumBlock, task_.snapshot().bytes()), sums_[block], sum);
}

void Capture::UpdateCaptured() {
  if (stage_ != CaptureStage::kEnqueued || reads_left_ != 0) return;
  if (!stage_.MoveTo(CaptureStage::kCaptured)) return;
  callbacks_.captured();
}

void Capture::Fail(Status status) {
  Stop();
  callbacks_.failed(std::move(status));
}

void Capture::Stop() {
  if (!stage_.MoveTo(CaptureStage::kStopped)) return;
  for (const Planned& planned : planned_) batches_.at(planned.batch).copies[planned.copy].state = CopyState::kDone;
  planned_.clear();
  // No callback will come for a batch without copies in flight, such as a failed launch.
  std::erase_if(batches_, [](const auto& entry) {
    return std::ranges::all_of(entry.second.copies, [](const Copy& one) { return one.state == CopyState::kDone; });
  });
}

void Capture::ReleaseStaging() { staged_.ReleaseAll(); }

}  // namespace cairn
