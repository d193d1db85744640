// The contract suites on the driver's test double: as CUDA 13.0; as 12.4, which has no batch copies; and as a driver
// that runs no kernels.
#include <gmock/gmock.h>

#include <iostream>

#include "device/cuda_device_contract.h"
#include "device/fake_cuda.h"

namespace cairn {
namespace {

DeviceCase FakeCase(const std::string& name, int version, bool kernels = true) {
  return {name,
          [version, kernels](std::string& why_not) {
            fake_cuda::Reset();
            fake_cuda::SetDriverVersion(version);
            if (kernels) fake_cuda::DefineCairnsKernels();
            return CudaUnderTest::Make(why_not);
          },
          [] {
            EXPECT_THAT(fake_cuda::Misuses(), testing::IsEmpty());
            EXPECT_EQ(fake_cuda::LiveObjects(), 0);
            if (testing::Test::HasFailure()) std::cerr << "with FAKE_CUDA_SEED=" << fake_cuda::Seed() << "\n";
          }};
}

const auto kDrivers = testing::Values(FakeCase("driver_13_0", 13000), FakeCase("driver_12_4", 12040),
                                      FakeCase("without_kernels", 13000, false));

INSTANTIATE_TEST_SUITE_P(FakeCuda, DeviceContract, kDrivers, CaseName);
INSTANTIATE_TEST_SUITE_P(FakeCuda, DeviceStridesContract, kDrivers, CaseName);
INSTANTIATE_TEST_SUITE_P(FakeCuda, CudaDeviceContract, kDrivers, CaseName);

}  // namespace
}  // namespace cairn
