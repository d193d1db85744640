#include "device/cuda_device.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "device/cuda_context.h"
#include "device/cuda_copy_plan.h"
#include "device/cuda_enqueue.h"
#include "device/cuda_kernels.h"
#include "device/cuda_nvtx.h"
#include "device/cuda_sums.h"
#include "device/cuda_waiter.h"
#include "device/lane_room.h"

namespace cairn {
namespace {

// A lane takes no further batch beyond this many outstanding operations. The launch queue of a stream holds about
// 1,024. A batch adds at most three operations for each of its kMaxBatchOperations, and the event at its end. Threads
// that look for room at the same time add a batch each. Launches that sum up are one more for hundreds of pieces.
constexpr std::uint64_t kMaxOutstanding = 256;
// A batch is at least a copy and the event; one with sums, a launch too.
constexpr std::uint64_t kMaxBatches = kMaxOutstanding / 2;
constexpr std::uint64_t kMaxSummedBatches = kMaxOutstanding / 3 + 1;

CUdeviceptr DevicePointer(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const CudaDriver> driver, int index) : context_(std::move(driver), index) {}
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Called first, once. If it fails, the destructor undoes the completed part.
  Status Open(const CudaDeviceOptions& options);

  DeviceId id() const override { return {DeviceKind::kCuda, context_.index()}; }
  int lanes() const override { return static_cast<int>(lanes_.size()); }
  bool has_streams() const override { return true; }
  bool has_kernels() const override { return kernels_.loaded(); }
  Status CheckSums(std::span<const CopyPiece> pieces) const override { return sums_.Check(pieces); }
  std::optional<NumaNode> numa_node() const override { return context_.FindNumaNode(); }
  Status CheckLayout(const StridedLayout& layout) const override;
  bool IsWrittenByStreams(const std::byte* at) const override { return context_.KnowsHostMemory(at); }

  Status PinMemory(MutableBytes memory) override;
  void UnpinMemory(MutableBytes memory) override;
  Result<std::byte*> AllocateStaging(std::uint64_t bytes) override;

  Result<EventId> AcquireEvent() override;
  void ReleaseEvent(EventId event) override;
  Status RecordOnStream(Stream stream, EventId event) override;
  Status StreamWait(Stream stream, EventId event) override;
  bool CanHoldStreamsOf(DeviceId device) const override { return device.kind == DeviceKind::kCuda; }
  Status RecordOnLane(int lane, EventId event) override;
  Status LaneWait(int lane, EventId event) override;

  bool HasRoom(int lane) const override;
  void WakeOnRoom(std::weak_ptr<const std::function<void()>> wake) override { waiters_->Add(std::move(wake)); }
  Status Copy(CopyBatch batch, CopyDone done) override;
  Status Health() override;

 private:
  enum class EventState : std::uint8_t { kFree, kAcquired, kRecorded };
  struct EventSlot {
    CUevent own = nullptr;
    EventState state = EventState::kFree;
    // Instead of `own`: the event at the end of a lane's batch.
    CudaEvent of_lane = nullptr;
  };

  struct CopyLane {
    CopyLane(const CudaContext& context, const std::shared_ptr<const RoomWaiters>& waiters)
        : room(kMaxOutstanding, waiters), waiter(context) {}
    CUstream copies = nullptr;
    LaneRoom room;
    CudaWaiter waiter;
  };

