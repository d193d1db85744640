#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda_device.h"

namespace cairn {
namespace {

TEST(CudaAvailable, WithoutGpuTheReasonIsNamedByBothFunctions) {
  const Status available = CudaAvailable();
  if (available.ok()) GTEST_SKIP() << "this machine has a GPU";

  EXPECT_EQ(available.code(), StatusCode::kUnsupported);
  EXPECT_THAT(available.message(),
              testing::AnyOf(testing::HasSubstr("libcuda.so.1"), testing::HasSubstr("shows no GPU")));
  const Result<std::unique_ptr<Device>> device = MakeCudaDevice({});
  EXPECT_EQ(device.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(device.status().message(), testing::HasSubstr(available.message()));
}

}  // namespace
}  // namespace cairn
