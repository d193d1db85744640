#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/modelled_time.h"
#include "base/mutex.h"
#include "base/worker_pool.h"
#include "device/device.h"
#include "device/rate_limit.h"

namespace cairn {

class StreamPoint;

struct HostDeviceOptions {
  /// kCpu for production; kCuda{n} to emulate a GPU in ordinary memory.
  DeviceId id;
  /// Batches of one lane are copied one after the other. Without streams a batch is split among workers / lanes
  /// workers. As many lanes as workers is cheapest if the batches are spread over the lanes.
  int lanes = 1;
  /// Emulates a GPU's streams: each lane and each caller's stream (HostDevice::MakeStream) runs copies, work and fences
  /// in order on its own thread; batches are not summed. If false, the workers copy and sum batches, and
  /// RecordOnStream, StreamWait, RecordOnLane and LaneWait do nothing.
  bool streams = false;
  /// Limits copies of kToHost and kToDevice together, in bytes per second. 0: no limit. Without streams the workers
  /// sleep.
  double bytes_per_second = 0;
  /// If set, such copies advance this clock instead of sleeping.
  std::shared_ptr<ModelledTime> time = nullptr;
};

/// Tensors in CPU memory. Worker threads copy and sum them in one pass.
///
/// The destructor finishes all queued work.
class HostDevice final : public Device {
 public:
  static constexpr EventId kEvents = 4096;

  /// `workers` outlives the device.
  HostDevice(const HostDeviceOptions& options, WorkerPool& workers);
  [[nodiscard]] static std::unique_ptr<HostDevice> Make(const HostDeviceOptions& options, WorkerPool& workers) {
    return std::make_unique<HostDevice>(options, workers);
  }
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  [[nodiscard]] DeviceId id() const override { return options_.id; }
  [[nodiscard]] int lanes() const override { return options_.lanes; }
  [[nodiscard]] bool has_streams() const override { return options_.streams; }
  [[nodiscard]] bool has_kernels() const override { return false; }
  [[nodiscard]] Status CheckSums(std::span<const CopyPiece> pieces) const override;
  [[nodiscard]] Status CheckLayout(const StridedLayout& layout) const override;

  Status PinMemory(MutableBytes) override { return Status::Ok(); }
  void UnpinMemory(MutableBytes) override {}
  Result<std::byte*> AllocateStaging(std::uint64_t bytes) override CAIRN_EXCLUDES(mutex_);

  Result<EventId> AcquireEvent() override CAIRN_EXCLUDES(mutex_);
  void ReleaseEvent(EventId event) override CAIRN_EXCLUDES(mutex_);
  Status RecordOnStream(Stream stream, EventId event) override CAIRN_EXCLUDES(mutex_);
  Status StreamWait(Stream stream, EventId event) override CAIRN_EXCLUDES(mutex_);
  [[nodiscard]] bool CanHoldStreamsOf(DeviceId device) const override { return device == options_.id; }
  Status RecordOnLane(int lane, EventId event) override CAIRN_EXCLUDES(mutex_);
  Status LaneWait(int lane, EventId event) override CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] bool HasRoom(int /*lane*/) const override { return true; }
  void WakeOnRoom(std::weak_ptr<const std::function<void()>> /*wake*/) override {}
  Status Copy(CopyBatch batch, CopyDone done) override CAIRN_EXCLUDES(mutex_);
  Status Health() override { return Status::Ok(); }

  /// An emulated stream for the caller, with its handle. It lives as long as the device. Handle 0 is the default
  /// stream, which always exists.
  [[nodiscard]] Stream MakeStream() CAIRN_EXCLUDES(mutex_);
  /// Enqueues work in an emulated stream, like a kernel launch. It runs on the stream's thread.
  void Launch(Stream stream, std::function<void()> work) CAIRN_EXCLUDES(mutex_);
  /// Waits until the stream is idle, as cudaStreamSynchronize does.
  void Synchronize(Stream stream) CAIRN_EXCLUDES(mutex_);

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  // An emulated stream: one thread that runs jobs in order.
  using Queue = WorkerPool;
  struct Job;
  // Without streams: the batches of a lane. The workers are copying the first.
  using Lane = std::deque<std::shared_ptr<Job>>;

  [[nodiscard]] RateLimit* LinkFor(CopyDirection direction);
  void PostParts(const std::shared_ptr<Job>& job);
  void FinishPart(Job& job) CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] static Result<Queue*> CheckStarted(Queue& queue) {
    return queue.status().ok() ? Result<Queue*>(&queue) : queue.status();
  }
  [[nodiscard]] Queue& StreamAt(std::uintptr_t handle) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Result<Queue*> FindStream(Stream stream) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Result<Queue*> FindLane(int lane);
  Status Record(Queue& queue, EventId event) CAIRN_REQUIRES(mutex_);
  Status Wait(Queue& queue, EventId event) CAIRN_REQUIRES(mutex_);
  [[nodiscard]] Status CheckEvent(EventId event) const;

  const HostDeviceOptions options_;
  WorkerPool& workers_;
  std::optional<RateLimit> link_;

  Mutex mutex_;
  CondVar idle_;
  std::vector<Lane> jobs_ CAIRN_GUARDED_BY(mutex_);
  // Jobs whose `done` has not returned.
  int unfinished_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<std::byte, FreeMemory> staging_ CAIRN_GUARDED_BY(mutex_);
  std::vector<EventId> free_events_ CAIRN_GUARDED_BY(mutex_);
  // By event: its latest record. A wait keeps the record that was current when it began.
  std::vector<std::shared_ptr<StreamPoint>> records_ CAIRN_GUARDED_BY(mutex_);
  // Last, so that their threads end before what they use. By handle; the default stream is created on first use.
  std::vector<std::unique_ptr<Queue>> streams_ CAIRN_GUARDED_BY(mutex_);
  // Constant after construction; empty without streams.
  std::vector<std::unique_ptr<Queue>> lanes_;
};

}  // namespace cairn
