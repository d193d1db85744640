# The CUDA part of the device tests. test_cuda runs on this machine's GPU and skips without one. test_fake_cuda runs the
# same suites, and tests of driver failures, on a test double of the driver.
if(NOT TARGET cairn_cuda_headers)
  cairn_test(test_cuda SOURCES cuda_available_test.cc cuda_copy_plan_test.cc LIBRARIES cairn_device)
  return()
endif()

set(contract device_contract.cc device_contract_test.cc device_streams_contract_test.cc cuda_under_test.cc
  cuda_device_contract_test.cc)
cairn_test(test_cuda
  SOURCES cuda_available_test.cc cuda_copy_plan_test.cc cuda_fence_test.cc cuda_gpu_contract_test.cc ${contract}
  LIBRARIES cairn_device cairn_cuda_headers)
gtest_discover_tests(test_cuda TEST_FILTER "CudaFence.*" TEST_PREFIX "MaxConnections1." DISCOVERY_TIMEOUT 60
  PROPERTIES TIMEOUT 120 ENVIRONMENT "CUDA_DEVICE_MAX_CONNECTIONS=1")

# Named libcuda.so.1, so that the driver's loader finds it already loaded. Found by RPATH, because LD_LIBRARY_PATH
# precedes RUNPATH and may contain a real driver.
add_library(fake_cuda SHARED fake_cuda.cc)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda VERSION 1 SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
target_include_directories(fake_cuda PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(fake_cuda PRIVATE cairn_flags cairn_cuda_headers Threads::Threads)
cairn_test(test_fake_cuda
  SOURCES fake_cuda_contract_test.cc cuda_fault_test.cc ${contract}
  LIBRARIES cairn_device cairn_cuda_headers fake_cuda)
target_link_options(test_fake_cuda PRIVATE -Wl,--disable-new-dtags)