  Status CreateLanesAndEvents(const CudaDeviceOptions& options);
  Status CreateLane(int events);
  // `recorded` is the stream's last event, or null: then the event's own is recorded now.
  Status Record(CUstream stream, EventId event, CudaEvent recorded) CAIRN_EXCLUDES(mutex_);
  // `context` is the stream's.
  Status Wait(const CudaContext& context, CUstream stream, EventId event) CAIRN_EXCLUDES(mutex_);
  // The context of that GPU, which another Device may own.
  Result<const CudaContext*> ContextOf(int index) CAIRN_EXCLUDES(mutex_);
  // The driver's handle of a caller's stream, after checking that work may be enqueued there. Call it within
  // context.Run.
  Result<CUstream> CallerStream(const CudaContext& context, Stream stream) const;
  Status CaptureError(Stream stream) const;
  Result<CopyLane*> Lane(int lane) const;
  Status Enqueue(CopyLane& lane, CudaCopyPlan& plan, const CudaKernelPlan& in_kernels, const CudaSums::Batch* sums,
                 CopyDirection direction) const;
  Result<EventSlot> Event(EventId event, EventState at_least) const CAIRN_EXCLUDES(mutex_);
  Status CheckPinned(MutableBytes memory) const;

  [[nodiscard]] const CudaDriver& driver() const { return context_.driver(); }

  CudaContext context_;
  CudaKernels kernels_{context_};
  // Outlives the lanes' batches, which give its places back.
  CudaSums sums_{context_};
  const std::shared_ptr<RoomWaiters> waiters_ = std::make_shared<RoomWaiters>();
  // Constant after Open.
  std::vector<std::unique_ptr<CopyLane>> lanes_;
  std::uint64_t max_pitch_ = 0;

