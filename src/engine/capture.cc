#include "engine/capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"

namespace cairn {

Capture::Capture(EngineContext& context, SaveTask& task, Callbacks callbacks)
    : context_(context), task_(task), callbacks_(std::move(callbacks)) {
  if (context_.parts.options.checksums) sums_.resize(DivideUp(task_.snapshot().bytes(), kChecksumBlock));
}

void Capture::Advance(bool chunks) {
  if (stopped()) return;
  if (stage_ == CaptureStage::kWaiting) {
    stage_.MoveTo(CaptureStage::kCopying);
    task_.MarkCapturing();
    if (const Status status = WaitForCallersStreams(); !status.ok()) return Fail(status);
    if (const Status status = Stage(); !status.ok()) return Fail(status);
  }
  while (chunks && !all_buffered()) {
    BufferPool::Chunk buffer = context_.parts.pool->TryAcquire(BufferPool::Priority::kSave);
    if (!buffer) break;
    if (const Status status = FillChunk(std::move(buffer)); !status.ok()) return Fail(status);
  }
  if (stage_ == CaptureStage::kCopying && (all_buffered() || all_staged_)) {
    if (const Status status = MarkEnqueued(); !status.ok()) return Fail(status);
  }
}

Status Capture::WaitForCallersStreams() {
  for (const DeviceEvents& one : task_.events()) {
    for (int lane = 0; lane < one.device->lanes(); ++lane) {
      for (const EventId event : one.streams) CAIRN_RETURN_IF_ERROR(one.device->LaneWait(lane, event));
    }
  }
  return Status::Ok();
}

Status Capture::Stage() {
  std::size_t on_devices = 0;
  for (DeviceEvents& one : task_.events()) {
    StagingArea* area = context_.FindStaging(one.device->id());
    if (area == nullptr) continue;
    const std::size_t before = staged_.size();
    CAIRN_RETURN_IF_ERROR(StageOn(one, *area));
    on_devices += staged_.size() - before;
  }
  all_staged_ = on_devices != 0 && on_devices == task_.events().size() && !task_.snapshot().reads_cpu();
  return Status::Ok();
}

Status Capture::StageOn(DeviceEvents& events, StagingArea& area) {
  Device& device = *events.device;
  const std::uint64_t bytes = task_.snapshot().StagingBytes(device.id());
  std::byte* const memory = area.Acquire(bytes);
  if (memory == nullptr) return Status::Ok();  // No room now: this save goes directly through the pool.
  staged_.emplace_back(&area, memory);

  const std::vector<CopyPiece> pieces = task_.snapshot().StageAt(device.id(), memory);
  const std::uint64_t id = next_batch_++;
  Batch& batch = batches_[id];
  batch.begun = SaveTask::Clock::now();
  const std::uint64_t share = DivideUp(bytes, static_cast<std::uint64_t>(device.lanes()));
  auto piece = pieces.begin();
  for (int lane = 0; lane < device.lanes() && piece != pieces.end(); ++lane) {
    CopyBatch copies{.direction = CopyDirection::kToStaging, .lane = lane, .pieces = {}};
    for (std::uint64_t taken = 0; piece != pieces.end() && taken < share; ++piece) {
      taken += piece->end - piece->begin;
      copies.pieces.push_back(*piece);
    }
    ++staging_copies_;
    CAIRN_RETURN_IF_ERROR(Launch(id, batch, device, std::move(copies)));
  }
  // Record the lanes' events after the staging copies: fences wait for them, and so does every lane before it drains.
  CAIRN_RETURN_IF_ERROR(RecordLanes(events));
  for (int lane = 0; lane < device.lanes(); ++lane) {
    for (const EventId event : events.lanes) CAIRN_RETURN_IF_ERROR(device.LaneWait(lane, event));
  }
  return Status::Ok();
}

Status Capture::FillChunk(BufferPool::Chunk buffer) {
  const std::uint64_t id = next_batch_++;
  Batch& batch = batches_[id];
  batch.begun = SaveTask::Clock::now();
  const std::uint64_t begin = next_;
  const std::uint64_t end = std::min(begin + context_.parts.pool->chunk_bytes(), task_.snapshot().bytes());
  std::byte* const memory = buffer.data();
  batch.chunk = {.buffer = std::move(buffer), .begin = begin, .end = end};
  next_ = end;

  std::map<DeviceId, CopyBatch> by_device;
  for (const Snapshot::Piece& piece : task_.snapshot().Pieces(begin, end, memory)) {
    by_device[piece.device].pieces.push_back(piece.copy);
  }
  for (auto& [id_of_device, copies] : by_device) {
    Device& device = *context_.FindDevice(id_of_device);
    copies.lane = static_cast<int>(id % static_cast<std::uint64_t>(device.lanes()));
    if (by_device.size() == 1 && device.sums_while_copying() && !sums_.empty()) {
      copies.sums = &sums_[begin / kChecksumBlock];
      batch.chunk.summed = true;
    }
    CAIRN_RETURN_IF_ERROR(Launch(id, batch, device, std::move(copies)));
  }
  return Status::Ok();
}

Status Capture::Launch(std::uint64_t id, Batch& batch, Device& device, CopyBatch copies) {
  const std::size_t copy = batch.copies.size();
  batch.copies.push_back({&device, false});
  ++copies_in_flight_;
  // The closure holds no reference that keeps the capture alive, and after the engine's end the inbox drops it.
  Status status =
      device.Copy(std::move(copies), [inbox = context_.inbox, self = weak_from_this(), id, copy](Status done) {
        inbox->Post([self, id, copy, done = std::move(done)] {
          if (const auto capture = self.lock()) capture->OnCopied(id, copy, done);
        });
      });
  if (!status.ok()) {
    batch.copies.back().done = true;
    --copies_in_flight_;
    batch.status = status;
  }
  return status;
}

Status Capture::RecordLanes(DeviceEvents& events) const {
  for (int lane = 0; lane < events.device->lanes(); ++lane) {
    CAIRN_RETURN_IF_ERROR(events.device->RecordOnLane(lane, events.lanes[static_cast<std::size_t>(lane)]));
  }
  return Status::Ok();
}

Status Capture::MarkEnqueued() {
  if (!all_staged_) {
    for (DeviceEvents& one : task_.events()) CAIRN_RETURN_IF_ERROR(RecordLanes(one));
  }
  stage_.MoveTo(CaptureStage::kEnqueued);
  task_.MarkEnqueued(all_staged_);
  UpdateCaptured();
  return Status::Ok();
}

void Capture::OnCopied(std::uint64_t id, std::size_t copy, Status status) {
  const auto found = batches_.find(id);
  if (found == batches_.end() || found->second.copies[copy].done) return;  // Given up with a lost device.
  Batch& batch = found->second;
  batch.copies[copy].done = true;
  --copies_in_flight_;
  if (!status.ok() && batch.status.ok()) batch.status = std::move(status);
  const bool whole = std::all_of(batch.copies.begin(), batch.copies.end(), [](const Copy& one) { return one.done; });
  if (whole) OnBatchCopied(id);
}

void Capture::OnBatchCopied(std::uint64_t id) {
  auto node = batches_.extract(id);
  Batch& batch = node.mapped();
  const bool staging = !batch.chunk.buffer;
  context_.parts.trace->Span("copy", staging ? "stage" : "chunk", batch.begun, SaveTask::Clock::now(),
                             task_.plan().step, batch.chunk.end - batch.chunk.begin);
  if (staging) staging_copies_ -= batch.copies.size();
  if (stopped()) return callbacks_.quiet();
  if (!batch.status.ok()) return Fail(std::move(batch.status));
  if (staging) return UpdateCaptured();

  const std::uint64_t bytes = batch.chunk.end - batch.chunk.begin;
  std::memset(batch.chunk.buffer.data() + bytes, 0, AlignUp(bytes, kBlock) - bytes);
  UpdateCaptured();
  if (all_buffered() && batches_.empty()) ReleaseStaging();
  callbacks_.filled(std::make_shared<FilledChunk>(std::move(batch.chunk)));
}

void Capture::Sum(std::shared_ptr<FilledChunk> chunk) {
  if (chunk->summed || sums_.empty()) return;
  ++sums_in_flight_;
  context_.parts.workers->Post(
      [this, self = shared_from_this(), chunk = std::move(chunk), inbox = context_.inbox]() mutable {
        const std::uint64_t size = chunk->end - chunk->begin;
        for (std::uint64_t at = 0; at < size; at += kChecksumBlock) {
          const Bytes block(chunk->buffer.data() + at, std::min(kChecksumBlock, size - at));
          sums_[(chunk->begin + at) / kChecksumBlock] = Crc32c(block);
        }
        inbox->Post([self, chunk = std::move(chunk)] {
          if (--self->sums_in_flight_ != 0) return;
          self->stopped() ? self->callbacks_.quiet() : self->callbacks_.summed();
        });
      });
}

void Capture::UpdateCaptured() {
  if (stage_ != CaptureStage::kEnqueued) return;
  if (all_staged_ ? staging_copies_ != 0 : copies_in_flight_ != 0) return;
  stage_.MoveTo(CaptureStage::kCaptured);
  callbacks_.captured();
}

bool Capture::waits_for_device() const {
  return std::any_of(batches_.begin(), batches_.end(), [](const auto& entry) {
    return std::any_of(entry.second.copies.begin(), entry.second.copies.end(),
                       [](const Copy& copy) { return !copy.done && copy.device->has_streams(); });
  });
}

void Capture::OnDeviceLost(const Device& device, const Status& status) {
  std::vector<std::pair<std::uint64_t, std::size_t>> lost;
  for (const auto& [id, batch] : batches_) {
    for (std::size_t copy = 0; copy < batch.copies.size(); ++copy) {
      if (batch.copies[copy].device == &device && !batch.copies[copy].done) lost.emplace_back(id, copy);
    }
  }
  for (const auto& [id, copy] : lost) OnCopied(id, copy, status);
}

void Capture::Fail(Status status) {
  Stop();
  callbacks_.failed(std::move(status));
}

void Capture::Stop() {
  stage_.MoveTo(CaptureStage::kStopped);
  // No callback will come for a batch without copies in flight, such as a failed launch.
  std::erase_if(batches_, [](const auto& entry) {
    return std::all_of(entry.second.copies.begin(), entry.second.copies.end(),
                       [](const Copy& one) { return one.done; });
  });
}

void Capture::ReleaseStaging() {
  for (const auto& [area, memory] : staged_) area->Release(memory);
  staged_.clear();
}

}  // namespace cairn
