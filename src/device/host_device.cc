#include "device/host_device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "device/host_copy.h"
#include "device/stream_point.h"

namespace cairn {

void HostDevice::FreeMemory::operator()(std::byte* memory) const {
  std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc)
}

struct HostDevice::Job {
  CopyBatch batch;
  CopyDone done;
  std::uint64_t bytes = 0;
  std::atomic<int> parts_left{1};
};

HostDevice::HostDevice(const HostDeviceOptions& options, WorkerPool& workers)
    : options_(options), workers_(workers), jobs_(static_cast<std::size_t>(options.lanes)), records_(kEvents + 1) {
  if (options.bytes_per_second > 0) link_.emplace(options.bytes_per_second, options.time);
  for (EventId event = kEvents; event >= 1; --event) free_events_.push_back(event);
  if (options.streams) {
    for (int lane = 0; lane < options.lanes; ++lane) lanes_.push_back(std::make_unique<Queue>("cairn-lane", 1));
  }
  streams_.emplace_back();
}

HostDevice::~HostDevice() {
  MutexLock lock(mutex_);
  while (unfinished_ > 0) idle_.Wait(mutex_);
}

Status HostDevice::CheckLayout(const StridedLayout& layout) const {
  if (layout.bytes > 0 && layout.base == nullptr) {
    return Error(StatusCode::kInvalidArgument, "expected memory of {} bytes on {}, found a null address", layout.bytes,
                 ToString(options_.id));
  }
  return Status::Ok();
}

Status HostDevice::CheckSums(std::span<const CopyPiece> /*pieces*/) const {
  if (!options_.streams) return Status::Ok();
  return Error(StatusCode::kUnsupported, "{}: a model of a GPU does not sum up", ToString(options_.id));
}

Result<std::byte*> HostDevice::AllocateStaging(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  if (staging_ != nullptr) {
    return Error(StatusCode::kFailedPrecondition, "{}: staging memory is already allocated", ToString(options_.id));
  }
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc): aligned, and null instead of an exception.
  staging_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, AlignUp(std::max(bytes, kBlock), kBlock))));
  if (staging_ == nullptr) {
    return Error(StatusCode::kResourceExhausted, "{}: no memory for {} bytes of staging", ToString(options_.id), bytes);
  }
  return staging_.get();
}

Result<EventId> HostDevice::AcquireEvent() {
  MutexLock lock(mutex_);
  if (free_events_.empty()) {
    return Error(StatusCode::kResourceExhausted, "{}: all {} events are in use", ToString(options_.id), kEvents);
  }
  const EventId event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void HostDevice::ReleaseEvent(EventId event) {
  MutexLock lock(mutex_);
  if (event == 0) return;
  records_[event].reset();
  free_events_.push_back(event);
}

Status HostDevice::RecordOnStream(Stream stream, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindStream(stream));
  return Record(*queue, event);
}

Status HostDevice::StreamWait(Stream stream, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindStream(stream));
  return Wait(*queue, event);
}

Status HostDevice::RecordOnLane(int lane, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindLane(lane));
  return Record(*queue, event);
}

Status HostDevice::LaneWait(int lane, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindLane(lane));
  return Wait(*queue, event);
}

Status HostDevice::Copy(CopyBatch batch, CopyDone done) {
  CAIRN_RETURN_IF_ERROR(CheckBatch(batch, options_.lanes));
  const auto lane = static_cast<std::size_t>(batch.lane);
  auto job = std::make_shared<Job>();
  job->bytes = BatchBytes(batch);
  job->batch = std::move(batch);
  job->done = std::move(done);
  if (options_.streams) {
    CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindLane(job->batch.lane));
    queue->Post([this, job] {
      CopyOnHost(job->batch, 0, job->bytes, LinkFor(job->batch.direction));
      job->done(Status::Ok());
    });
    return Status::Ok();
  }
  {
    MutexLock lock(mutex_);
    ++unfinished_;
    jobs_[lane].push_back(job);
    if (jobs_[lane].size() > 1) return Status::Ok();
  }
  PostParts(job);
  return Status::Ok();
}

