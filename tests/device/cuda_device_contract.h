#pragma once

#include "device/cuda_under_test.h"

namespace cairn {

/// CudaDevice's contract beyond DeviceContract. Its cases create a CudaUnderTest.
class CudaDeviceContract : public DeviceContract {
 protected:
  [[nodiscard]] CudaUnderTest& cuda() { return static_cast<CudaUnderTest&>(*under_test_); }
  CUresult BeginCapture(Stream stream, CUstreamCaptureMode mode);
  CUresult EndCapture(Stream stream);
};

}  // namespace cairn
