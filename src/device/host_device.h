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
  /// kCpu for the real thing; kCuda{n} to stand in for a GPU whose memory is ordinary memory.
  DeviceId id;
  /// Batches of one lane are copied one after the other. Without streams, a batch is split among the workers that the
  /// lanes leave (workers / lanes): as many lanes as workers costs least, where batches are spread over the lanes.
  int lanes = 1;
  /// Model streams: lanes and the caller's streams (HostDevice::MakeStream) queue copies, work and fences in order,
  /// each on a thread of its own, as a GPU would; batches are not summed. Off: batches go to the workers and are
  /// summed, and RecordOnStream, StreamWait, RecordOnLane and LaneWait are for no one.
  bool streams = false;
  /// Copies of kToHost and kToDevice together run no faster than this, in bytes per second. 0: as fast as they can.
  /// Without streams a worker that copies sleeps meanwhile.
  double bytes_per_second = 0;
  /// What such copies move on instead of taking real time. Null: they take it.
  std::shared_ptr<ModelledTime> time = nullptr;
};

/// Tensors in CPU memory, copied (and summed in the same pass, a cache-sized piece at a time) by worker threads.
///
/// The destructor finishes what is queued.
class HostDevice final : public Device {
 public:
  /// Events in stock.
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

  /// A modelled stream of the caller's: its handle goes into cairn::Stream. Lives as long as the device. Handle 0 is
  /// the default stream, which is always there.
  [[nodiscard]] Stream MakeStream() CAIRN_EXCLUDES(mutex_);
  /// Enqueues work in a modelled stream of this device, as a kernel launch would be; it runs on the stream's own
  /// thread.
  void Launch(Stream stream, std::function<void()> work) CAIRN_EXCLUDES(mutex_);
  /// Waits until the stream is idle, as cudaStreamSynchronize does.
  void Synchronize(Stream stream) CAIRN_EXCLUDES(mutex_);

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  // A modelled stream is one thread that runs what it is given in order.
  using Queue = WorkerPool;
  struct Job;
  // Without streams: the batches of a lane, of which the first one is with the workers.
  using Lane = std::deque<std::shared_ptr<Job>>;

  [[nodiscard]] RateLimit* LinkFor(CopyDirection direction);
  void PostParts(const std::shared_ptr<Job>& job);
  void FinishPart(Job& job) CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] static Result<Queue*> Started(Queue& queue) {
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

}  // namespace cairn
