#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "device/cuda_context.h"
#include "device/cuda_waiter.h"

namespace cairn::bench {

/// What has ended, counted by other threads.
class Counter {
 public:
  void Add() {
    const MutexLock lock(mutex_);
    ++count_;
    changed_.NotifyAll();
  }
  void Await(std::size_t count) {
    const MutexLock lock(mutex_);
    while (count_ < count) changed_.Wait(mutex_);
    count_ = 0;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::size_t count_ CAIRN_GUARDED_BY(mutex_) = 0;
};

/// Copies that run beside the work of others on GPU 0, and a stream that stands still. For one thread.
class Beside {
 public:
  explicit Beside(std::shared_ptr<const CudaDriver> driver)
      : context_(std::move(driver), 0), driver_(context_.driver()), waiter_(context_) {}
  ~Beside();
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  Status Open(std::uint64_t host_bytes, std::uint64_t gpu_bytes);
  /// Copies chunks to the host. What follows each of them: "nothing", an event that a second stream waits for
  /// ("events"), a host function there too ("host functions"), or an event that a thread waits for ("threads").
  Status ToHost(std::string_view then, std::uint64_t chunk, std::size_t count);
  /// Copies chunks within the GPU, by a call for each ("chunks"), for many ("batches", "overlapping batches"), or for
  /// all ("one copy").
  Status Stage(std::string_view way, std::uint64_t chunk, std::size_t count);
  /// Copies chunks of a convolution's weights in channels_last to the host, by kernels of so many blocks.
  Status Strided(unsigned int blocks, std::uint64_t chunk, std::size_t count);

  struct Filled {
    std::size_t taken = 0;
    double longest_launch = 0;  ///< Of another thread meanwhile, in seconds.
  };
  /// Gives a stream that stands still so many operations, or as many as it takes before a call blocks.
  Result<Filled> Fill(std::string_view kind, std::size_t count);

 private:
  template <typename Function>
  Status Find(const char* name, int since, Function* function);
  [[nodiscard]] CUdeviceptr Host(std::uint64_t at) const { return reinterpret_cast<CUdeviceptr>(host_) + at; }
  Status Check(CUresult result, const char* what) { return context_.Check(result, what); }
  /// After so many chunks in copies_: waits while more than two runs of them are outstanding.
  Status Pace(std::size_t chunks);
  Status EndCopies();
  /// How many operations one call has enqueued.
  Result<std::size_t> Enqueue(std::string_view kind);
  /// Launches until told to stop; the longest call.
  Result<double> LaunchUntil(const std::atomic<bool>& stop);

  CudaContext context_;
  const CudaDriver& driver_;
  PFN_cuLaunchHostFunc_v10000 launch_host_ = nullptr;
  PFN_cuStreamWaitValue32_v11070 wait_value_ = nullptr;
  PFN_cuMemsetD8Async_v3020 memset_ = nullptr;
  bool open_ = false;
  std::byte* host_ = nullptr;
  std::uint64_t host_bytes_ = 0;
  CUdeviceptr from_ = 0;
  CUdeviceptr staging_ = 0;
  std::uint64_t gpu_bytes_ = 0;
  CUstream copies_ = nullptr;
  CUstream second_ = nullptr;
  CUstream training_ = nullptr;
  std::array<CUevent, 128> events_{};
  std::array<CUevent, 2> pace_{};
  CUmodule module_ = nullptr;
  CUfunction strided_ = nullptr;
  CudaWaiter waiter_;
  Counter ended_;
  std::uint32_t released_ = 0;
};

}  // namespace cairn::bench
