#include "tune/measure.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "device/cuda_device.h"
#include "device/host_device.h"
#include "tune/process_cpu.h"

namespace cairn {
namespace {

using Clock = Deadline::Clock;

constexpr std::uint64_t kChunk = 4U << 20;
constexpr int kChunks = 8;
constexpr std::uint64_t kTensorBytes = 128U << 20;  // Larger than any cache.
constexpr std::chrono::milliseconds kTime{300};

/// Keeps work in flight on every chunk until the time is over, and counts the bytes.
class Rounds {
 public:
  Rounds(BufferPool& pool, std::chrono::nanoseconds time, TimeSource now) : now_(std::move(now)), end_(now_() + time) {
    while (BufferPool::Chunk chunk = pool.TryAcquire(BufferPool::Priority::kSave)) chunks_.push_back(std::move(chunk));
  }

  /// Safe from any thread.
  void Finished(std::size_t chunk, Status status, std::uint64_t bytes) CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    idle_.push_back(chunk);
    bytes_ += bytes;
    if (status_.ok()) status_ = std::move(status);
    changed_.NotifyAll();
  }

  /// `start` begins the work on a chunk. Unless it fails, Finished must be called for that chunk.
  template <typename Start>
  Result<CopyRate> Run(const Start& start) CAIRN_EXCLUDES(mutex_) {
    const double cpu = ProcessCpuSeconds();
    const auto begin = now_();
    for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) Begin(chunk, start);
    while (const std::optional<std::size_t> chunk = NextIdle()) Begin(*chunk, start);
    const double seconds = std::chrono::duration<double>(now_() - begin).count();
    MutexLock lock(mutex_);
    CAIRN_RETURN_IF_ERROR(status_);
    const auto bytes = static_cast<double>(bytes_);
    return CopyRate{.bytes_per_second = bytes / seconds, .cpu_seconds_per_byte = (ProcessCpuSeconds() - cpu) / bytes};
  }

  [[nodiscard]] std::byte* memory(std::size_t chunk) const { return chunks_[chunk].data(); }

 private:
  template <typename Start>
  void Begin(std::size_t chunk, const Start& start) CAIRN_EXCLUDES(mutex_) {
    if (Status status = start(chunk); !status.ok()) Finished(chunk, std::move(status), 0);
  }
  /// Waits for an idle chunk. None once the time is over and all chunks are idle.
  std::optional<std::size_t> NextIdle() CAIRN_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (true) {
      const bool over = now_() >= end_ || !status_.ok();
      if (over && idle_.size() == chunks_.size()) return std::nullopt;
      if (!over && !idle_.empty()) {
        const std::size_t chunk = idle_.back();
        idle_.pop_back();
        return chunk;
      }
      changed_.Wait(mutex_);
    }
  }

  const TimeSource now_;
  const Clock::time_point end_;
  std::vector<BufferPool::Chunk> chunks_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::size_t> idle_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  Status status_ CAIRN_GUARDED_BY(mutex_);
};

struct ProbedDevice {
  std::unique_ptr<Device> device;
  // The tensor, if the device uses the CPU's memory.
  std::vector<std::byte> host;
  MutableBytes tensor;
};

Result<ProbedDevice> MakeDevice(DeviceId id, WorkerPool& workers) {
  ProbedDevice probed;
  if (id.kind == DeviceKind::kCuda) {
    CAIRN_ASSIGN_OR_RETURN(probed.device, MakeCudaDevice({.index = id.index}));
    CAIRN_ASSIGN_OR_RETURN(std::byte* const memory, probed.device->AllocateStaging(kTensorBytes));
    probed.tensor = MutableBytes(memory, kTensorBytes);
    return probed;
  }
  probed.device = HostDevice::Make({.id = id, .lanes = workers.threads()}, workers);
  probed.host.assign(kTensorBytes, std::byte{1});
  probed.tensor = probed.host;
  return probed;
}

}  // namespace