void HostDevice::PostParts(const std::shared_ptr<Job>& job) {
  const auto workers = static_cast<std::uint64_t>(workers_.threads());
  const std::uint64_t blocks = std::max<std::uint64_t>(1, DivideUp(job->bytes, kChecksumBlock));
  const std::uint64_t blocks_each = DivideUp(blocks, DivideUp(workers, static_cast<std::uint64_t>(options_.lanes)));
  const std::uint64_t parts = DivideUp(blocks, blocks_each);
  job->parts_left = static_cast<int>(parts);
  for (std::uint64_t part = 0; part < parts; ++part) {
    const std::uint64_t begin = part * blocks_each * kChecksumBlock;
    const std::uint64_t end = std::min(job->bytes, begin + blocks_each * kChecksumBlock);
    workers_.Post([this, job, begin, end] {
      CopyOnHost(job->batch, begin, end, LinkFor(job->batch.direction));
      FinishPart(*job);
    });
  }
}

void HostDevice::FinishPart(Job& job) {
  if (--job.parts_left > 0) return;
  job.done(Status::Ok());
  std::shared_ptr<Job> next;
  {
    MutexLock lock(mutex_);
    Lane& lane = jobs_[static_cast<std::size_t>(job.batch.lane)];
    lane.pop_front();
    if (!lane.empty()) next = lane.front();
    // Notify under the lock: once it is released, the destructor may finish.
    if (--unfinished_ == 0) idle_.NotifyAll();
  }
  if (next != nullptr) PostParts(next);
}

HostDevice::Queue& HostDevice::StreamAt(std::uintptr_t handle) {
  std::unique_ptr<Queue>& queue = streams_.at(handle);
  if (queue == nullptr) queue = std::make_unique<Queue>("cairn-stream", 1);
  return *queue;
}

Result<HostDevice::Queue*> HostDevice::FindStream(Stream stream) {
  if (stream.device != options_.id || stream.handle >= streams_.size()) {
    return Error(StatusCode::kInvalidArgument, "{}: no stream {} of {}", ToString(options_.id), stream.handle,
                 ToString(stream.device));
  }
  return CheckStarted(StreamAt(stream.handle));
}

Result<HostDevice::Queue*> HostDevice::FindLane(int lane) {
  if (lane < 0 || lane >= options_.lanes) {
    return Error(StatusCode::kInvalidArgument, "{}: lane: expected 0 to {}, found {}", ToString(options_.id),
                 options_.lanes - 1, lane);
  }
  return CheckStarted(*lanes_[static_cast<std::size_t>(lane)]);
}

Status HostDevice::CheckEvent(EventId event) const {
  if (event >= 1 && event <= kEvents) return Status::Ok();
  return Error(StatusCode::kInvalidArgument, "{}: event: expected 1 to {}, found {}", ToString(options_.id), kEvents,
               event);
}

Status HostDevice::Record(Queue& queue, EventId event) {
  CAIRN_RETURN_IF_ERROR(CheckEvent(event));
  auto point = std::make_shared<StreamPoint>();
  records_[event] = point;
  queue.Post([point = std::move(point)] { point->Reach(); });
  return Status::Ok();
}

Status HostDevice::Wait(Queue& queue, EventId event) {
  CAIRN_RETURN_IF_ERROR(CheckEvent(event));
  if (records_[event] == nullptr) {
    return Error(StatusCode::kFailedPrecondition, "{}: wait for event {}, which was not recorded",
                 ToString(options_.id), event);
  }
  queue.Post([point = records_[event]] { point->Await(); });
  return Status::Ok();
}

Stream HostDevice::MakeStream() {
  MutexLock lock(mutex_);
  streams_.push_back(std::make_unique<Queue>("cairn-stream", 1));
  return {options_.id, streams_.size() - 1};
}

void HostDevice::Launch(Stream stream, std::function<void()> work) {
  MutexLock lock(mutex_);
  StreamAt(stream.handle).Post(std::move(work));
}

void HostDevice::Synchronize(Stream stream) {
  auto point = std::make_shared<StreamPoint>();
  Launch(stream, [point] { point->Reach(); });
  point->Await();
}

RateLimit* HostDevice::LinkFor(CopyDirection direction) {
  return link_.has_value() && direction != CopyDirection::kToStaging ? &*link_ : nullptr;
}

}  // namespace cairn