  mutable Mutex mutex_;
  // Event n is at index n - 1.
  std::vector<EventSlot> events_ CAIRN_GUARDED_BY(mutex_);
  std::vector<EventId> free_events_ CAIRN_GUARDED_BY(mutex_);
  CUdeviceptr staging_ CAIRN_GUARDED_BY(mutex_) = 0;
  // Registered by this device, not by that of another GPU.
  std::set<std::byte*> pinned_ CAIRN_GUARDED_BY(mutex_);
  // By index: of GPUs whose streams have waited for this one.
  std::map<int, std::unique_ptr<CudaContext>> others_ CAIRN_GUARDED_BY(mutex_);
};

CudaDevice::~CudaDevice() {
  for (const auto& lane : lanes_) lane->waiter.Close();
  const MutexLock lock(mutex_);
  for (EventSlot& event : events_) event.of_lane = nullptr;
  if (!context_.sticky().ok()) return;
  const CudaContext::Scope scope(context_);
  // If entering fails, the driver is shutting down or the context was reset, and all this is gone already.
  if (scope.result() != CUDA_SUCCESS) return;
  for (const auto& lane : lanes_) {
    if (lane->copies != nullptr) (void)driver().stream_destroy(lane->copies);
    lane->waiter.DestroyEvents();
  }
  for (const EventSlot& event : events_) (void)driver().event_destroy(event.own);
  kernels_.Unload();
  sums_.Unload();
  if (staging_ != 0) (void)driver().mem_free(staging_);
}

Status CudaDevice::Open(const CudaDeviceOptions& options) {
  if (options.lanes < 1 || options.events < 0) {
    return Error(StatusCode::kInvalidArgument, "cuda:{}: expected at least 1 lane and 0 events, found {} and {}",
                 options.index, options.lanes, options.events);
  }
  CAIRN_RETURN_IF_ERROR(context_.Retain());
  return context_.Run([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(CreateLanesAndEvents(options));
    if (options.kernels) kernels_.Load();
    if (options.sum_bytes != 0) {
      const std::uint64_t taken = kMaxSummedBatches * static_cast<std::uint64_t>(options.lanes);
      // A place is free a moment after the lane has room again.
      sums_.Load(options.sum_bytes, std::min(options.sum_batches, taken) + static_cast<std::uint64_t>(options.lanes));
    }
    return Status::Ok();
  });
}

Status CudaDevice::CreateLanesAndEvents(const CudaDeviceOptions& options) {
  int max_pitch = 0;
  CAIRN_RETURN_IF_ERROR(
      context_.Check(driver().device_get_attribute(&max_pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH, context_.device()),
                     "reading the maximum pitch"));
  max_pitch_ = static_cast<std::uint64_t>(std::max(max_pitch, 0));
  lanes_.reserve(static_cast<std::size_t>(options.lanes));
  for (int i = 0; i < options.lanes; ++i) CAIRN_RETURN_IF_ERROR(CreateLane(options.events));
  const MutexLock lock(mutex_);
  for (int i = 0; i < options.events; ++i) {
    CUevent event = nullptr;
    CAIRN_RETURN_IF_ERROR(context_.Check(driver().event_create(&event, CU_EVENT_DISABLE_TIMING), "creating an event"));
    events_.push_back({.own = event});
  }
  for (std::size_t n = events_.size(); n > 0; --n) free_events_.push_back(static_cast<EventId>(n));
  return Status::Ok();
}

Status CudaDevice::CreateLane(int events) {
  CopyLane& lane = *lanes_.emplace_back(std::make_unique<CopyLane>(context_, waiters_));
  CAIRN_RETURN_IF_ERROR(
      context_.Check(driver().stream_create(&lane.copies, CU_STREAM_NON_BLOCKING), "creating a copy stream"));
  // One for each batch that has not ended, for each event that stands for one that has, and for the last.
  return lane.waiter.Start(kMaxBatches + static_cast<std::size_t>(events) + 1);
}

Status CudaDevice::CheckLayout(const StridedLayout& layout) const {
  if (layout.bytes == 0) return context_.sticky();
  if (layout.outer.size() > 1 && !kernels_.loaded()) {
    return Error(
        StatusCode::kInvalidArgument,
        "expected at most 1 strided dimension over contiguous rows, found {}: make it contiguous first, because "
        "this GPU does not run Cairn's kernels ({})",
        layout.outer.size(), kernels_.why_not());
  }
  return context_.Run([&] {
    // CUDA leaves these as they are, or zero, for a pointer that it does not know.
    unsigned int memory_type = 0;
    unsigned int managed = 0;
    int ordinal = -1;
    std::array<CUpointer_attribute, 3> attributes = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    std::array<void*, 3> values = {&memory_type, &managed, &ordinal};
    CAIRN_RETURN_IF_ERROR(context_.Check(driver().pointer_get_attributes(attributes.size(), attributes.data(),
                                                                         values.data(), DevicePointer(layout.base)),
                                         "finding the owner of a tensor's memory"));
    const auto* const address = static_cast<const void*>(layout.base);
    if (managed == 0 && memory_type != CU_MEMORYTYPE_DEVICE) {
      return Error(StatusCode::kInvalidArgument, "expected memory of cuda:{} at {}, found {}", context_.index(),
                   fmt::ptr(address), memory_type == CU_MEMORYTYPE_HOST ? "pinned host memory" : "no CUDA memory");
    }
    if (ordinal != context_.index()) {
      return Error(StatusCode::kInvalidArgument, "expected memory of cuda:{} at {}, found memory of cuda:{}",
                   context_.index(), fmt::ptr(address), ordinal);
    }
    return Status::Ok();
  });
}

Status CudaDevice::PinMemory(MutableBytes memory) {
  if (memory.empty()) return context_.sticky();
  return context_.Run([&] {
    // Mapped for the kernels.
    const CUresult result =
        driver().mem_host_register(memory.data(), memory.size(), kMemHostRegisterPortable | kMemHostRegisterDeviceMap);
    // Another GPU's device has registered the pool, as portable, so it is pinned for this one too.
    if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
      CAIRN_RETURN_IF_ERROR(CheckPinned(memory));
    } else {
      CAIRN_RETURN_IF_ERROR(context_.Check(result, fmt::format("pinning {} bytes of host memory", memory.size())));
      const MutexLock lock(mutex_);
      pinned_.insert(memory.data());
    }
    kernels_.AddHostMemory(memory);
    return Status::Ok();
  });
}

