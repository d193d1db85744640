#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "device/cuda_driver.h"
#include "device/numa.h"

namespace cairn {

/// One GPU's primary context, retained for this object's lifetime, and its sticky error. Safe from any thread.
class CudaContext {
 public:
  CudaContext(std::shared_ptr<const CudaDriver> driver, int index) : driver_(std::move(driver)), index_(index) {}
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  /// Called first, once. InvalidArgument or Unsupported as from CudaDriver::FindDevice.
  Status Retain();

  /// Makes the context current on the calling thread for its lifetime, then restores the previous one.
  class Scope {
   public:
    explicit Scope(const CudaContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    [[nodiscard]] CUresult result() const { return result_; }

   private:
    const CudaDriver& driver_;
    const CUresult result_;
    CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  };

  /// Calls body(), which returns a Status, with the context current. After a sticky error, returns that error instead.
  template <typename Body>
  Status Run(const Body& body) const {
    if (Status sticky = this->sticky(); !sticky.ok()) return sticky;
    const Scope scope(*this);
    // No caller's mistake can make this fail: the context itself is lost.
    if (scope.result() != CUDA_SUCCESS) return SetSticky(scope.result(), "entering the primary context");
    return body();
  }

  /// Ok for CUDA_SUCCESS; otherwise an error that names the operation. Errors that make the context unusable are
  /// sticky: from then on every failure returns the first of them.
  Status Check(CUresult result, std::string_view what) const {
    return result == CUDA_SUCCESS ? Status::Ok() : Fail(result, what);
  }
  /// Makes this error, of any kind, the sticky one unless there is one already. Returns the sticky error.
  Status SetSticky(CUresult result, std::string_view what) const CAIRN_EXCLUDES(mutex_);
  /// Ok, or the sticky error.
  [[nodiscard]] Status sticky() const CAIRN_EXCLUDES(mutex_);

  /// Whether the driver knows this address of the host's memory: it is pinned, by anybody, or managed. False if the
  /// driver fails.
  [[nodiscard]] bool KnowsHostMemory(const std::byte* at) const;

  /// The NUMA node next to the GPU; none if it is unknown.
  [[nodiscard]] std::optional<NumaNode> FindNumaNode() const;

  [[nodiscard]] const CudaDriver& driver() const { return *driver_; }
  [[nodiscard]] const std::shared_ptr<const CudaDriver>& driver_ptr() const { return driver_; }
  [[nodiscard]] CUdevice device() const { return device_; }
  [[nodiscard]] int index() const { return index_; }

 private:
  Status Fail(CUresult result, std::string_view what) const;

  const std::shared_ptr<const CudaDriver> driver_;
  const int index_;
  // Set by Retain.
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;

  mutable Mutex mutex_;
  mutable Status sticky_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
