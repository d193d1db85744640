// The contract suites on this machine's GPU, if there is one.
#include "device/cuda_device_contract.h"

namespace cairn {
namespace {

const DeviceCase kGpu{"gpu", [](std::string& why_not) { return CudaUnderTest::Make(why_not); }};

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(kGpu), CaseName);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceStridesContract, testing::Values(kGpu), CaseName);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaDeviceContract, testing::Values(kGpu), CaseName);

}  // namespace
}  // namespace cairn