Status CudaDevice::CheckPinned(MutableBytes memory) const {
  for (const std::byte* at : {memory.data(), memory.data() + memory.size() - 1}) {
    unsigned int memory_type = 0;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void* value = &memory_type;
    CAIRN_RETURN_IF_ERROR(context_.Check(driver().pointer_get_attributes(1, &attribute, &value, DevicePointer(at)),
                                         "checking whether memory is pinned"));
    if (memory_type != CU_MEMORYTYPE_HOST) {
      return Error(StatusCode::kFailedPrecondition,
                   "cuda:{}: part of the {} bytes at {} is already pinned by other code", context_.index(),
                   memory.size(), fmt::ptr(memory.data()));
    }
  }
  return Status::Ok();
}

void CudaDevice::UnpinMemory(MutableBytes memory) {
  kernels_.RemoveHostMemory(memory);
  {
    const MutexLock lock(mutex_);
    if (pinned_.erase(memory.data()) == 0) return;
  }
  // Also after the context failed: memory must not stay page-locked after it is unmapped.
  const CudaContext::Scope scope(context_);
  if (scope.result() == CUDA_SUCCESS) (void)driver().mem_host_unregister(memory.data());
}

Result<std::byte*> CudaDevice::AllocateStaging(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (staging_ != 0)
    return Error(StatusCode::kFailedPrecondition, "cuda:{}: staging memory is already allocated", context_.index());
  CUdeviceptr memory = 0;
  CAIRN_RETURN_IF_ERROR(context_.Run([&] {
    std::size_t free = 0;
    std::size_t total = 0;
    if (driver().mem_get_info(&free, &total) != CUDA_SUCCESS) free = 0;
    return context_.Check(
        driver().mem_alloc(&memory, bytes),
        fmt::format("allocating {} bytes of staging memory ({} of {} bytes are free)", bytes, free, total));
  }));
  staging_ = memory;
  return reinterpret_cast<std::byte*>(memory);  // NOLINT(performance-no-int-to-ptr): addresses are numbers to CUDA
}

Result<EventId> CudaDevice::AcquireEvent() {
  CAIRN_RETURN_IF_ERROR(context_.sticky());
  const MutexLock lock(mutex_);
  if (free_events_.empty()) {
    return Error(StatusCode::kResourceExhausted, "cuda:{}: all {} events are in use", context_.index(), events_.size());
  }
  const EventId event = free_events_.back();
  free_events_.pop_back();
  events_[event - 1].state = EventState::kAcquired;
  return event;
}

void CudaDevice::ReleaseEvent(EventId event) {
  const MutexLock lock(mutex_);
  if (event == 0 || event > events_.size() || events_[event - 1].state == EventState::kFree) return;
  events_[event - 1].state = EventState::kFree;
  events_[event - 1].of_lane = nullptr;
  free_events_.push_back(event);
}

Result<CudaDevice::EventSlot> CudaDevice::Event(EventId event, EventState at_least) const {
  const MutexLock lock(mutex_);
  EventSlot found = event == 0 || event > events_.size() ? EventSlot() : events_[event - 1];
  if (found.state == EventState::kFree) {
    return Error(StatusCode::kInvalidArgument, "cuda:{}: event {} was not acquired", context_.index(), event);
  }
  if (found.state < at_least) {
    return Error(StatusCode::kFailedPrecondition, "cuda:{}: wait for event {}, which was not recorded",
                 context_.index(), event);
  }
  return found;
}

Status CudaDevice::Record(CUstream stream, EventId event, CudaEvent recorded) {
  CAIRN_ASSIGN_OR_RETURN(const EventSlot slot, Event(event, EventState::kAcquired));
  if (recorded == nullptr) {
    CAIRN_RETURN_IF_ERROR(context_.Check(driver().event_record(slot.own, stream), "recording an event"));
  }
  const MutexLock lock(mutex_);
  events_[event - 1].state = EventState::kRecorded;
  events_[event - 1].of_lane = std::move(recorded);
  return Status::Ok();
}

