#include "device/host_device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "device/host_copy.h"
#include "device/rate_limit.h"
#include "device/stream_point.h"

namespace cairn {
namespace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }  // NOLINT(cppcoreguidelines-no-malloc)
};

class HostDeviceImpl final : public HostDevice {
 public:
  HostDeviceImpl(const HostDeviceOptions& options, WorkerPool& workers);
  ~HostDeviceImpl() override;

  [[nodiscard]] DeviceId id() const override { return options_.id; }
  [[nodiscard]] int lanes() const override { return options_.lanes; }
  [[nodiscard]] bool has_streams() const override { return options_.streams; }
  [[nodiscard]] bool sums_while_copying() const override { return !options_.streams; }
  [[nodiscard]] Status CheckLayout(const StridedLayout& layout) const override;

  Status PinMemory(MutableBytes) override { return Status::Ok(); }
  void UnpinMemory(MutableBytes) override {}
  Result<std::byte*> AllocateStaging(std::uint64_t bytes) override CAIRN_EXCLUDES(mutex_);

  Result<EventId> AcquireEvent() override CAIRN_EXCLUDES(mutex_);
  void ReleaseEvent(EventId event) override CAIRN_EXCLUDES(mutex_);
  Status RecordOnStream(Stream stream, EventId event) override CAIRN_EXCLUDES(mutex_);
  Status StreamWait(Stream stream, EventId event) override CAIRN_EXCLUDES(mutex_);
  Status RecordOnLane(int lane, EventId event) override CAIRN_EXCLUDES(mutex_);
  Status LaneWait(int lane, EventId event) override CAIRN_EXCLUDES(mutex_);

  Status Copy(CopyBatch batch, CopyDone done) override CAIRN_EXCLUDES(mutex_);
  Status Health() override { return Status::Ok(); }

  [[nodiscard]] Stream MakeStream() override CAIRN_EXCLUDES(mutex_);
  void Launch(Stream stream, std::function<void()> work) override CAIRN_EXCLUDES(mutex_);
  void Synchronize(Stream stream) override CAIRN_EXCLUDES(mutex_);

 private:
  // A modelled stream is one thread that runs what it is given in order.
  using Queue = WorkerPool;

  struct Job {
    CopyBatch batch;
    CopyDone done;
    std::uint64_t bytes = 0;
    std::atomic<int> parts_left{1};
  };
  // Without streams: the batches of a lane, of which the first one is with the workers.
  using Lane = std::deque<std::shared_ptr<Job>>;

  [[nodiscard]] RateLimit* LinkFor(CopyDirection direction) {
    return link_.has_value() && direction != CopyDirection::kToStaging ? &*link_ : nullptr;
  }
  void PostParts(const std::shared_ptr<Job>& job);
  void FinishPart(Job& job) CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] Queue& StreamAt(std::uintptr_t handle) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Result<Queue*> FindStream(Stream stream) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Result<Queue*> FindLane(int lane);
  Status Record(Queue& queue, EventId event) CAIRN_REQUIRES(mutex_);
  Status Wait(Queue& queue, EventId event) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Status CheckEvent(EventId event) const;

  const HostDeviceOptions options_;
  WorkerPool& workers_;
  std::optional<RateLimit> link_;  // Synchronises itself.

  Mutex mutex_;
  CondVar idle_;
  std::vector<Lane> jobs_ CAIRN_GUARDED_BY(mutex_);  // By lane.
  int unfinished_ CAIRN_GUARDED_BY(mutex_) = 0;      // Jobs whose done has not returned.
  std::unique_ptr<std::byte, FreeMemory> staging_ CAIRN_GUARDED_BY(mutex_);
  std::vector<EventId> free_events_ CAIRN_GUARDED_BY(mutex_);
  // By event: its latest record. A wait keeps the record that it was made for, whatever comes after.
  std::vector<std::shared_ptr<StreamPoint>> records_ CAIRN_GUARDED_BY(mutex_);
  // Last, so that their threads end before what they use. By handle; the default stream is made on its first use.
  std::vector<std::unique_ptr<Queue>> streams_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Queue>> lanes_;  // Constant after construction; with streams only.
};

HostDeviceImpl::HostDeviceImpl(const HostDeviceOptions& options, WorkerPool& workers)
    : options_(options), workers_(workers), jobs_(static_cast<std::size_t>(options.lanes)), records_(kEvents + 1) {
  if (options.bytes_per_second > 0) link_.emplace(options.bytes_per_second);
  for (EventId event = kEvents; event >= 1; --event) free_events_.push_back(event);
  if (options.streams) {
    for (int lane = 0; lane < options.lanes; ++lane) lanes_.push_back(std::make_unique<Queue>("cairn-lane", 1));
  }
  streams_.emplace_back();
}

HostDeviceImpl::~HostDeviceImpl() {
  MutexLock lock(mutex_);
  while (unfinished_ > 0) idle_.Wait(mutex_);
}

Status HostDeviceImpl::CheckLayout(const StridedLayout& layout) const {
  if (layout.bytes > 0 && layout.base == nullptr) {
    return Error(StatusCode::kInvalidArgument, "expected memory for {} bytes on {}, found a null address", layout.bytes,
                 ToString(options_.id));
  }
  return Status::Ok();
}

