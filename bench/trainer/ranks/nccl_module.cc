// libcairn_train_nccl.so: what of the trainer needs NCCL. It has run with one rank, never between two GPUs.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nccl.h>

#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "ranks/backend.h"

// Called by the function that LoadBackend returns, on the thread whose current device is the rank's.
extern "C" cairn::trainer::Backend cairn_train_connect_nccl(const cairn::trainer::BackendRequest& request);

cairn::trainer::Backend cairn_train_connect_nccl(const cairn::trainer::BackendRequest& request) {
  int version = 0;
  ncclGetVersion(&version);
  if (version != NCCL_VERSION_CODE) {  // c10d's classes would have another layout.
    throw std::runtime_error("--backend nccl: expected NCCL " + std::to_string(NCCL_VERSION_CODE) +
                             ", with which the module was built, found " + std::to_string(version));
  }
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  const auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, request.world, options);
  group->setBoundDeviceId(c10::impl::VirtualGuardImpl(at::kCUDA).getDevice());
  return group;
}