Status CudaDevice::Wait(const CudaContext& context, CUstream stream, EventId event) {
  // Held until the call has ended, so that no later batch records it before.
  CAIRN_ASSIGN_OR_RETURN(const EventSlot slot, Event(event, EventState::kRecorded));
  CUevent const handle = slot.of_lane != nullptr ? slot.of_lane.get() : slot.own;
  // Between two GPUs the error may be either's. Health asks this one itself; a sticky error here would lose it.
  return context.Check(driver().stream_wait_event(stream, handle, CU_EVENT_WAIT_DEFAULT), "waiting for an event");
}

Result<CudaDevice::CopyLane*> CudaDevice::Lane(int lane) const {
  if (lane < 0 || lane >= lanes()) {
    return Error(StatusCode::kInvalidArgument, "cuda:{}: lane {}: expected less than {}", context_.index(), lane,
                 lanes());
  }
  return lanes_[static_cast<std::size_t>(lane)].get();
}

Status CudaDevice::CaptureError(Stream stream) const {
  return Error(StatusCode::kFailedPrecondition,
               "{}: stream {:#x} is being captured into a CUDA graph, but Save and Fence cannot be captured: call them "
               "before the graph's replay",
               ToString(stream.device), stream.handle);
}

Result<const CudaContext*> CudaDevice::ContextOf(int index) {
  if (index == context_.index()) return &context_;
  {
    const MutexLock lock(mutex_);
    if (const auto found = others_.find(index); found != others_.end()) return found->second.get();
  }
  auto other = std::make_unique<CudaContext>(context_.driver_ptr(), index);
  CAIRN_RETURN_IF_ERROR(other->Retain());
  const MutexLock lock(mutex_);
  return others_.try_emplace(index, std::move(other)).first->second.get();
}

Result<CUstream> CudaDevice::CallerStream(const CudaContext& context, Stream stream) const {
  // In CUDA 1 and 2 are the legacy and the per-thread default stream. 0 is either, depending on how its user was
  // compiled.
  // NOLINTNEXTLINE(performance-no-int-to-ptr): cairn::Stream holds handles as numbers
  CUstream handle = stream.handle == 0 ? kLegacyStream : reinterpret_cast<CUstream>(stream.handle);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().stream_is_capturing(handle, &status);
  // The result for the legacy stream while a blocking stream of the context is being captured.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return CaptureError(stream);
  CAIRN_RETURN_IF_ERROR(context.Check(result, "checking whether a stream is being captured"));
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) return CaptureError(stream);
  return handle;
}

Status CudaDevice::RecordOnStream(Stream stream, EventId event) {
  if (stream.device != id()) {
    return Error(StatusCode::kInvalidArgument, "expected a stream of {}, found one of {}", ToString(id()),
                 ToString(stream.device));
  }
  return context_.Run([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(CUstream handle, CallerStream(context_, stream));
    return Record(handle, event, nullptr);
  });
}

Status CudaDevice::StreamWait(Stream stream, EventId event) {
  const NvtxRange range("cairn: fence");
  if (!CanHoldStreamsOf(stream.device)) {
    return Error(StatusCode::kInvalidArgument, "expected a stream of {}, found one of {}", ToString(id()),
                 ToString(stream.device));
  }
  CAIRN_RETURN_IF_ERROR(context_.sticky());
  // The driver looks the stream up in the current context; the event may be another GPU's.
  CAIRN_ASSIGN_OR_RETURN(const CudaContext* context, ContextOf(stream.device.index));
  return context->Run([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(CUstream handle, CallerStream(*context, stream));
    return Wait(*context, handle, event);
  });
}

Status CudaDevice::RecordOnLane(int lane, EventId event) {
  return context_.Run([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const CopyLane* found, Lane(lane));
    return Record(found->copies, event, found->waiter.last());
  });
}