Result<std::byte*> HostDeviceImpl::AllocateStaging(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  if (staging_ != nullptr) {
    return Error(StatusCode::kFailedPrecondition, "{} has its staging memory already", ToString(options_.id));
  }
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc): aligned, and null instead of an exception where there is none.
  staging_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, AlignUp(std::max(bytes, kBlock), kBlock))));
  if (staging_ == nullptr) {
    return Error(StatusCode::kResourceExhausted, "no memory for {} bytes of staging on {}", bytes,
                 ToString(options_.id));
  }
  return staging_.get();
}

Result<EventId> HostDeviceImpl::AcquireEvent() {
  MutexLock lock(mutex_);
  if (free_events_.empty()) {
    return Error(StatusCode::kResourceExhausted, "all {} events of {} are in use", kEvents, ToString(options_.id));
  }
  const EventId event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void HostDeviceImpl::ReleaseEvent(EventId event) {
  MutexLock lock(mutex_);
  if (event == 0) return;
  records_[event].reset();
  free_events_.push_back(event);
}

Status HostDeviceImpl::RecordOnStream(Stream stream, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindStream(stream));
  return Record(*queue, event);
}

Status HostDeviceImpl::StreamWait(Stream stream, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindStream(stream));
  return Wait(*queue, event);
}

Status HostDeviceImpl::RecordOnLane(int lane, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindLane(lane));
  return Record(*queue, event);
}

Status HostDeviceImpl::LaneWait(int lane, EventId event) {
  if (!options_.streams) return Status::Ok();
  MutexLock lock(mutex_);
  CAIRN_ASSIGN_OR_RETURN(Queue * queue, FindLane(lane));
  return Wait(*queue, event);
}

Status HostDeviceImpl::Copy(CopyBatch batch, CopyDone done) {
  CAIRN_RETURN_IF_ERROR(CheckBatch(batch, options_.lanes));
  const auto lane = static_cast<std::size_t>(batch.lane);
  auto job = std::make_shared<Job>();
  job->bytes = BatchBytes(batch);
  job->batch = std::move(batch);
  job->done = std::move(done);
  if (options_.streams) {
    lanes_[lane]->Post([this, job] {
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

void HostDeviceImpl::PostParts(const std::shared_ptr<Job>& job) {
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

void HostDeviceImpl::FinishPart(Job& job) {
  if (--job.parts_left > 0) return;
  job.done(Status::Ok());
  std::shared_ptr<Job> next;
  {
    MutexLock lock(mutex_);
    Lane& lane = jobs_[static_cast<std::size_t>(job.batch.lane)];
    lane.pop_front();
    if (!lane.empty()) next = lane.front();
    // Notified under the lock: once it is free, the destructor may be through.
    if (--unfinished_ == 0) idle_.NotifyAll();
  }
  if (next != nullptr) PostParts(next);
}

HostDeviceImpl::Queue& HostDeviceImpl::StreamAt(std::uintptr_t handle) {
  std::unique_ptr<Queue>& queue = streams_.at(handle);
  if (queue == nullptr) queue = std::make_unique<Queue>("cairn-stream", 1);
  return *queue;
}

Result<HostDeviceImpl::Queue*> HostDeviceImpl::FindStream(Stream stream) {
  if (stream.device != options_.id || stream.handle >= streams_.size()) {
    return Error(StatusCode::kInvalidArgument, "{} has no stream {} of {}", ToString(options_.id), stream.handle,
                 ToString(stream.device));
  }
  return &StreamAt(stream.handle);
}

Result<HostDeviceImpl::Queue*> HostDeviceImpl::FindLane(int lane) {
  if (lane < 0 || lane >= options_.lanes) {
    return Error(StatusCode::kInvalidArgument, "{} has lanes 0 to {}, not {}", ToString(options_.id),
                 options_.lanes - 1, lane);
  }
  return lanes_[static_cast<std::size_t>(lane)].get();
}

Status HostDeviceImpl::CheckEvent(EventId event) const {
  if (event >= 1 && event <= kEvents) return Status::Ok();
  return Error(StatusCode::kInvalidArgument, "{} has events 1 to {}, not {}", ToString(options_.id), kEvents, event);
}

Status HostDeviceImpl::Record(Queue& queue, EventId event) {
  CAIRN_RETURN_IF_ERROR(CheckEvent(event));
  auto point = std::make_shared<StreamPoint>();
  records_[event] = point;
  queue.Post([point = std::move(point)] { point->Reach(); });
  return Status::Ok();
}

Status HostDeviceImpl::Wait(Queue& queue, EventId event) {
  CAIRN_RETURN_IF_ERROR(CheckEvent(event));
  if (records_[event] == nullptr) {
    return Error(StatusCode::kFailedPrecondition, "waiting for event {} of {}, which is not recorded yet", event,
                 ToString(options_.id));
  }
  queue.Post([point = records_[event]] { point->Await(); });
  return Status::Ok();
}

Stream HostDeviceImpl::MakeStream() {
  MutexLock lock(mutex_);
  streams_.push_back(std::make_unique<Queue>("cairn-stream", 1));
  return {options_.id, streams_.size() - 1};
}

void HostDeviceImpl::Launch(Stream stream, std::function<void()> work) {
  MutexLock lock(mutex_);
  StreamAt(stream.handle).Post(std::move(work));
}

void HostDeviceImpl::Synchronize(Stream stream) {
  auto point = std::make_shared<StreamPoint>();
  Launch(stream, [point] { point->Reach(); });
  point->Await();
}

}  // namespace

std::unique_ptr<HostDevice> HostDevice::Make(const HostDeviceOptions& options, WorkerPool& workers) {
  return std::make_unique<HostDeviceImpl>(options, workers);
}

}  // namespace cairn
