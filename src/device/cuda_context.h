#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "device/cuda_driver.h"

namespace cairn {

/// One GPU's primary context, retained while this lives, and what has become of it. Safe from any thread.
class CudaContext {
 public:
  CudaContext(std::shared_ptr<const CudaDriver> driver, int index) : driver_(std::move(driver)), index_(index) {}
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  /// Once, before all else. InvalidArgument where there is no such GPU.
  Status Retain();

  /// Makes the context current on the calling thread while it lives, and puts back what was current before.
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

  /// Calls body(), which returns a Status, with the context current. After a sticky error: returns that instead.
  template <typename Body>
  Status Run(const Body& body) const {
    if (Status sticky = this->sticky(); !sticky.ok()) return sticky;
    const Scope scope(*this);
    // Nothing that the caller did can make this fail: the context itself is gone.
    if (scope.result() != CUDA_SUCCESS) return Stick(scope.result(), "entering the primary context");
    return body();
  }

  /// Ok for CUDA_SUCCESS; else an error that says what was being done. Those after which the context is of no more use
  /// stick; after that, the sticky error is returned whatever the result was.
  Status Check(CUresult result, std::string_view what) const {
    return result == CUDA_SUCCESS ? Status::Ok() : Fail(result, what);
  }
  /// Makes the error sticky, of whatever kind it is, where none is yet. Returns the sticky error.
  Status Stick(CUresult result, std::string_view what) const CAIRN_EXCLUDES(mutex_);
  /// Ok, or the sticky error.
  [[nodiscard]] Status sticky() const CAIRN_EXCLUDES(mutex_);

  [[nodiscard]] const CudaDriver& driver() const { return *driver_; }
  [[nodiscard]] CUdevice device() const { return device_; }
  [[nodiscard]] int index() const { return index_; }

 private:
  Status Fail(CUresult result, std::string_view what) const;

  const std::shared_ptr<const CudaDriver> driver_;
  const int index_;
  CUdevice device_ = 0;          // Set by Retain.
  CUcontext context_ = nullptr;  // Set by Retain.

  mutable Mutex mutex_;
  mutable Status sticky_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