Result<CopyRate> ProbeCopy(Device& device, BufferPool& pool, MutableBytes tensor, std::chrono::nanoseconds time,
                           const TimeSource& now, CopyDirection direction) {
  const StridedLayout layout{.base = tensor.data(), .row_bytes = tensor.size(), .outer = {}, .bytes = tensor.size()};
  const std::uint64_t chunk_bytes = pool.chunk_bytes();
  if (tensor.size() < chunk_bytes)
    return Error(StatusCode::kInternal, "expected a tensor of at least {} bytes, found {}", chunk_bytes, tensor.size());
  CAIRN_RETURN_IF_ERROR(device.CheckLayout(layout));
  std::vector<std::uint32_t> sums(pool.chunk_count() * DivideUp(chunk_bytes, kChecksumBlock));
  Rounds rounds(pool, time, now);
  std::uint64_t next = 0;
  return rounds.Run([&](std::size_t chunk) {
    if (next + chunk_bytes > tensor.size()) next = 0;
    CopyBatch batch{
        .direction = direction,
        .lane = static_cast<int>((next / chunk_bytes) % static_cast<std::uint64_t>(device.lanes())),
        .pieces = {{.tensor = &layout, .begin = next, .end = next + chunk_bytes, .memory = rounds.memory(chunk)}}};
    if (device.CheckSums({}).ok() && direction == CopyDirection::kToHost)
      batch.sums = &sums[chunk * DivideUp(chunk_bytes, kChecksumBlock)];
    next += chunk_bytes;
    return device.Copy(std::move(batch), [&rounds, chunk, chunk_bytes](Status status) {
      rounds.Finished(chunk, std::move(status), chunk_bytes);
    });
  });
}

Result<CopyRate> ProbeChecksum(WorkerPool& workers, BufferPool& pool, std::chrono::nanoseconds time,
                               const TimeSource& now) {
  Rounds rounds(pool, time, now);
  // Never read, but stored so that the compiler keeps the computation.
  std::vector<std::uint32_t> sums(pool.chunk_count());
  return rounds.Run([&](std::size_t chunk) {
    workers.Post([&, chunk] {
      sums[chunk] = Crc32c(Bytes(rounds.memory(chunk), pool.chunk_bytes()));
      rounds.Finished(chunk, Status::Ok(), pool.chunk_bytes());
    });
    return Status::Ok();
  });
}

Rates Measured::rates(bool recycled) const {
  Rates rates{.copy = copy.bytes_per_second,
              .checksum = sums_while_copying ? 0.0 : checksum.bytes_per_second,
              .shapes = disk.shapes,
              .slow_share = disk.slow_share,
              .begin_seconds = disk.begin_seconds,
              .commit_seconds = disk.commit_seconds,
              .cpu_seconds_per_byte = disk.cpu_seconds_per_byte + copy.cpu_seconds_per_byte};
  if (!sums_while_copying) rates.cpu_seconds_per_byte += checksum.cpu_seconds_per_byte;
  const double gain = recycled ? disk.overwrite / disk.shapes.front().write_rate : 1.0;
  for (IoShape& shape : rates.shapes) shape.write_rate *= gain;
  return rates;
}

Result<Measured> Measure(const MeasureOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const IoQueueChoice queue, ChooseIoQueue(options.io_queue, kProbeDepth));
  const int cores = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 4U));
  Measured measured{.io_queue = queue.name,
                    .io_queue_reason = queue.reason,
                    .worker_threads = options.worker_threads != 0 ? options.worker_threads : cores};
  {
    WorkerPool workers("cairn-probe", measured.worker_threads);
    CAIRN_RETURN_IF_ERROR(workers.status());
    CAIRN_ASSIGN_OR_RETURN(ProbedDevice probed, MakeDevice(options.device, workers));
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<BufferPool> pool, BufferPool::Make(kChunks * kChunk, kChunk, kChunks));
    pool->Touch(workers);
    CAIRN_RETURN_IF_ERROR(pool->PinWith(*probed.device));
    measured.sums_while_copying = probed.device->CheckSums({}).ok();
    CAIRN_ASSIGN_OR_RETURN(measured.copy, ProbeCopy(*probed.device, *pool, probed.tensor, kTime));
    CAIRN_ASSIGN_OR_RETURN(measured.checksum, ProbeChecksum(workers, *pool, kTime));
  }
  CAIRN_ASSIGN_OR_RETURN(measured.disk, ProbeDisk(queue.factory, options.root, options.disk));
  return measured;
}

}  // namespace cairn