Status CudaDevice::LaneWait(int lane, EventId event) {
  return context_.Run([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(CopyLane * found, Lane(lane));
    CAIRN_RETURN_IF_ERROR(Wait(context_, found->copies, event));
    found->waiter.Forget();
    return Status::Ok();
  });
}

bool CudaDevice::HasRoom(int lane) const {
  const Result<CopyLane*> found = Lane(lane);
  return !found.ok() || (*found)->room.HasRoom();
}

Status CudaDevice::Copy(CopyBatch batch, CopyDone done) {
  const NvtxRange range(batch.direction == CopyDirection::kToStaging ? "cairn: stage" : "cairn: copy");
  CAIRN_ASSIGN_OR_RETURN(CopyLane * lane, Lane(batch.lane));
  std::shared_ptr<const CudaSums::Batch> sums;
  if (batch.sums != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(sums, sums_.Plan(batch.pieces));
  }
  const CudaKernelPlan in_kernels = kernels_.Serve(batch) ? TakeForKernels(batch) : CudaKernelPlan();
  CAIRN_ASSIGN_OR_RETURN(CudaCopyPlan plan, PlanCudaCopies(batch, max_pitch_));
  const std::size_t operations =
      plan.sizes.size() + plan.rows.size() + in_kernels.size() + (sums ? sums->launches() : 0) + 1;
  return context_.Run([&] {
    lane->room.Take(operations);  // Before the driver is called: other threads look for room meanwhile.
    Status status = Enqueue(*lane, plan, in_kernels, sums.get(), batch.direction);
    if (status.ok()) {
      status = lane->waiter.Record(lane->copies,
                                   [lane, operations, sums, to = batch.sums, done = std::move(done)](Status ended) {
                                     if (sums && ended.ok()) sums->Combine(to);
                                     lane->room.GiveBack(operations);
                                     done(std::move(ended));
                                   });
    }
    if (status.ok()) return status;
    // Copies enqueued before the failed one still write, so wait for them before the caller may reuse its memory.
    if (const CUresult result = driver().stream_synchronize(lane->copies); result != CUDA_SUCCESS) {
      status = context_.SetSticky(result, "waiting for the copies before the one that failed");
    }
    lane->room.GiveBack(operations);
    return status;
  });
}

Status CudaDevice::Enqueue(CopyLane& lane, CudaCopyPlan& plan, const CudaKernelPlan& in_kernels,
                           const CudaSums::Batch* sums, CopyDirection direction) const {
  CAIRN_RETURN_IF_ERROR(EnqueueCopies(context_, plan, direction, lane.copies));
  CAIRN_RETURN_IF_ERROR(kernels_.Launch(in_kernels, direction, lane.copies));
  return sums != nullptr ? sums->Launch(lane.copies) : Status::Ok();
}

Status CudaDevice::Health() {
  return context_.Run([&] {
    for (const auto& lane : lanes_) {
      // Any error of our own stream is the context's.
      const CUresult result = driver().stream_query(lane->copies);
      if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        return context_.SetSticky(result, "work on the GPU");
    }
    return Status::Ok();
  });
}

}  // namespace

Result<int> CountCudaDevices() {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDriver> driver, CudaDriver::Load());
  int count = 0;
  if (const CUresult result = driver->device_get_count(&count); result != CUDA_SUCCESS) {
    return Error(StatusCode::kDeviceError, "counting the GPUs: {}", driver->Describe(result));
  }
  for (int index = 0; index < count; ++index) CAIRN_RETURN_IF_ERROR(driver->FindDevice(index).status());
  return count;
}

Status CudaAvailable() { return CountCudaDevices().status(); }

Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<const CudaDriver> driver, CudaDriver::Load());
  auto device = std::make_unique<CudaDevice>(std::move(driver), options.index);
  CAIRN_RETURN_IF_ERROR(device->Open(options));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace cairn
